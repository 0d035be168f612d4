"""Names for files that are being written."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4


def temporary_path(path: Path) -> Path:
    """A hidden name in the same directory, to be renamed to ``path`` when the file is complete. No two are equal.

    Process ids would not tell writers apart: those of two pods on one volume may be equal. The same function as
    ``edl.storage.durable_files.temporary_path``, because data and storage import nothing of each other.
    """
    return path.with_name(f".{path.name}.{uuid4().hex[:12]}.tmp")
