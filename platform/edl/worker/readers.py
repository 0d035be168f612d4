"""Which reader reads what: the built-in ones, or the user's ``custom_data_reader`` in their place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edl.core.errors import BadInputError
from edl.data.opening import open_reader
from edl.data.reader import Reader
from edl.spec.job import Data
from edl.spec.zoo import ANYTHING, locate, names
from edl.worker.user_code import user_code

SETS = {"training": "training", "evaluation": "validation", "prediction": "prediction"}
"""Name of the data set under ``data`` by kind of task."""


def paths_of(data: Data, name: str) -> tuple[str, ...]:
    """The paths of ``data.training``, ``data.validation`` or ``data.prediction``."""
    paths: tuple[str, ...] = getattr(data, name)
    return paths


def open_set(data: Data, name: str, custom: Callable[..., Any] | None, zoo: Path) -> Reader:
    """The reader of one data set.

    Args:
        data: of the job.
        name: ``training``, ``validation`` or ``prediction``.
        custom: the module's ``custom_data_reader(origin, **data.reader)``; ``origin`` is the path, or a list of
            several.
        zoo: the model zoo; frames of files below it are the user's in tracebacks.

    Raises:
        BadInputError: there is no such data, or the user's reader raises.
    """
    paths = paths_of(data, name)
    if custom is None:
        return open_reader(paths, data.reader)
    origin = paths[0] if len(paths) == 1 else list(paths)
    with user_code(zoo, "custom_data_reader()"):
        return GuardedReader(custom(origin, **data.reader), zoo)


class GuardedReader:
    """A user's reader; what it raises is reported as the user's."""

    def __init__(self, reader: Any, zoo: Path) -> None:
        missing = [name for name in ("metadata", "sources", "read") if not hasattr(reader, name)]
        if missing:
            raise BadInputError(
                f"custom_data_reader() returned {type(reader).__name__}, which has no {', '.join(missing)}",
                hint="a reader has metadata, sources() and read(source, start, end, on_corrupt=None)",
            )
        self._reader = reader
        self._zoo = zoo

    @property
    def metadata(self) -> Any:
        """What ``feed`` is told."""
        return self._reader.metadata

    def sources(self) -> Any:
        """Name and record count of every source."""
        with user_code(self._zoo, "sources() of the custom reader"):
            return self._reader.sources()

    def read(self, source: str, start: int, end: int, on_corrupt: Any = None) -> Any:
        """Records of one source. ``on_corrupt`` is passed on only when the job allows corrupt records."""
        extra = {} if on_corrupt is None else {"on_corrupt": on_corrupt}
        with user_code(self._zoo, "read() of the custom reader"):
            return self._reader.read(source, start, end, **extra)


def describe(data: Data, open_named: Callable[[str], Reader], *, predict: bool) -> bytes:
    """JSON for the master: ``{"training": [[name, records], …], …}`` for each set that this run uses."""
    used = ("prediction",) if predict else ("training", "validation")
    sets = {
        name: [[source.name, source.records] for source in open_named(name).sources()]
        for name in used
        if paths_of(data, name)
    }
    return json.dumps(sets).encode()


def may_have_custom_reader(zoo: Path, definition: str) -> bool:
    """Whether the model's module may define ``custom_data_reader``, as far as can be told without importing it."""
    try:
        found = names(locate(zoo, definition).path)
    except BadInputError:  # importing it says so better
        return True
    return "custom_data_reader" in found or ANYTHING in found
