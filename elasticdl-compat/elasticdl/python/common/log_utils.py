"""Loggers that write to stderr in ElasticDL's format."""

from __future__ import annotations

import logging
import sys

from elasticdl_compat.missing_names import explain_missing_names

_FORMAT = "[%(asctime)s] [%(levelname)s] [%(filename)s:%(lineno)d:%(funcName)s] %(message)s"


def get_logger(name: str, level: str | int = "INFO") -> logging.Logger:
    """The logger of a name, which writes each line once, to stderr."""
    logger = logging.getLogger(name)
    logger.setLevel(level)
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(_FORMAT))
        logger.addHandler(handler)
        logger.propagate = False
    return logger


default_logger = get_logger("elasticdl.logger")

__getattr__ = explain_missing_names(__name__)
