"""Keras layers for users' models: what click-through models need and Keras lacks.

They are ordinary Keras layers: they train under plain Keras, and a file that has them is loaded where this package can
be imported. It imports Keras and TensorFlow, and nothing of EDL.
"""

from edl.layers.embedding import Embedding

__all__ = ["Embedding"]
