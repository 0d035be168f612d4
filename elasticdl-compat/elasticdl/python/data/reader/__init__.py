"""Base class of data readers, and the reader of RecordIO files."""

from elasticdl_compat.missing_names import explain_missing_names

__getattr__ = explain_missing_names(__name__)
