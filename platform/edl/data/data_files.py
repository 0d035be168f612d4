"""Lists the files of a data set and detects their format."""

from __future__ import annotations

import codecs
import glob
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast
from zlib import crc32

from edl.api.errors import BadInputError, EdlError, RetryableError
from edl.core.short_list import format_short_list
from edl.core.strict_json import decode_json_file
from edl.data.remote_files import BlockStore, RemotePath, RemoteStream, is_remote
from edl.data.temporary_names import temporary_path

_log = logging.getLogger(__name__)

# --------------------------------------------------------------------------------------------------
# Hints for files that are not read as they are. One has a complete program to copy, which a test runs.


IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"})
COMPRESSION_BY_SUFFIX = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
"""How a file of text is compressed, by the end of its name. Statistics unpack it on the way, jobs into a cache."""
PACKED_SUFFIXES = tuple(COMPRESSION_BY_SUFFIX)
_DOCS_HINT = "docs/bring-your-own-data.md has more, and how a model module reads other formats itself."

_TFRECORD_PROGRAM = """\
from edl.data import Writer
import tensorflow as tf
with Writer({target!r}) as writer:
    for record in tf.data.TFRecordDataset({source!r}, compression_type="GZIP").as_numpy_iterator():
        writer.write(record)"""


def hint_for_file(file: Path) -> str | None:
    """How to read a file of a kind that EDL does not read as it is; None for an unknown kind."""
    suffix, target = file.suffix.lower(), str(file.with_suffix(".recordio"))
    if is_image(file.name):
        return f"images are read from a folder, with a folder for each class: name {file.parent} or the folder above it"
    if suffix == ".gz" and ".tfrecord" in file.name.lower():
        program = _TFRECORD_PROGRAM.format(source=str(file), target=target)
        return "name a folder with data.reader.cache, into which EDL unpacks it; or " + _format_program_hint(
            "compressed TFRecord has no random access; RecordIO contains the same records, and feed stays unchanged",
            program,
        )
    if suffix in PACKED_SUFFIXES:
        return (
            "unpack it, because a compressed file has no random access, or name a folder with data.reader.cache, into "
            f"which EDL unpacks text, JSON lines, CSV and TFRecord. Parquet is compressed in parts. {_DOCS_HINT}"
        )
    if suffix in (".tgz", ".zip"):
        return f"unpack it: a compressed file has no random access. Parquet is compressed in parts. {_DOCS_HINT}"
    return None


def hint_for_encoding(file: str) -> str:
    """How to convert a text file that is not UTF-8."""
    path = Path(file)
    target = path.with_name(f"{path.stem}.utf8{path.suffix}")
    start = b""
    with suppress(OSError), path.open("rb") as stream:
        start = stream.read(2)
    encoding = "utf-16" if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "latin1"
    return f"if the whole file is in another encoding, convert it: iconv -f {encoding} -t utf-8 '{path}' > '{target}'"


def is_image(name: str) -> bool:
    """Whether a file is an image, by its name."""
    return Path(name).suffix.lower() in IMAGE_SUFFIXES


def holds_images(folder: Path) -> bool:
    """Whether a folder has images and no other files, or folders of which one has images."""
    try:
        entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
        if files := [entry for entry in entries if entry.is_file()]:
            return all(is_image(entry.name) for entry in files)
        return any(contains_images(entry.iterdir()) for entry in entries)
    except OSError:
        return False  # whoever opens the folder reports that


def contains_images(files: Iterable[Path]) -> bool:
    """Whether a file has the name of an image; no file is opened."""
    return any(is_image(file.name) for file in files)


def _format_program_hint(what: str, program: str) -> str:
    lines = "\n".join(f"    {line}" for line in program.splitlines())
    return f"convert it to RecordIO ({what}), with Python:\n{lines}\n{_DOCS_HINT}"


FileT = TypeVar("FileT")
PathOrPaths: TypeAlias = str | Path | Sequence[str | Path]

INDEX_SUFFIX = ".idx"
_STATE_FILE, _SPLITS_FILE = "state.json", "dataset_dict.json"
# What ``datasets.save_to_disk`` writes into the folder of a data set, and into one of several data sets.
COCO_FILE = "_annotations.coco.json"
"""Annotations that lie in a folder of images."""
RECORDIO_MAGIC = bytes.fromhex("04030201")
PARQUET_MAGIC, NPY_MAGIC = b"PAR1", b"\x93NUM"
TAR_MAGIC, _TAR_MAGIC_OFFSET = b"ustar", 257
_FORMAT_BY_MAGIC = {RECORDIO_MAGIC: "recordio", PARQUET_MAGIC: "parquet", NPY_MAGIC: "npy"}
_FORMAT_BY_SUFFIX = {
    ".recordio": "recordio",
    ".rio": "recordio",
    ".csv": "csv",
    ".tsv": "csv",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".npy": "npy",
    ".npz": "npz",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "text",
    ".tar": "webdataset",
    ".arrow": "arrow",
}


