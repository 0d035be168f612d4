"""Parent of the modules; ElasticDL has its Python code under this name."""

from elasticdl_compat.missing_names import explain_missing_names

__getattr__ = explain_missing_names(__name__)
