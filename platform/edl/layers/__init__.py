"""Keras layers for users' models, for needs of click-through models that Keras' own layers do not cover.

They are ordinary Keras layers. They train under plain Keras, and saved files load wherever this package can be
imported.

May import: Keras, TensorFlow. Never: another room of EDL.
"""

from edl.layers.adapted import adapt_from
from edl.layers.embedding import Embedding

__all__ = ["Embedding", "adapt_from"]