def read_error(file: Path, error: OSError) -> EdlError:
    """The error for an OSError: BadInputError if the path is wrong, otherwise RetryableError, as for a lost volume."""
    if isinstance(error, EdlError):  # of a remote file
        return error
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return BadInputError(f"cannot be read: {error.strerror}", where=str(file), hint="check path and permissions")
    return RetryableError(f"cannot be read: {error.strerror}", where=str(file), hint="is the volume reachable?")


FileVersion: TypeAlias = tuple[int, int]
"""Size and modification time (ns) of a file."""


def file_version(stat: os.stat_result) -> FileVersion:
    """What differs when a file was written again."""
    return stat.st_size, stat.st_mtime_ns


def stream_version(stream: Any) -> FileVersion:
    """The version of the file from which a stream reads."""
    raw = getattr(stream, "raw", stream)
    return file_version(cast(Any, raw.version) if isinstance(raw, RemoteStream) else os.fstat(stream.fileno()))


def changed_error(file: Path, what: str = "") -> BadInputError:
    """The error for a file that is another one than when its records were counted."""
    return BadInputError(
        f"the file changed while it was in use{f': {what}' if what else ''}",
        where=str(file),
        hint="write new files beside the old ones instead of over them",
    )


def load_saved_index(file: Path, kind: Mapping[str, object], version: FileVersion) -> Mapping[str, Any] | None:
    """The index that lies beside a file; None: there is none of this kind for this version of the file."""
    wanted = {**kind, "size": version[0], "mtime_ns": version[1]}
    try:
        path = index_path(file)
        if path is None:
            return None
        saved: Mapping[str, Any] = decode_index(path.read_bytes())
        return saved if {name: saved[name] for name in wanted} == wanted else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log_unusable_index(file, error)
        return None


_CHECKSUM_MARK = b',"crc32":'
"""Begins the last field of a saved index: the checksum of all before it. A digit that was damaged would name other
records, or make the data file look as if it had changed."""


def encode_index(document: Mapping[str, object]) -> bytes:
    """A saved index as bytes: JSON that ends with a checksum."""
    body = json.dumps(document, separators=(",", ":")).encode("ascii")[:-1]
    return b"%b%b%d}" % (body, _CHECKSUM_MARK, crc32(body))


def decode_index(content: bytes) -> Mapping[str, Any]:
    """A saved index of bytes.

    Raises:
        ValueError: they are damaged, or of an earlier version.
    """
    body, _, rest = content.rpartition(_CHECKSUM_MARK)
    if rest != b"%d}" % crc32(body):
        raise ValueError("its checksum is wrong or missing")
    index: Mapping[str, Any] = decode_json_file(body + b"}")
    return index


def log_unusable_index(file: Path, error: Exception) -> None:
    """A saved index is never needed: another one is made."""
    _log.info("the index beside %s cannot be used and is rebuilt: %s", file, error)


def save_index(file: Path, kind: Mapping[str, object], version: FileVersion, content: Mapping[str, object]) -> None:
    """Save an index beside a file. If it cannot be written, it stays in memory only; that is no error."""
    document = {**kind, "size": version[0], "mtime_ns": version[1], **content}
    path = index_path(file)
    if path is None:
        return
    temporary = temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(encode_index(document))
        temporary.replace(path)  # atomic: several processes may write the index at once
    except OSError as error:
        _log.info("the index of %s is kept in memory only: %s", file, error)
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def index_path(file: Path) -> Path | None:
    """Where an index of a file is saved: beside it, or in the cache for a remote one; None: nowhere."""
    if isinstance(file, RemotePath):
        return file.index_path(INDEX_SUFFIX)
    return file.with_name(file.name + INDEX_SUFFIX)


def find_source(files: Mapping[str, FileT], source: str) -> FileT:
    """The file of a source.

    Raises:
        BadInputError: the data set has no such source.
    """
    file = files.get(source)
    if file is None:
        raise BadInputError("no such source in this data set", where=source)
    return file


def list_paths(paths: PathOrPaths) -> list[str | Path]:
    """One path, or several, as a list."""
    return [paths] if isinstance(paths, str | Path) else list(paths)


