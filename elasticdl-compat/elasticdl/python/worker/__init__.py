"""The base class of prediction processors."""

from elasticdl_compat.missing_names import explain_missing_names

__getattr__ = explain_missing_names(__name__)
