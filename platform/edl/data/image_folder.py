"""Reads folders of images, with a folder for each class.

A record is a mapping: ``image`` (the bytes of the file, encoded as they are), ``label`` (the number of its class in the
sorted names of the class folders; -1 for an image outside of them) and ``path`` (within the folder).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from edl.api.errors import BadInputError
from edl.data.data_files import IMAGE_SUFFIXES, find_source, is_image, read_error
from edl.data.file_digests import SourceDigests, digest_folder
from edl.data.image_content import find_image_fault
from edl.data.reader import BlockSizes, CorruptRange, CorruptRecordError, Metadata, OnCorrupt, Source
from edl.data.reader_factory import ReaderOptions
from edl.data.record_columns import ColumnRecords
from edl.data.remote_files import RemotePath, fetch_files

_LOG = logging.getLogger(__name__)

_BLOCK_RECORDS = 16
_MEASURED_FILES = 64
_ENDINGS = ", ".join(sorted(IMAGE_SUFFIXES))
COLUMNS = ("image", "label", "path")
_DTYPES = {"image": "string", "label": "int64", "path": "string"}


class ImageFolderReader:
    """A data set of images.

    Args:
        folders: each is a source.
        classes: names of the class folders, in the order of their labels; by default all of them, sorted.
    """

    def __init__(self, folders: Sequence[Path], classes: Sequence[str] = ()) -> None:
        self._folders = {str(folder): folder for folder in folders}
        self._given_classes = tuple(classes)

    @classmethod
    def from_options(cls, folders: Sequence[Path], options: Mapping[str, object]) -> ImageFolderReader:
        """A reader with the option of ``data.reader``: ``classes`` (the names of all class folders)."""
        chosen = ReaderOptions(options, allowed_names=("classes",))
        return cls(folders, chosen.get_names("classes"))

    @cached_property
    def metadata(self) -> Metadata:
        """The columns, and the name of each label's class."""
        return Metadata("images", COLUMNS, _DTYPES, self.class_names)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their labels."""
        folder_classes = sorted({_class_of(path) for paths in self._files.values() for path in paths} - {""})
        if not self._given_classes:
            return tuple(folder_classes)
        unknown = [name for name in folder_classes if name not in self._given_classes]
        if unknown:
            raise BadInputError(
                f"folders {', '.join(unknown)} have images and are no classes",
                where="data.reader.classes",
                hint=f"the classes are {', '.join(self._given_classes)}: those of data.training, unless "
                "data.reader.classes names all",
            )
        return self._given_classes

    def sources(self) -> tuple[Source, ...]:
        """Name (the path) and number of images of each folder."""
        _ = self.class_names  # refuses a folder that is no class
        return tuple(Source(name, len(files)) for name, files in self._files.items())

    def source_digests(self) -> SourceDigests:
        """What finds out whether images were added, replaced or renamed; see ``file_digests``."""
        return {name: partial(digest_folder, self._folders[name], self._files[name]) for name in self._folders}

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> Sequence[Any]:
        """Images ``[start, end)`` of one folder, in the order of their paths; see ``Reader.read``."""
        files, folder = find_source(self._files, source), self._folders[source]
        if not 0 <= start <= end <= len(files):
            raise BadInputError(f"images {start} to {end} were requested, the folder has {len(files)}", where=source)
        images, kept = [], []
        fetch_files(folder / files[number] for number in range(start, end))
        for number in range(start, end):
            content = _read_file(folder / files[number])
            fault = find_image_fault(content)
            if fault is None:
                images.append(content)
                kept.append(files[number])
                continue
            corrupt = CorruptRange(source, number, number + 1, None, 0, f"{files[number]}: {fault}")
            if on_corrupt is None:
                raise CorruptRecordError(corrupt)
            on_corrupt(corrupt)
        labels = {name: label for label, name in enumerate(self.class_names)}
        return ColumnRecords(
            {
                "image": np.array(images, object),
                "label": np.array([labels.get(_class_of(path), -1) for path in kept], np.int64),
                "path": np.array([path.encode() for path in kept], object),
            }
        )

    def blocks(self, source: str) -> BlockSizes:
        """Blocks of 16 images of one folder."""
        files, folder = find_source(self._files, source), self._folders[source]
        return image_blocks(files, lambda path: _file_bytes(folder / path))

    @cached_property
    def _files(self) -> Mapping[str, tuple[str, ...]]:
        """Paths of the images within each folder, sorted."""
        return {name: list_images(folder) for name, folder in self._folders.items()}


def list_images(folder: Path) -> tuple[str, ...]:
    """Paths of all images below a folder, relative to it and sorted, so that all processes have the same order."""
    paths = []
    try:
        if isinstance(folder, RemotePath):
            return _list_remote_images(folder)
        for place, names, files in os.walk(folder, onerror=_raise_error, followlinks=True):
            names[:] = sorted(name for name in names if not name.startswith("."))
            relative = Path(place).relative_to(folder)
            paths += [(relative / name).as_posix() for name in files if not name.startswith(".")]
    except OSError as error:
        raise read_error(folder, error) from error
    return _choose_images(folder, paths)


def _list_remote_images(folder: RemotePath) -> tuple[str, ...]:
    start = len(str(folder)) + 1
    names = [str(each)[start:] for each in folder.find()]
    shown = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
    return _choose_images(folder, shown)


def _choose_images(folder: object, names: list[str]) -> tuple[str, ...]:
    """The images of these files, sorted. A log says which of the others are inside of a class."""
    images = [name for name in names if is_image(name)]
    if not images:
        raise BadInputError("the folder has no images", where=str(folder), hint=f"images end with {_ENDINGS}")
    # Beside the classes there may be lists and notes; inside of them a file may be an image of another kind.
    if left_out := sorted(name for name in set(names).difference(images) if _class_of(name)):
        count = "1 file is" if len(left_out) == 1 else f"{len(left_out):,} files are"
        _warn_once(f"{folder}: {count} left out, such as {left_out[0]}: images end with {_ENDINGS}")
    return tuple(sorted(images))


@cache
def _warn_once(text: str) -> None:
    """Log it once in a process, which may read a folder for training and for validation."""
    _LOG.warning("%s", text)


def _raise_error(error: OSError) -> None:
    raise error


def _class_of(path: str) -> str:
    """The folder on top of an image; empty if there is none."""
    return path.split("/", 1)[0] if "/" in path else ""


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise read_error(path, error) from error


def image_blocks(paths: Sequence[str], file_bytes: Callable[[str], int], more_bytes: int = 0) -> BlockSizes:
    """Blocks of 16 images; their memory is estimated by the sizes of some files, evenly spread.

    Args:
        paths: of the images of a source.
        file_bytes: the size of a file; 0: it is missing, which is reported when it is read.
        more_bytes: memory of what else the source has.
    """
    count = len(paths)
    sizes = [size for path in paths[:: max(1, count // _MEASURED_FILES)] if (size := file_bytes(path))]
    total = sum(sizes) * count // max(1, len(sizes)) + more_bytes
    records = [min(_BLOCK_RECORDS, count - at) for at in range(0, count, _BLOCK_RECORDS)]
    return BlockSizes(records, max(total, count))


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise read_error(path, error) from error