def expand_patterns(paths: PathOrPaths, store: BlockStore | None = None) -> list[Path]:
    """The paths, with all that matches in place of a pattern such as ``train-*.tfrecord``.

    What matches is sorted, so that every process has the same order. ``**`` stands for any folders. Hidden and index
    files do not match. A path that exists is itself, whichever characters its name has.

    Raises:
        BadInputError: nothing matches a pattern.
    """
    expanded: list[Path] = []
    store = store or BlockStore()
    for path in list_paths(paths):
        text = str(path)
        if isinstance(path, RemotePath) or is_remote(text):
            expanded += _expand_remote(text, store)
            continue
        if "://" in text and not os.path.lexists(text):
            raise BadInputError(
                f"{text.partition('://')[0]}:// is not read",
                where=text,
                hint="use s3://, gs://, http:// or https://, a path, or custom_data_reader in the model module",
            )
        if not glob.has_magic(text) or os.path.lexists(text):
            expanded.append(Path(path))
            continue
        matching = sorted(map(Path, glob.glob(text, recursive=True)))
        matches = [each for each in matching if each.suffix != INDEX_SUFFIX]
        if "**" in Path(text).parts[-1:]:
            # Else a file would be listed with its folder again.
            matches = [each for each in matches if not each.is_dir()]
        if not matches:
            parts = Path(text).parts
            plain = next(at for at, part in enumerate(parts) if glob.has_magic(part))
            raise BadInputError(
                "no file matches the pattern", where=text, hint=_nearest_directory_hint(Path(*parts[:plain]))
            )
        expanded += matches
    return expanded


def _expand_remote(text: str, store: BlockStore) -> list[Path]:
    path = RemotePath(text, store)
    # A question mark begins the parameters of an address of HTTP.
    if not glob.has_magic(text.replace("?", "") if text.startswith("http") else text) or path.is_file():
        return [cast(Path, path)]
    matches = [each for each in path.glob() if each.suffix != INDEX_SUFFIX and not each.name.startswith(".")]
    if "**" in text.rpartition("/")[2]:
        matches = [each for each in matches if not each.is_dir()]
    if not matches:
        raise BadInputError("no object matches the pattern", where=text, hint="check the bucket and the names")
    return [cast(Path, each) for each in matches]


def find_data(paths: PathOrPaths, format_name: str | None = None, store: BlockStore | None = None) -> tuple[Path, ...]:
    """What a reader of these paths opens: the folders themselves if they are data sets of images, else all data files.

    Args:
        paths: files, directories, patterns or a list of them.
        format_name: ``data.reader.format``; None if the job names none.
        store: has the blocks of remote files; by default in memory.

    Raises:
        BadInputError: there are no data.
    """
    listed = expand_patterns(paths, store)
    are_folders = listed and all(format_of_folder(path) for path in listed)
    if format_name in _FORMATS_OF_FOLDERS or (format_name is None and are_folders):
        _check_listed_once(listed)
        return tuple(listed)
    files = list_data_files(paths, store)
    if format_name is None and all(format_of_name(file) == "text" for file in files):
        for folder in listed:
            _refuse_notes_beside_images(folder)
    return files


def _refuse_notes_beside_images(folder: Path) -> None:
    """Refuse a folder of classes in which a text lies, too: it would be trained on instead of the images."""
    if not folder.is_dir():
        return
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    classes = [entry.name for entry in entries if entry.is_dir() and contains_images(entry.iterdir())]
    if classes:
        text = next(entry.name for entry in entries if entry.is_file())
        raise BadInputError(
            f"it has {text}, and folders of images: {format_short_list(classes, 5)}",
            where=str(folder),
            hint="set data.reader.format to images or to text",
        )


_FORMATS_OF_FOLDERS = ("images", "coco")


def format_of_folder(folder: Path) -> str | None:
    """The format of a folder that is a data set as a whole; None for one with data files, and for anything else."""
    if not folder.is_dir():
        return None
    if (folder / COCO_FILE).is_file():
        return "coco"
    return "images" if holds_images(folder) else None


def list_data_files(paths: PathOrPaths, store: BlockStore | None = None) -> tuple[Path, ...]:
    """All data files under ``paths``, with the files of a directory in sorted order.

    Hidden files, index files (``*.idx``) and sub-directories of a directory are ignored.

    Raises:
        BadInputError: a path is missing, unreadable or an empty directory, or ``paths`` is empty.
    """
    listed = list_paths(paths)
    if not listed:
        raise BadInputError("there are no data files: the list of paths is empty", hint="name a file or a directory")
    files = tuple(file for path in expand_patterns(paths, store) for file in _list_path_files(path))
    _check_listed_once(files)
    return files


def _list_path_files(path: Path) -> list[Path]:
    try:
        if path.is_dir():
            return _list_saved_files(path) or _list_directory_files(path)
        with path.open("rb"):
            return [path]
    except EdlError:
        raise
    except FileNotFoundError:
        raise BadInputError(
            "there is no such file or directory", where=str(path), hint=_nearest_directory_hint(path)
        ) from None
    except OSError as error:
        raise read_error(path, error) from error


