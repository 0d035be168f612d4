"""The names of ElasticDL that model modules import, where ElasticDL has them: below ``elasticdl.python``."""

from elasticdl_compat.missing_names import explain_missing_modules, explain_missing_names

explain_missing_modules()

__getattr__ = explain_missing_names(__name__)
