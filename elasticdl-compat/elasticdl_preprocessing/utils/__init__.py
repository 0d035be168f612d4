"""A decorator for models, and statistics of features from the environment."""

from elasticdl_compat.missing_names import explain_missing_names

__getattr__ = explain_missing_names(__name__)
