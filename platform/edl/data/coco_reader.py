"""Reads folders of images with the annotations of COCO: boxes and labels of the objects in each image.

A record is a mapping: ``image`` (the bytes of the file, encoded as they are), ``image_id``, ``path`` (within the
folder), and for each object of the image ``boxes`` (x, y, width and height in pixels), ``labels`` (numbers of the
categories) and ``crowd`` (whether the box has several objects); on request also the masks (``coco_masks``). Records
are in the order of the images' ids.
"""

from __future__ import annotations

import json
import logging
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edl.api.errors import BadInputError
from edl.data.coco_masks import MASK_DTYPES, MaskList, ObjectMasks
from edl.data.data_files import (
    COCO_FILE,
    FileVersion,
    changed_error,
    file_version,
    find_source,
    index_path,
    log_unusable_index,
    read_error,
)
from edl.data.file_digests import SourceDigests, digest_file, digest_folder
from edl.data.image_content import find_image_fault
from edl.data.image_folder import image_blocks
from edl.data.reader import BlockSizes, CorruptRange, CorruptRecordError, Metadata, OnCorrupt, Source
from edl.data.reader_factory import ReaderOptions
from edl.data.record_columns import ColumnRecords, RaggedColumn
from edl.data.remote_files import fetch_files, is_remote
from edl.data.temporary_names import temporary_path

_log = logging.getLogger(__name__)
_DTYPES = {
    "image": "string",
    "image_id": "int64",
    "path": "string",
    "boxes": "float32",
    "labels": "int64",
    "crowd": "bool",
}
FOLDER_NAME = "{name}"
"""In ``data.reader.annotations``: the name of the folder of images."""


@dataclass(frozen=True)
class CocoAnnotations:
    """What an annotations file says, as arrays: an object for each of a million boxes would need a gigabyte.

    Args:
        categories: names by id.
        image_ids: in rising order, which is that of the records.
        paths: of the images, within their folder.
        boxes: of all images, in the order of the images.
        category_ids: of all boxes.
        crowd: of all boxes.
        bounds: ``[images + 1]``: the boxes of image ``i`` are ``bounds[i]`` to ``bounds[i + 1]``.
        unusable: why an image's annotations cannot be used, by its number.
        version: of the file.
        masks: of all objects, in the order of the boxes; None: they were not read.
    """

    categories: Mapping[int, str]
    image_ids: npt.NDArray[np.int64]
    paths: tuple[str, ...]
    boxes: npt.NDArray[np.float32]
    category_ids: npt.NDArray[np.int64]
    crowd: npt.NDArray[np.bool_]
    bounds: npt.NDArray[np.int64]
    unusable: Mapping[int, str]
    version: FileVersion
    masks: ObjectMasks | None = None


