"""What to do with files that EDL does not read as they are: for each kind a few lines that make RecordIO of them.

The lines are whole programs, for people to copy; a test runs each of them and reads what it wrote.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"})
_DOCS_HINT = "docs/bring-your-own-data.md has more, and how a model module reads other formats itself."

_TFRECORD_PROGRAM = """\
from edl.data import Writer
import tensorflow as tf
with Writer({target!r}) as writer:
    for record in tf.data.TFRecordDataset({source!r}{compression}).as_numpy_iterator():
        writer.write(record)"""
_NPZ_PROGRAM = """\
from edl.data import Writer, serialize_example
import numpy as np
arrays = dict(np.load({source!r}))
with Writer({target!r}) as writer:
    for row in zip(*arrays.values(), strict=True):
        writer.write(serialize_example({{k: np.ravel(v).tolist() for k, v in zip(arrays, row)}}))"""
_NPY_PROGRAM = """\
from edl.data import Writer, serialize_example
import numpy as np
with Writer({target!r}) as writer:
    for row in np.load({source!r}):
        writer.write(serialize_example({{"value": np.ravel(row).tolist()}}))"""
_IMAGES_PROGRAM = """\
from pathlib import Path
from edl.data import Writer, serialize_example
kinds = {kinds!r}
images = sorted(f for f in Path({source!r}).rglob("*") if f.suffix.lower() in kinds)
labels = sorted({{f.parent.name for f in images}})
with Writer({target!r}) as writer:
    for f in images:
        writer.write(serialize_example({{"image": f.read_bytes(), "label": labels.index(f.parent.name)}}))"""


def hint_for_file(file: Path) -> str | None:
    """How to make RecordIO of a file; None for a kind of which nothing is known."""
    suffix, target = file.suffix.lower(), str(file.with_suffix(".recordio"))
    name = file.name.lower()
    if suffix in IMAGE_SUFFIXES:
        return hint_for_images(file.parent)
    if suffix in (".tfrecord", ".tfrecords") or ".tfrecord" in name:
        compression = ', compression_type="GZIP"' if suffix == ".gz" else ""
        program = _TFRECORD_PROGRAM.format(source=str(file), target=target, compression=compression)
        return _format_program_hint(
            "TFRecord files hold the same records in another frame; feed stays as it is", program
        )
    if suffix in (".npz", ".npy"):
        program = (_NPZ_PROGRAM if suffix == ".npz" else _NPY_PROGRAM).format(source=str(file), target=target)
        return _format_program_hint("each record becomes a tf.train.Example with a feature an array", program)
    return None


def hint_for_images(folder: Path) -> str:
    """How to make RecordIO of a folder with images, of which each sub-folder is a class."""
    target = f"{folder}.recordio"
    program = _IMAGES_PROGRAM.format(source=str(folder), target=target, kinds=tuple(sorted(IMAGE_SUFFIXES)))
    return _format_program_hint(
        "each record becomes a tf.train.Example with the file's bytes and its folder's number", program
    )


def hint_for_encoding(file: str) -> str:
    """What to do with a text that is not UTF-8."""
    path = Path(file)
    target = path.with_name(f"{path.stem}.utf8{path.suffix}")
    return f"if the whole file is in another encoding, convert it: iconv -f latin1 -t utf-8 '{path}' > '{target}'"


def contains_images(files: Iterable[Path]) -> bool:
    """Whether there are images among the files."""
    return any(file.suffix.lower() in IMAGE_SUFFIXES for file in files)


def _format_program_hint(what: str, program: str) -> str:
    lines = "\n".join(f"    {line}" for line in program.splitlines())
    return f"convert it to RecordIO ({what}), with Python:\n{lines}\n{_DOCS_HINT}"
