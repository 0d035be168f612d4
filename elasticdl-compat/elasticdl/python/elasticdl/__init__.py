"""Callbacks, layers and feature columns."""

from elasticdl_compat.missing_names import explain_missing_names

__getattr__ = explain_missing_names(__name__)
