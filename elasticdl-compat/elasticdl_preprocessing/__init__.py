"""Preprocessing of features inside of a model: Keras layers, feature columns and statistics from the environment.

Layers work with Keras 3 and with tf_keras: they use ``tf.keras``, which is the Keras of the process. They take dense,
sparse and ragged tensors, and return the same kind.
"""

from elasticdl_compat.missing_names import explain_missing_modules, explain_missing_names

explain_missing_modules()

__getattr__ = explain_missing_names(__name__)
