"""RecordIO files: ``Writer`` writes one, ``Index`` counts its records, and ``Scanner`` reads them in order.

The code is EDL's. Files are the same as those of the original package.
"""

from __future__ import annotations

from edl.data import Writer
from elasticdl_compat.missing_names import explain_missing_modules, explain_missing_names
from recordio.scanner import Index, Scanner

__all__ = ["Index", "Scanner", "Writer"]

explain_missing_modules()

__getattr__ = explain_missing_names(__name__)
