"""EDL: elastic, fault-tolerant deep learning on TensorFlow 2 / Keras."""

__version__ = "0.1.0"
