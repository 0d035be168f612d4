"""Masks of objects as annotations of COCO give them: polygons, and run lengths for crowds.

Nothing is drawn: a mask of each object of an image would be a hundred times as large as the image.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from edl.data.record_columns import Column, RaggedColumn

MASK_DTYPES = {"polygons": "float32", "runs": "int64", "run_size": "int64"}
"""The columns of masks: see ``ObjectMasks``."""
_FEWEST_COORDINATES = 6
_FIRST_CHARACTER = 48
"""Of compressed run lengths: six bits a character."""
_MOST_PIXELS = 1 << 40


@dataclass(frozen=True)
class ObjectMasks:
    """The masks of objects, as columns with a cell for each object.

    Args:
        polygons: lists of lists: x and y of the corners of each polygon, one after another, in pixels.
        runs: numbers of pixels that are in turn outside and inside of the mask, down one column of pixels after
            another; empty for an object with polygons.
        run_size: ``[objects, 2]``: height and width of the mask of ``runs``; zeros for an object with polygons.
    """

    polygons: RaggedColumn
    runs: RaggedColumn
    run_size: npt.NDArray[np.int64]

    def take(self, objects: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]) -> dict[str, Column]:
        """The columns of images: image ``i`` has ``objects[bounds[i]:bounds[i + 1]]``."""
        masks = self.reordered(objects)
        return {
            "polygons": RaggedColumn(masks.polygons, bounds),
            "runs": RaggedColumn(masks.runs, bounds),
            "run_size": RaggedColumn(masks.run_size, bounds),
        }

    def reordered(self, objects: npt.NDArray[np.int64]) -> ObjectMasks:
        """The masks of these objects, in this order."""
        return ObjectMasks(self.polygons.take(objects), self.runs.take(objects), self.run_size[objects])

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What ``from_arrays`` takes."""
        return {
            "corners": self.polygons.values.values,
            "polygon_bounds": self.polygons.values.bounds,
            "object_polygons": self.polygons.bounds,
            "runs": self.runs.values,
            "object_runs": self.runs.bounds,
            "run_size": self.run_size,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], objects: int) -> ObjectMasks:
        """The masks of ``objects`` objects.

        Raises:
            ValueError: the arrays do not fit each other.
        """
        masks = cls(
            RaggedColumn(RaggedColumn(arrays["corners"], arrays["polygon_bounds"]), arrays["object_polygons"]),
            RaggedColumn(arrays["runs"], arrays["object_runs"]),
            arrays["run_size"],
        )
        ragged = (masks.polygons.values, masks.polygons, masks.runs)
        if not (
            len(masks.polygons) == len(masks.runs) == objects
            and masks.run_size.shape == (objects, 2)
            and all((each.bounds[0], each.bounds[-1]) == (0, len(each.values)) for each in ragged)
            and all(bool(np.all(np.diff(each.bounds) >= 0)) for each in ragged)
        ):
            raise ValueError("its masks do not fit")
        return masks


@dataclass
class MaskList:
    """Masks as they are read, one object after another."""

    _corners: array[float] = field(default_factory=lambda: array("f"))
    _polygon_bounds: array[int] = field(default_factory=lambda: array("q", [0]))
    _object_polygons: array[int] = field(default_factory=lambda: array("q", [0]))
    _runs: array[int] = field(default_factory=lambda: array("q"))
    _object_runs: array[int] = field(default_factory=lambda: array("q", [0]))
    _sizes: array[int] = field(default_factory=lambda: array("q"))

    def add(self, segmentation: object) -> str | None:
        """Add the mask of an object, or say why it is none; None: it is one, or the object has none."""
        polygons: list[Any] = []
        runs: list[int] = []
        size = (0, 0)
        if isinstance(segmentation, dict):
            try:
                runs, size = _read_runs(segmentation)
            except (KeyError, TypeError, ValueError) as error:
                return f"is no run-length encoding: {error}"
        elif isinstance(segmentation, list):
            polygons = segmentation
            if not all(map(_is_polygon, polygons)):
                return "has a polygon that is not three or more pairs of numbers"
        elif segmentation is not None:
            return "is neither polygons nor a run-length encoding"
        for polygon in polygons:
            self._corners.extend(polygon)
            self._polygon_bounds.append(len(self._corners))
        self._object_polygons.append(len(self._polygon_bounds) - 1)
        self._runs.extend(runs)
        self._object_runs.append(len(self._runs))
        self._sizes.extend(size)
        return None

    def to_masks(self) -> ObjectMasks:
        """All that were added."""
        corners, polygons = np.array(self._corners, np.float32), np.array(self._polygon_bounds, np.int64)
        return ObjectMasks(
            RaggedColumn(RaggedColumn(corners, polygons), np.array(self._object_polygons, np.int64)),
            RaggedColumn(np.array(self._runs, np.int64), np.array(self._object_runs, np.int64)),
            np.array(self._sizes, np.int64).reshape(-1, 2),
        )


def _is_polygon(polygon: object) -> bool:
    return (
        isinstance(polygon, list)
        and len(polygon) >= _FEWEST_COORDINATES
        and len(polygon) % 2 == 0
        and all(isinstance(at, int | float) and not isinstance(at, bool) and math.isfinite(at) for at in polygon)
    )


def _read_runs(encoded: Mapping[str, Any]) -> tuple[list[int], tuple[int, int]]:
    """Run lengths, and height and width.

    Raises:
        ValueError, KeyError, TypeError: they are none.
    """
    height, width = encoded["size"]
    counts = encoded["counts"]
    runs = unpack_runs(counts) if isinstance(counts, str) else list(counts)
    if not all(type(number) is int and 0 <= number <= _MOST_PIXELS for number in (height, width, *runs)):
        raise ValueError("its numbers are no lengths")
    if sum(runs) != height * width:
        raise ValueError(f"its runs have {sum(runs)} pixels, and its size {height} x {width}")
    return runs, (height, width)


def unpack_runs(text: str) -> list[int]:
    """The run lengths of the text that pycocotools writes.

    A character has five bits of a number, lowest first, and a bit that says whether more follow; the highest bit of the
    last one is the sign. From the fourth run on, the number is the difference to the run before the last one.

    Raises:
        ValueError: it is no such text.
    """
    runs: list[int] = []
    number = shift = 0
    for code in text.encode("ascii"):
        bits = code - _FIRST_CHARACTER
        if not 0 <= bits < 64:
            raise ValueError(f"{chr(code)!r} is no character of it")
        number |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            number -= 1 << shift
        runs.append(number + (runs[-2] if len(runs) > 2 else 0))
        number = shift = 0
    if shift:
        raise ValueError("it ends within a number")
    return runs
