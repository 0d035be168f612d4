"""Opens the data sets of a job with the built-in readers, the same in every process."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from edl.api.job_spec import DataSpec
from edl.data.reader import Reader
from edl.data.reader_factory import open_reader
from edl.jobfile.schema_rules import column_types, selected_columns

TEXT_FORMATS = ("csv", "jsonl")
"""Formats whose columns have types only if the schema gives them."""


def data_set_paths(data: DataSpec, data_set: str) -> tuple[str, ...]:
    """The paths of ``data.training``, ``data.validation`` or ``data.prediction``."""
    paths: tuple[str, ...] = getattr(data, data_set)
    return paths


def open_job_data(data: DataSpec, data_set: str, run_folder: Path | None = None, *, is_first: bool = False) -> Reader:
    """The reader of one data set.

    Args:
        data: the job's ``data`` section.
        data_set: ``training``, ``validation`` or ``prediction``.
        run_folder: of a run, whose processes share there what needs a pass over all records; None: this one alone
            reads the data.
        is_first: the process is the one that the others of the run follow: it counts the rows of databases anew.

    Raises:
        BadInputError: the data does not exist, or a file or an option is invalid.
    """
    paths = data_set_paths(data, data_set)
    if data_set != "training" or not (data.weights or data.repeat):
        return _open_paths(data, data_set, paths, run_folder, is_first=is_first)
    from edl.data.mixed_reader import MixedPart, MixedReader

    weights: Sequence[int | None] = data.weights or (None,) * len(paths)
    repeats = data.repeat or (1,) * len(paths)
    return MixedReader(
        [
            MixedPart(path, _open_paths(data, data_set, (path,), run_folder, is_first=is_first), repeat, weight)
            for path, repeat, weight in zip(paths, repeats, weights, strict=True)
        ]
    )


def _open_paths(
    data: DataSpec, data_set: str, paths: tuple[str, ...], run_folder: Path | None, *, is_first: bool
) -> Reader:
    split = data.split if data_set != "prediction" else None
    columns = selected_columns(data, data_set)
    if split is not None and columns and split.key not in columns:
        columns = (*columns, split.key)
    types = column_types(data, data_set)
    reader = _with_trained_classes(data, paths, open_reader(paths, data.reader, columns, types))
    share_index = getattr(reader, "share_index", None)
    if share_index is not None and run_folder is not None:
        share_index(run_folder, makes=is_first)
    if split is None:
        return reader
    from edl.data.split_reader import SplitReader

    # The hash is that of the text in the file, whatever its type.
    keys = open_reader(paths, data.reader, columns) if types and reader.metadata.format in TEXT_FORMATS else reader
    is_validation = data_set == "validation"
    saved = None
    if run_folder is not None:
        # Which records are corrupt, and thus for training, depends on the options and the columns.
        described = repr((paths, split.key, split.validation, sorted(data.reader.items()), columns, types))
        saved = run_folder / f"split-{blake2b(described.encode(), digest_size=6).hexdigest()}.npz"
    return SplitReader(reader, split.key, split.validation, validation=is_validation, key_reader=keys, saved=saved)


def _with_trained_classes(data: DataSpec, paths: tuple[str, ...], reader: Reader) -> Reader:
    """A reader of images with the classes of the whole training set.

    A class that this set lacks would shift the labels of those after it.
    """
    if not data.training or paths == data.training or reader.metadata.format not in ("images", "coco"):
        return reader
    trained = open_reader(data.training, data.reader).metadata.class_names
    return open_reader(paths, {**data.reader, "format": reader.metadata.format, "classes": trained})
