"""Opens the data sets of a job with the built-in readers, the same in every process."""

from __future__ import annotations

from edl.api.job_spec import DataSpec
from edl.data.reader import Reader
from edl.data.reader_factory import open_reader
from edl.jobfile.schema_rules import selected_columns


def data_set_paths(data: DataSpec, data_set: str) -> tuple[str, ...]:
    """The paths of ``data.training``, ``data.validation`` or ``data.prediction``."""
    paths: tuple[str, ...] = getattr(data, data_set)
    return paths


def open_job_data(data: DataSpec, data_set: str) -> Reader:
    """The reader of one data set.

    Args:
        data: the job's ``data`` section.
        data_set: ``training``, ``validation`` or ``prediction``.

    Raises:
        BadInputError: the data does not exist, or a file or an option is invalid.
    """
    paths, columns = data_set_paths(data, data_set), selected_columns(data, data_set)
    reader = open_reader(paths, data.reader, columns)
    if data_set == "training" or not data.training or reader.metadata.format not in ("images", "coco"):
        return reader
    # A class that this set lacks would shift the labels of those after it.
    trained = open_reader(data.training, data.reader).metadata.class_names
    return open_reader(paths, {**data.reader, "format": reader.metadata.format, "classes": trained})
