"""Opens the data readers: the built-in ones, or the user's ``custom_data_reader``."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from edl.api.errors import BadInputError
from edl.api.job_spec import DataSpec, ModelSpec, TrainSpec
from edl.data.file_digests import digest_sources
from edl.data.job_data import data_set_paths, open_job_data
from edl.data.reader import BlockSizes, CorruptRange, OnCorrupt, Reader, Source
from edl.data.reader_factory import read_reader_blocks
from edl.data.record_columns import ColumnRecords
from edl.data.shard_reader import ShardReader, lists_shards
from edl.jobfile.loader import DATA_SET_BY_TASK
from edl.jobfile.zoo_lookup import find_model_function
from edl.keras.user_code import source_file, user_code

DATA_SET_BY_MODE = {"training": "training", "evaluation": "validation", "prediction": "prediction"}
"""Name of the data set under ``data`` by kind of task."""


def open_data_set(
    data: DataSpec,
    data_set: str,
    custom_reader: Callable[..., Any] | None,
    zoo: Path,
    train: TrainSpec | None = None,
    run_folder: Path | None = None,
    *,
    is_first: bool = False,
) -> Reader:
    """The reader of one data set.

    Args:
        data: the job's ``data`` section.
        data_set: ``training``, ``validation`` or ``prediction``.
        custom_reader: the module's ``custom_data_reader(origin, **data.reader)``; ``origin`` is the path, or
            a list of several paths.
        zoo: the model zoo; frames of files below it are the user's in tracebacks.
        train: the job's ``train`` section; ElasticDL's readers may have an argument ``records_per_task``.
        run_folder: of the run; see ``open_job_data``.
        is_first: see ``open_job_data``.

    Raises:
        BadInputError: the data does not exist, or the user's reader raises.
    """
    if custom_reader is None:
        return open_job_data(data, data_set, run_folder, is_first=is_first)
    for field in ("weights", "repeat", "split"):
        if getattr(data, field):
            raise BadInputError(
                "has no effect on custom_data_reader()", where=f"data.{field}", hint="leave it out, or do it there"
            )
    paths = data_set_paths(data, data_set)
    origin = paths[0] if len(paths) == 1 else list(paths)
    with user_code(zoo, "custom_data_reader()"):
        options = {**_records_per_task(custom_reader, train), **data.reader}
        return GuardedReader(custom_reader(origin, **options), zoo)


def _records_per_task(custom_reader: Callable[..., Any], train: TrainSpec | None) -> dict[str, int]:
    """The argument of this name, if the function has it: ElasticDL gives it to every reader."""
    if train is None:
        return {}
    try:
        names = inspect.signature(custom_reader).parameters
    except (TypeError, ValueError):  # a callable without one, as some of C
        return {}
    return (
        {"records_per_task": train.minibatch_size * train.minibatches_per_task} if "records_per_task" in names else {}
    )


def _adapt(reader: Any) -> Any:
    return ShardReader(reader) if lists_shards(reader) else reader


class GuardedReader:
    """Wraps a user's reader: its exceptions and invalid results are reported as the user's.

    Raises:
        BadInputError: the object lacks a method of a reader.
    """

    def __init__(self, reader: Any, zoo: Path) -> None:
        self._reader, self._zoo = _adapt(reader), zoo
        self._defined_in = source_file(type(reader)) if reader is not None else None
        missing = [name for name in ("metadata", "sources", "read") if not hasattr(self._reader, name)]
        if missing:
            raise self._reader_error(
                f"custom_data_reader() returned {_describe_type(reader)}, which has no {', '.join(missing)}",
                "a reader has metadata, sources() and read(source, start, end, on_corrupt=None)",
            )

    @property
    def blocks(self) -> Callable[[str], BlockSizes] | None:
        """``blocks`` of the user's reader; None if it has no such method, and so no random access."""
        # A property that may be None, because callers ask for the attribute to find out about
        # random access.
        return self._checked_blocks if hasattr(self._reader, "blocks") else None

    def _checked_blocks(self, source: str) -> BlockSizes:
        with user_code(self._zoo, "blocks() of the custom reader"):
            block_sizes = self._reader.blocks(source)
        if not isinstance(block_sizes, BlockSizes) or not all(
            isinstance(count, Integral) for count in block_sizes.records
        ):
            message = (
                f"blocks({source!r}) of the custom reader returned "
                f"{_describe_type(block_sizes)}, not an edl.data.BlockSizes"
            )
            raise self._reader_error(
                message, "return BlockSizes(records of each block, bytes of all of them in memory)"
            )
        return block_sizes

    @property
    def metadata(self) -> Any:
        """The metadata that ``feed`` receives."""
        # It may be a property of the user's class, and raise.
        with user_code(self._zoo, "metadata of the custom reader"):
            return self._reader.metadata

    def sources(self) -> Sequence[Source]:
        """The name and record count of every source.

        Raises:
            BadInputError: the user's ``sources()`` returned anything else.
        """
        with user_code(self._zoo, "sources() of the custom reader"):
            returned = self._reader.sources()
            # Exhaust a generator here: its exceptions are the user's too.
            listed = (
                list(returned) if isinstance(returned, Iterable) and not isinstance(returned, str | bytes) else None
            )
        if listed is None:
            raise self._reader_error(
                f"sources() of the custom reader returned {_describe_type(returned)}, not a list", _SOURCES_HINT
            )
        for position, source in enumerate(listed):
            name, records = getattr(source, "name", None), getattr(source, "records", None)
            # Any type of integer, such as NumPy's, but not true and false.
            if not (isinstance(name, str) and isinstance(records, Integral)) or isinstance(records, bool):
                description = f"{source!r:.80} of type {type(source).__name__}"
                raise self._reader_error(
                    f"source {position} of the custom reader is {description}, not an edl.data.Source", _SOURCES_HINT
                )
            if records < 0:
                raise self._reader_error(f"source {name!r} of the custom reader has {records} records", _SOURCES_HINT)
        # The ledger identifies the source of a range by its name.
        names = Counter(source.name for source in listed)
        if (duplicate := next((name for name, count in names.items() if count > 1), None)) is not None:
            raise self._reader_error(
                f"the custom reader has {names[duplicate]} sources called {duplicate!r}", "name each source once"
            )
        # Plain integers, because the description is sent as JSON.
        return [Source(source.name, int(source.records)) for source in listed]

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> Sequence[Any]:
        """Records of one source. ``on_corrupt`` is passed only if the job allows corrupt records.

        Raises:
            BadInputError: the user's ``read()`` returned anything but the records ``[start, end)``, less those
                that it reported as corrupt.
        """
        left_out = 0

        def skip(corrupt: CorruptRange) -> None:
            nonlocal left_out
            assert on_corrupt is not None
            left_out += corrupt.records
            on_corrupt(corrupt)

        # A reader that cannot skip records need not have the argument.
        extra = {} if on_corrupt is None else {"on_corrupt": skip}
        with user_code(self._zoo, "read() of the custom reader"):
            returned: Any = self._reader.read(source, start, end, **extra)
        call_text = f"read({source!r}, {start}, {end}) of the custom reader returned"
        # These have a length and items too, but no records as items.
        if isinstance(returned, str | bytes | Mapping) or not (
            hasattr(returned, "__len__") and hasattr(returned, "__getitem__")
        ):
            raise self._reader_error(f"{call_text} {_describe_type(returned)}, not a list of records", _RECORDS_HINT)
        # The ledger counts the records of the range, so there must be exactly as many.
        expected_count = end - start - left_out
        if len(returned) != expected_count:
            raise self._reader_error(f"{call_text} {len(returned)} records, not {expected_count}", _RECORDS_HINT)
        # Of columns, a record is a mapping; a list of mappings is no form of records.
        is_table = isinstance(returned, ColumnRecords)
        if expected_count and not is_table and (returned[0] is None or isinstance(returned[0], Mapping)):
            raise self._reader_error(f"{call_text} a record that is {_describe_type(returned[0])}", _RECORDS_HINT)
        records: Sequence[Any] = returned
        return records

    def _reader_error(self, message: str, hint: str) -> BadInputError:
        return BadInputError(message, where=self._defined_in, hint=hint)