def _list_saved_files(folder: Path) -> list[Path]:
    """The files of a data set that Hugging Face saved, in its order; none if the folder is none."""
    if (folder / _SPLITS_FILE).is_file():
        splits = sorted(entry.name for entry in folder.iterdir() if (entry / _STATE_FILE).is_file())
        raise BadInputError(
            "the folder has several data sets",
            where=str(folder),
            hint=f"name one of its directories: {', '.join(splits) or 'none is complete'}",
        )
    state = folder / _STATE_FILE
    try:
        saved = json.loads(state.read_bytes())
        if not isinstance(saved, dict) or "_data_files" not in saved:
            return []  # a file of someone else
        files = [folder / each["filename"] for each in saved["_data_files"]]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError) as error:
        raise BadInputError(
            f"the file cannot be read as the state of a data set: {error}",
            where=str(state),
            hint="save the data set again with save_to_disk",
        ) from error
    if saved.get("_indices_data_files"):
        # Old versions of `datasets` kept the files of the whole set, and beside them which records are in it.
        raise BadInputError(
            "the data set is a part of the records in its files, or has them in another order",
            where=str(state),
            hint="load it with `datasets`, and save flatten_indices() of it with save_to_disk",
        )
    for file in files:
        if file.parent != folder:
            raise BadInputError(f"file {file.name} is outside of the folder", where=str(state))
        if not file.is_file():
            raise BadInputError(f"file {file.name} is missing", where=str(state), hint="restore it")
    return files


def _list_directory_files(directory: Path) -> list[Path]:
    # sorted, so that every process lists the same files in the same order
    entries = sorted(entry for entry in directory.iterdir() if not entry.name.startswith("."))
    files = [entry for entry in entries if entry.is_file() and entry.suffix != INDEX_SUFFIX]
    if not files:
        folders = format_short_list([entry.name for entry in entries if entry.is_dir()], 5)
        hint = f"name one of its directories: {folders}" if folders else "`edl data` can write examples"
        raise BadInputError("the directory has no data files", where=str(directory), hint=hint)
    return files


def _nearest_directory_hint(path: Path) -> str:
    if is_remote(path):
        return "check the bucket and the names"
    parent = path
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    return f"the nearest directory that exists is {parent.resolve()}"


def _check_listed_once(files: Sequence[Path]) -> None:
    listed: set[Path] = set()
    for file in files:
        if file in listed:
            raise BadInputError("the file is listed twice", where=str(file), hint="name each file once")
        listed.add(file)


def detect_format(files: Sequence[Path]) -> str:
    """The format of ``files``, by their suffixes or their first bytes.

    Raises:
        BadInputError: the format of a file is unknown, or the files have several formats.
    """
    format_by_file = {file: _detect_file_format(file) for file in files}
    formats = {name for name in format_by_file.values() if name}
    if len(formats) > 1:
        listing = format_short_list([f"{file.name} is {name}" for file, name in format_by_file.items()])
        raise BadInputError(
            f"files of several formats: {listing}",
            where=str(files[0].parent),
            hint="keep one format in a data set",
        )
    # no format at all: all files are empty, and an empty RecordIO file is valid and has 0 records
    return formats.pop() if formats else "recordio"


def format_of_name(file: Path) -> str | None:
    """The format that a file's name stands for; None if it stands for none."""
    # Shards of TFRecord have names such as data.tfrecord-00000-of-00008.
    if ".tfrecord-" in file.name.lower() and file.suffix.lower() not in PACKED_SUFFIXES:
        return "tfrecord"
    return _FORMAT_BY_SUFFIX.get(file.suffix.lower())


def _detect_file_format(file: Path) -> str | None:
    """The file's format; None for an empty file with an unknown suffix."""
    if file.is_dir():
        return format_of_folder(file)  # see find_data
    by_name = format_of_name(file)
    if by_name:
        return by_name
    try:
        with file.open("rb") as stream:
            start = stream.read(_TAR_MAGIC_OFFSET + len(TAR_MAGIC))
    except OSError as error:
        raise read_error(file, error) from error
    if not start:
        return None
    if start[_TAR_MAGIC_OFFSET:] == TAR_MAGIC:
        return "webdataset"
    head = start[: len(RECORDIO_MAGIC)]
    if head in _FORMAT_BY_MAGIC:
        return _FORMAT_BY_MAGIC[head]
    raise BadInputError(
        "unknown data format: neither the name nor the first bytes of the file identify it",
        where=str(file),
        hint=hint_for_file(file)
        or "name the format with data.reader.format (such as csv or tfrecord), move the file elsewhere, or read it "
        "yourself with a custom_data_reader in the model module: docs/bring-your-own-data.md",
    )