class CocoReader:
    """A data set of images with annotations.

    Args:
        folders: of images; each is a source.
        annotations: the annotations file of every folder, from the folder that contains it.
        classes: names of the categories, in the order of their labels; by default those of the files, by their ids.
        save_index: also save the annotations as arrays beside their file.
        masks: whether records have the masks of their objects.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        annotations: str = "",
        classes: Sequence[str] = (),
        *,
        save_index: bool = False,
        masks: bool = False,
    ) -> None:
        self._folders = {str(folder): folder for folder in folders}
        self._pattern = annotations or f"{FOLDER_NAME}/{COCO_FILE}"
        self._given_classes = tuple(classes)
        self._save_index = save_index
        self._dtypes = {**_DTYPES, **MASK_DTYPES} if masks else _DTYPES
        self._has_masks = masks
        if len(folders) > 1 and FOLDER_NAME not in self._pattern:
            raise BadInputError(
                f"one annotations file for {len(folders)} folders",
                where="data.reader.annotations",
                hint=f"write {FOLDER_NAME} where the folder's name stands: annotations/instances_{FOLDER_NAME}.json",
            )

    @classmethod
    def from_options(cls, folders: Sequence[Path], options: Mapping[str, object]) -> CocoReader:
        """A reader with the options of ``data.reader``: ``annotations``, ``classes``, ``masks`` and ``index``."""
        chosen = ReaderOptions(options, allowed_names=("annotations", "classes", "masks", "index"))
        return cls(
            folders,
            chosen.get_name("annotations"),
            chosen.get_names("classes"),
            save_index=chosen.get_choice("index", ("memory", "file")) == "file",
            masks=chosen.get_boolean("masks", default=False),
        )

    @cached_property
    def metadata(self) -> Metadata:
        """The columns, and the name of each label's category."""
        return Metadata("coco", tuple(self._dtypes), self._dtypes, self.class_names)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Names of the categories, in the order of their labels.

        Raises:
            BadInputError: an id has several names, or a name is none of the given ones.
        """
        names: dict[int, str] = {}
        for source, folder_annotations in self._annotations.items():
            for number, name in folder_annotations.categories.items():
                if names.setdefault(number, name) != name:
                    raise BadInputError(
                        f"category {number} is {name}, in another file it is {names[number]}",
                        where=str(self.annotations_file(source)),
                        hint="all annotations of a data set need the same categories",
                    )
        category_names = tuple(names[number] for number in sorted(names))
        if len(set(category_names)) != len(category_names):
            raise BadInputError("several categories have one name", where=", ".join(self._folders))
        unknown = [name for name in category_names if name not in self._given_classes]
        if self._given_classes and unknown:
            raise BadInputError(
                f"the annotations have the categories {', '.join(unknown)}, which are no classes",
                where="data.reader.classes",
                hint=f"the classes are {', '.join(self._given_classes)}: those of data.training, unless "
                "data.reader.classes names all",
            )
        return self._given_classes or category_names

    def sources(self) -> tuple[Source, ...]:
        """Name (the path) of each folder, and number of images in its annotations file."""
        _ = self.class_names  # refuses categories that differ
        return tuple(Source(name, len(each.paths)) for name, each in self._annotations.items())

    def source_digests(self) -> SourceDigests:
        """What finds out whether images or annotations were replaced; see ``file_digests``."""
        return {name: partial(self._digest_source, name) for name in self._folders}

    def _digest_source(self, source: str) -> bytes:
        annotations = digest_file(self.annotations_file(source))
        return digest_folder(self._folders[source], self._annotations[source].paths, annotations)

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> Sequence[Any]:
        """Images ``[start, end)`` of one folder, in the order of their ids; see ``Reader.read``."""
        folder, annotations = find_source(self._folders, source), self._annotations[source]
        if not 0 <= start <= end <= len(annotations.paths):
            raise BadInputError(
                f"images {start} to {end} were requested, the annotations have {len(annotations.paths)}", where=source
            )
        if _version_of(self.annotations_file(source)) != annotations.version:
            raise changed_error(self.annotations_file(source))
        images: list[bytes] = []
        kept: list[int] = []
        fetch_files(folder / annotations.paths[number] for number in range(start, end))
        for number in range(start, end):
            content, reason = _read_image(folder / annotations.paths[number])
            reason = annotations.unusable.get(number) or reason
            if not reason:
                images.append(content)
                kept.append(number)
                continue
            corrupt = CorruptRange(source, number, number + 1, None, 0, f"{annotations.paths[number]}: {reason}")
            if on_corrupt is None:
                raise CorruptRecordError(corrupt)
            on_corrupt(corrupt)
        return self._to_records(annotations, np.array(kept, np.int64), images)

    def blocks(self, source: str) -> BlockSizes:
        """Blocks of 16 images of one folder."""
        folder, annotations = find_source(self._folders, source), self._annotations[source]
        return image_blocks(annotations.paths, lambda path: _file_bytes(folder / path), annotations.boxes.nbytes)

    def annotations_file(self, source: str) -> Path:
        """The annotations file of a folder."""
        place = find_source(self._folders, source)
        folder = place if is_remote(place) else Path(os.path.abspath(place))  # a name also for "."
        return folder.parent / self._pattern.replace(FOLDER_NAME, folder.name)

    def _to_records(
        self, annotations: CocoAnnotations, images: npt.NDArray[np.int64], contents: Sequence[bytes]
    ) -> ColumnRecords:
        labels = {name: label for label, name in enumerate(self.class_names)}
        boxes = RaggedColumn(np.arange(len(annotations.boxes)), annotations.bounds).take(images)
        label_of_id = {number: labels[name] for number, name in annotations.categories.items()}
        category_ids = annotations.category_ids[boxes.values].tolist()
        return ColumnRecords(
            {
                "image": np.array(contents, object),
                "image_id": annotations.image_ids[images],
                "path": np.array([annotations.paths[number].encode() for number in images.tolist()], object),
                "boxes": RaggedColumn(annotations.boxes[boxes.values], boxes.bounds),
                "labels": RaggedColumn(np.array([label_of_id[each] for each in category_ids], np.int64), boxes.bounds),
                "crowd": RaggedColumn(annotations.crowd[boxes.values], boxes.bounds),
                **(annotations.masks.take(boxes.values, boxes.bounds) if annotations.masks else {}),
            }
        )

    @cached_property
    def _annotations(self) -> Mapping[str, CocoAnnotations]:
        return {name: self._load_annotations(self.annotations_file(name)) for name in self._folders}

    def _load_annotations(self, file: Path) -> CocoAnnotations:
        place = index_path(file)
        if place is None or not (self._save_index or is_remote(file)):
            return read_annotations(file, masks=self._has_masks)
        saved = load_annotations(place, _version_of(file))
        if saved is not None and self._has_masks == (saved.masks is not None):
            return saved
        annotations = read_annotations(file, masks=self._has_masks)
        save_annotations(place, annotations)
        return annotations


def read_annotations(file: Path, *, masks: bool = False) -> CocoAnnotations:
    """Read an annotations file. Annotations that cannot be used make their image unusable, which is counted as corrupt.

    Args:
        file: the file.
        masks: whether to read the masks of objects, too.

    Raises:
        BadInputError: the file does not exist or is no annotations file.
    """
    try:
        version = _version_of(file)
        document = json.loads(file.read_bytes())
        images = sorted((int(image["id"]), str(image["file_name"])) for image in document["images"])
        categories = {int(each["id"]): str(each["name"]) for each in document.get("categories", [])}
        annotations = list(document.get("annotations", []))
    except OSError as error:
        raise read_error(file, error) from error
    except json.JSONDecodeError as error:
        raise _file_error(file, f"no JSON at character {error.pos}: {error.msg}") from error
    except KeyError as error:
        raise _file_error(file, f"no {error.args[0]!r} where COCO has one") from error
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise _file_error(file, str(error)) from error
    number_of_id = {image_id: number for number, (image_id, _) in enumerate(images)}
    if len(number_of_id) != len(images):
        raise _file_error(file, "several images have one id")
    if outside := [path for _, path in images if Path(path).is_absolute() or ".." in Path(path).parts]:
        raise _file_error(file, f"image {outside[0]!r} is outside of the folder")
    objects: list[tuple[int, list[float], int, bool, int]] = []
    read_masks = MaskList() if masks else None
    unusable: dict[int, str] = {}
    for at, annotation in enumerate(annotations):
        image_id = annotation.get("image_id") if isinstance(annotation, dict) else None
        number = number_of_id.get(image_id) if isinstance(image_id, int) else None
        if number is None:
            raise _file_error(file, f"annotation {at} belongs to no image of the file")
        box, category = annotation.get("bbox"), annotation.get("category_id")
        if not _is_box(box):
            unusable.setdefault(number, f"the bbox of annotation {at} of {file.name} is not four numbers")
        elif not isinstance(category, int) or category not in categories:
            reason = f"annotation {at} of {file.name} has category {category!r}, which the file does not name"
            unusable.setdefault(number, reason)
        elif read_masks is not None and (fault := read_masks.add(annotation.get("segmentation"))):
            unusable.setdefault(number, f"the segmentation of annotation {at} of {file.name} {fault}")
        else:
            objects.append((number, box, category, bool(annotation.get("iscrowd", False)), len(objects)))
    objects.sort(key=lambda each: each[0])  # stable: those of an image stay in the file's order
    counts = np.bincount(np.array([each[0] for each in objects], np.int64), minlength=len(images))
    image_annotations = CocoAnnotations(
        categories,
        np.array([image_id for image_id, _ in images], np.int64),
        tuple(path for _, path in images),
        np.array([each[1] for each in objects], np.float32).reshape(-1, 4),
        np.array([each[2] for each in objects], np.int64),
        np.array([each[3] for each in objects], np.bool_),
        np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        unusable,
        version,
    )
    if read_masks is None:
        return image_annotations
    order = np.array([each[4] for each in objects], np.int64)
    return replace(image_annotations, masks=read_masks.to_masks().reordered(order))


# --------------------------------------------------------------------------------------------------
# Annotations as arrays beside their file: reading the JSON of 100,000 images takes each process some seconds.


_INDEX_VERSION = 2
_MASK_PREFIX = "mask_"
_ARRAYS = ("image_ids", "boxes", "category_ids", "crowd", "bounds")


def save_annotations(place: Path, annotations: CocoAnnotations) -> None:
    """Save annotations. If they cannot be written, that is no error."""
    head = {
        "version": [_INDEX_VERSION, *annotations.version],
        "categories": list(annotations.categories.items()),
        "paths": annotations.paths,
        "unusable": list(annotations.unusable.items()),
        "masks": annotations.masks is not None,
    }
    arrays = {name: getattr(annotations, name) for name in _ARRAYS}
    if annotations.masks is not None:
        arrays |= {_MASK_PREFIX + name: values for name, values in annotations.masks.to_arrays().items()}
    temporary = temporary_path(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as stream:
            np.savez(stream, head=np.frombuffer(json.dumps(head).encode(), np.uint8), **arrays)
        temporary.replace(place)  # atomic: several processes may write the index at once
    except OSError as error:
        _log.info("the annotations of %s are kept in memory only: %s", place, error)
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def load_annotations(place: Path, version: FileVersion) -> CocoAnnotations | None:
    """Saved annotations; None: there are none of this version of their file, or they cannot be true."""
    try:
        with np.load(place, allow_pickle=False) as saved:
            head = json.loads(saved["head"].tobytes())
            if head["version"] != [_INDEX_VERSION, *version]:
                return None
            arrays = {name: saved[name] for name in _ARRAYS}
            names = [name for name in saved.files if name.startswith(_MASK_PREFIX)] if head["masks"] else []
            of_masks = {name.removeprefix(_MASK_PREFIX): saved[name] for name in names}
        annotations = CocoAnnotations(
            {int(number): str(name) for number, name in head["categories"]},
            paths=tuple(map(str, head["paths"])),
            unusable={int(number): str(reason) for number, reason in head["unusable"]},
            version=version,
            **arrays,
            masks=ObjectMasks.from_arrays(of_masks, len(arrays["boxes"])) if head["masks"] else None,
        )
        _check_arrays(annotations)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        log_unusable_index(place, error)
        return None
    return annotations


def _check_arrays(annotations: CocoAnnotations) -> None:
    objects, bounds = len(annotations.boxes), annotations.bounds
    if not (
        len(annotations.paths) == len(annotations.image_ids) == len(bounds) - 1
        and annotations.boxes.shape == (objects, 4)
        and len(annotations.category_ids) == len(annotations.crowd) == objects
        and (bounds[0], bounds[-1]) == (0, objects)
        and bool(np.all(np.diff(bounds) >= 0))
        and set(np.unique(annotations.category_ids).tolist()) <= set(annotations.categories)
        and not any(path.startswith("/") or ".." in path.split("/") for path in annotations.paths)
    ):
        raise ValueError("its arrays do not fit")


def _is_box(box: object) -> bool:
    return (
        isinstance(box, list)
        and len(box) == 4
        and all(isinstance(side, int | float) and not isinstance(side, bool) and math.isfinite(side) for side in box)
    )


def _file_error(file: Path, reason: str) -> BadInputError:
    return BadInputError(
        f"the file cannot be read as annotations of COCO: {reason}",
        where=str(file),
        hint="it has the lists images, annotations and categories; restore the file, or name another one with "
        "data.reader.annotations",
    )


def _version_of(file: Path) -> FileVersion:
    try:
        return file_version(file.stat())
    except OSError as error:
        raise read_error(file, error) from error


def _read_image(path: Path) -> tuple[bytes, str]:
    """The bytes of an image, or why it cannot be used: a folder often lacks some images of the file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        return b"", str(error.strerror)
    except OSError as error:
        raise read_error(path, error) from error
    fault = find_image_fault(content)
    return (content, "") if fault is None else (b"", fault)


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # read() reports it
    except OSError as error:
        raise read_error(path, error) from error