_SOURCES_HINT = "return a list of edl.data.Source(name, records): each name once, records from 0"
_RECORDS_HINT = (
    "return a list with exactly the requested records, each as bytes (edl.data.serialize_example makes them of values "
    "by name), a list of strings, or an array; report records that cannot be read to on_corrupt instead"
)


def _describe_type(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def describe_data_sets(
    data: DataSpec, open_by_name: Callable[[str], Reader], *, task: str, shuffle_window: int | None = None
) -> bytes:
    """The description of the data sets that this run uses, as JSON for the master.

    It is ``{"training": [[name, records], …], …}``, with ``blocks`` of the training records if they
    may be shuffled (``shuffle_window`` not 0) and the reader has random access, and ``digests`` of their files.
    """
    used = ("training", "validation") if task == "train" else (DATA_SET_BY_TASK[task],)
    sets: dict[str, Any] = {
        name: [[source.name, source.records] for source in open_by_name(name).sources()]
        for name in used
        if data_set_paths(data, name)
    }
    digests = {name: digest for name in sets if (digest := digest_sources(open_by_name(name)))}
    if digests:
        sets["digests"] = digests
    if "training" in sets and shuffle_window != 0:
        blocks = read_reader_blocks(open_by_name("training"))
        if blocks is not None:
            sets["blocks"] = blocks.to_json()
    return json.dumps(sets).encode()


def may_have_custom_reader(model: ModelSpec) -> bool:
    """Whether the model's module may define ``custom_data_reader``, judged without importing it."""
    try:
        module = find_model_function(Path(model.zoo), model.definition, model.functions)
        return module.may_define("custom_data_reader")
    except BadInputError:
        # Importing it gives a better error.
        return True
