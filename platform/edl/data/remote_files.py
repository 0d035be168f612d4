"""Files of object stores and of HTTP servers (``s3://``, ``gs://``, ``http://``, ``https://``), read by ranges.

fsspec speaks the protocols. Its own caches are not used: they have no bound, and two processes lose what the other one
has noted in the common list of blocks. Here a file is divided into blocks of 1 MiB. Those that were fetched stay in
memory, within a bound, and in the folder of ``data.reader.cache`` if the job names one.

A block belongs to a version of its file: its size, and its ETag, generation or time. The version is asked for again
after each fetch, so a block never has bytes of a file that was written over meanwhile.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import queue
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import lru_cache, partial, total_ordering
from hashlib import sha256
from itertools import count as count_up
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, cast
from urllib.parse import unquote, urlsplit
from zlib import crc32

from edl.api.errors import BadInputError, EdlError, RetryableError
from edl.data.cache_folder import BLOCK_SUFFIX, CacheFolder, touch
from edl.data.temporary_errors import TRIES, retry_temporary
from edl.data.temporary_names import temporary_path

_log = logging.getLogger(__name__)

EXTRAS = {"s3": ("s3", "s3fs"), "gs": ("gcs", "gcsfs"), "http": ("http", "aiohttp"), "https": ("http", "aiohttp")}
"""Schemes, and for each the extra of EDL and the package that it needs."""
BLOCK_BYTES = 1 << 20
_REQUEST_BLOCKS = 4
"""Blocks that one request fetches."""
_READ_AHEAD_BLOCKS = 16
_FETCH_THREADS = 8
_MEMORY_BYTES = 256 << 20
FRESH_SECONDS = 2.0
"""How long the version of a file is believed without asking again."""
_TRIES_BY_SCHEME = {"gs": 1}
"""Where it is not ``TRIES``: gcsfs tries six times by itself, in half a minute."""
_CONNECT_SECONDS, _READ_SECONDS, _REQUEST_SECONDS = 10, 30, 120
_MOST_FILE_BYTES = 1 << 50


def is_remote(path: object) -> bool:
    """Whether a path names a file of an object store or of an HTTP server."""
    return str(path).partition("://")[0].lower() in EXTRAS and "://" in str(path)


class MissingObjectError(BadInputError, FileNotFoundError):
    """There is no such object. Readers, to which some files are optional, take it for a missing file."""

    def __init__(self, url: str) -> None:
        super().__init__("there is no such object", where=url, hint="check the name: it is case-sensitive")
        self.errno, self.strerror = errno.ENOENT, os.strerror(errno.ENOENT)


class FileStat(NamedTuple):
    """What readers need of ``os.stat_result``. The time is a number that differs when the file was written again."""

    st_size: int
    st_mtime_ns: int


# --------------------------------------------------------------------------------------------------
# Protocols.


@lru_cache(maxsize=8)
def _file_system(scheme: str) -> Any:
    extra, package = EXTRAS[scheme]
    try:
        import fsspec

        if extra == "http":
            from aiohttp import ClientTimeout

            timeout = ClientTimeout(_REQUEST_SECONDS, sock_connect=_CONNECT_SECONDS, sock_read=_READ_SECONDS)
            return fsspec.filesystem(scheme, client_kwargs={"timeout": timeout, "trust_env": True})
        if extra == "s3":
            timeouts = {"connect_timeout": _CONNECT_SECONDS, "read_timeout": _READ_SECONDS}
            return fsspec.filesystem("s3", use_listings_cache=False, config_kwargs=timeouts)
        # Not fsspec.filesystem("gs"), which asks for the kind of each bucket through another service.
        from gcsfs.core import GCSFileSystem

        # It logs the traceback of each error that it raises, and EDL says what the error means.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
        return GCSFileSystem(use_listings_cache=False, requests_timeout=_READ_SECONDS)
    except ImportError as error:
        raise BadInputError(
            f"{scheme}:// needs the package {package}: {error}",
            where="data",
            hint=f"install EDL with the extra {extra}, also in the job's image: pip install 'edl-platform[{extra}]'",
        ) from error


def _translate_error(url: str, error: Exception) -> EdlError:
    """The error of EDL for one of fsspec, of its file systems or of their libraries."""
    if isinstance(error, EdlError):
        return error
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and len(chain) < 8:
        chain.append(cause)
    names = {type(each).__name__ for each in chain}
    # aiohttp gives the code 400 to an answer that ends early, as when the connection is lost.
    answers = [each for each in chain if not type(each).__module__.startswith("aiohttp.http_exceptions")]
    numbers = [getattr(each, name, None) for each in answers for name in ("status", "code")]
    status = next((int(str(each)) for each in numbers if str(each).isdigit()), 0)
    if names & {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "DefaultCredentialsError"}:
        return BadInputError(f"there are no credentials: {error}", where=url, hint=_credentials_hint(url))
    if status in (401, 403) or any(isinstance(each, PermissionError) for each in chain) or "RefreshError" in names:
        return BadInputError("permission denied", where=url, hint=_credentials_hint(url))
    unreachable = any("Timeout" in name or "Connect" in name or "Disconnected" in name for name in names)
    if status in (404, 410) or (isinstance(error, FileNotFoundError) and not status and not unreachable):
        return MissingObjectError(url)
    if 400 <= status < 500 and status not in (408, 425, 429):
        return BadInputError(f"the server answered {status}: {error}", where=url, hint="check the address")
    last = answers[-1] if answers else chain[-1]
    reason = str(last).splitlines()[0] if str(last) else type(last).__name__
    return RetryableError(f"cannot be read: {reason}", where=url, hint="is the server reachable?")


def _credentials_hint(url: str) -> str:
    scheme = url.partition("://")[0].lower()
    names = {
        "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or FSSPEC_S3_ANON=true for a public bucket",
        "gs": "GOOGLE_APPLICATION_CREDENTIALS, or FSSPEC_GS_TOKEN=anon for a public bucket",
    }.get(scheme, 'FSSPEC_HTTP, such as {"headers": {"Authorization": "Bearer …"}}')
    return (
        f"set {names}, in the environment or from a Secret with pod.env; "
        "the account must be allowed to read objects and to list them"
    )


def _call(url: str, action: Callable[[], Any]) -> Any:
    """The result of a request, which is tried again after a temporary error.

    Raises:
        BadInputError: trying again is of no use.
        RetryableError: every try failed.
    """
    tries = _TRIES_BY_SCHEME.get(urlsplit(url).scheme.lower(), TRIES)
    return retry_temporary(action, partial(_translate_error, url), tries=tries)


def _ask_version(url: str) -> tuple[FileStat, str]:
    """Size and version of a file, and the checksum that the store has of its content; empty: it has none."""
    system = _file_system(urlsplit(url).scheme.lower())
    info = _call(url, lambda: system.info(url))
    if info.get("type") == "directory":
        raise BadInputError("it is a folder", where=url, hint="name a file")
    size = info.get("size")
    if size is None or not 0 <= int(size) < _MOST_FILE_BYTES:
        raise BadInputError(
            f"the server names the size {size}", where=url, hint="a file is read by ranges, so its size must be known"
        )
    if info.get("partial") is False and size > BLOCK_BYTES:
        raise _no_ranges_error(url)
    marks = [str(info.get(name)) for name in ("ETag", "etag", "generation", "LastModified", "Last-Modified", "mtime")]
    version = FileStat(int(size), int.from_bytes(sha256("\n".join(marks).encode()).digest()[:7]))
    return version, _content_checksum(info)


def _content_checksum(info: Mapping[str, Any]) -> str:
    """A checksum that copies of an object share. Other ETags, such as those of HTTP servers, differ among copies."""
    if info.get("md5Hash") or info.get("crc32c"):
        return str(info.get("md5Hash") or info["crc32c"])
    # S3: the MD5 of an object that was written at once. One of several parts has a name that ends with their number.
    etag = str(info.get("ETag") or "").strip('"')
    return etag if re.fullmatch("[0-9a-f]{32}", etag) else ""


def _no_ranges_error(url: str) -> BadInputError:
    return BadInputError(
        "the server does not send parts of a file",
        where=url,
        hint="use a server that answers requests with Range, or copy the file to a volume",
    )


def _fetch_range(url: str, start: int, end: int, size: int) -> bytes:
    """Bytes ``[start, end)`` of a file of this size; fewer if the store says that the file is shorter.

    Raises:
        BadInputError: trying again is of no use.
        RetryableError: every try failed, or had other bytes than were asked for.
    """
    scheme = urlsplit(url).scheme.lower()
    system = _file_system(scheme)
    if EXTRAS[scheme][0] != "http":
        return bytes(_call(url, lambda: system.cat_file(url, start=start, end=end)))
    from fsspec.asyn import sync

    return cast(bytes, _call(url, lambda: sync(system.loop, _get_range, system, url, start, end, size)))


async def _get_range(system: Any, url: str, start: int, end: int, size: int) -> bytes:
    """One answer of a server of HTTP. Not fsspec's: it takes any answer 206 for the range that it asked for."""
    session = await system.set_session()
    options = {**system.kwargs}
    headers = {**options.pop("headers", {}), "Accept-Encoding": "identity", "Range": f"bytes={start}-{end - 1}"}
    async with session.get(system.encode_url(url), headers=headers, **options) as answer:
        if answer.status == 416:  # the file became shorter
            return b""
        answer.raise_for_status()
        if answer.status != 206 and answer.content_length != end - start:
            # A small file is sent as a whole by some servers.
            if answer.content_length is None or answer.content_length >= size:
                raise _no_ranges_error(url)
            raise _WrongAnswerError(f"{answer.content_length} bytes where bytes {start} to {end - 1} were asked for")
        sent = re.match(r"bytes (\d+)-(\d+)/", answer.headers.get("Content-Range", "") if answer.status == 206 else "")
        if sent and (int(sent[1]), int(sent[2])) != (start, end - 1):
            raise _WrongAnswerError(f"bytes {sent[1]} to {sent[2]} where bytes {start} to {end - 1} were asked for")
        content: bytes = await answer.read()
        if len(content) != end - start:
            raise _WrongAnswerError(f"{len(content)} bytes where bytes {start} to {end - 1} were asked for")
        return content


class _WrongAnswerError(Exception):
    """A server sent other bytes than it was asked for."""

    def __init__(self, sent: str) -> None:
        super().__init__(f"the server sent {sent}")


# --------------------------------------------------------------------------------------------------
# Blocks.


class BlockStore:
    """Blocks of files, in memory and in a folder. Threads share it.

    Args:
        cache: the folder; None: memory only.
        memory: bytes of blocks in memory.
    """

    def __init__(self, cache: CacheFolder | None = None, memory: int = _MEMORY_BYTES) -> None:
        self.cache = cache
        self._memory = memory
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._held_bytes = 0
        self._unused_room = 0
        self._folder_fails = False
        self._files: dict[str, RemoteFile] = {}

    @property
    def room_ahead(self) -> int:
        """Bytes that may be fetched before somebody asks for them."""
        return self._memory // 2 if self.cache is None else self.cache.limit // 4

    def open_file(self, url: str) -> RemoteFile:
        """A file with its blocks here. The paths of a file share it, and what it knows of the version."""
        with self._lock:
            if url not in self._files:
                self._files[url] = RemoteFile(url, self)
            return self._files[url]

    def get(self, name: str, number: int) -> bytes | None:
        """A block; None: it must be fetched."""
        with self._lock:
            if (block := self._blocks.get((name, number))) is not None:
                self._blocks.move_to_end((name, number))
                return block
        if self.cache is None:
            return None
        path = self._path(name, number)
        try:
            stored = path.read_bytes()
        except OSError:
            return None
        if crc32(stored[4:]) != int.from_bytes(stored[:4]):
            path.unlink(missing_ok=True)  # a machine that failed while it was written
            return None
        touch(path)
        self._keep(name, number, stored[4:])
        return stored[4:]

    def has(self, name: str, number: int) -> bool:
        """Whether the block need not be fetched."""
        with self._lock:
            if (name, number) in self._blocks:
                return True
        return self.cache is not None and self._path(name, number).exists()

    def put(self, name: str, number: int, block: bytes) -> None:
        """Add a block. A folder that cannot be written is no error: the block stays in memory only."""
        self._keep(name, number, block)
        if self.cache is None or self._folder_fails:
            return
        path = self._path(name, number)
        temporary = temporary_path(path)
        try:
            if not self._take_room(self.cache, len(block) + 4):
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(crc32(block).to_bytes(4) + block)
            temporary.replace(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            if error.errno != errno.ENOENT:  # another process removed the empty folder meanwhile
                self._folder_fails = True
                _log.warning("%s: remote files are not cached there any more: %s", self.cache.folder, error.strerror)

    def folder_of(self, name: str) -> Path | None:
        """The folder of what belongs to a file; None: there is no cache."""
        return None if self.cache is None else self.cache.folder / name

    def _path(self, name: str, number: int) -> Path:
        assert self.cache is not None
        return self.cache.folder / name / f"{number:08}{BLOCK_SUFFIX}"

    def _keep(self, name: str, number: int, block: bytes) -> None:
        with self._lock:
            if (name, number) not in self._blocks:
                self._blocks[name, number] = block
                self._held_bytes += len(block)
            # Evict from memory what was used longest ago.
            while self._held_bytes > self._memory and len(self._blocks) > 1:
                _, oldest = self._blocks.popitem(last=False)
                self._held_bytes -= len(oldest)

    def _take_room(self, cache: CacheFolder, wanted: int) -> bool:
        """Room in the folder, of which a process takes a piece at once, because counting lists all files."""
        with self._lock:
            if self._unused_room < wanted:
                piece = max(wanted, cache.limit // 64)
                with cache.lock(wait=False) as is_mine:
                    if not is_mine:
                        return False  # a process that unpacks a large file: nobody waits for it
                    self._unused_room = min(piece, cache.evict_blocks(piece))
            self._unused_room -= wanted
            return self._unused_room >= 0


class _FetchThreads:
    """Threads that end with the process, whatever they wait for."""

    def __init__(self, count: int) -> None:
        self._tasks: queue.PriorityQueue[tuple[bool, int, Future[Any], Callable[[], Any]]] = queue.PriorityQueue()
        self._numbers = count_up()
        for number in range(count):
            threading.Thread(target=self._work, name=f"fetch-{number}", daemon=True).start()

    def submit(self, action: Callable[[], Any], *, is_ahead: bool) -> Future[Any]:
        """Run an action; those that nobody waits for yet come after all others."""
        future: Future[Any] = Future()
        self._tasks.put((is_ahead, next(self._numbers), future, action))
        return future

    def _work(self) -> None:
        while True:
            _, _, future, action = self._tasks.get()
            try:
                future.set_result(action())
            except BaseException as error:  # noqa: BLE001  raised where the result is taken
                future.set_exception(error)


@lru_cache(maxsize=1)
def _threads() -> _FetchThreads:
    return _FetchThreads(_FETCH_THREADS)


def _forget_parent() -> None:
    """A forked process has no threads of its parent's, and must not use its connections."""
    _file_system.cache_clear()
    _threads.cache_clear()


os.register_at_fork(after_in_child=_forget_parent)


class RemoteFile:
    """One file. Threads share it.

    Args:
        url: its address.
        store: has its blocks.
    """

    def __init__(self, url: str, store: BlockStore) -> None:
        self.url = url
        self.store = store
        self._lock = threading.Lock()
        self._version: tuple[float, FileStat] | None = None
        self._checksum = ""
        self._fetching: dict[tuple[str, int], Future[Any]] = {}

    def version(self, *, newest: bool = False) -> FileStat:
        """Of the file now, or some seconds ago."""
        with self._lock:
            known = self._version
        if known is not None and not newest and time.monotonic() - known[0] < FRESH_SECONDS:
            return known[1]
        asked = time.monotonic()
        version, checksum = _ask_version(self.url)
        with self._lock:
            self._version, self._checksum = (asked, version), checksum
        return version

    def checksum(self) -> str:
        """The store's own checksum of the content; empty: it has none, as a server of HTTP."""
        self.version()
        with self._lock:
            return self._checksum

    def read_block(self, version: FileStat, number: int) -> bytes:
        """A block of a version of the file.

        Raises:
            BadInputError: the file is another one by now.
        """
        name = self._name(version)
        while (block := self.store.get(name, number)) is None:
            future = self._fetch(version, number, number + 1)[0]
            fetched = future.result()
            if number in fetched:
                return cast(bytes, fetched[number])
        return block

    def prefetch(
        self, version: FileStat, ranges: Iterable[tuple[int, int]], *, is_ahead: bool = False
    ) -> list[Future[Any]]:
        """Begin to fetch what is missing of byte ranges, several requests at a time.

        Args:
            version: of the file.
            ranges: start and end of each.
            is_ahead: nobody waits for it yet.
        """
        name, last = self._name(version), -(-version.st_size // BLOCK_BYTES)
        numbers = sorted(
            {at for start, end in ranges for at in range(start // BLOCK_BYTES, min(last, -(-end // BLOCK_BYTES)))}
        )
        missing = [number for number in numbers if not self.store.has(name, number)]
        futures: list[Future[Any]] = []
        first = 0
        for at, number in enumerate(missing):
            is_end = (
                at + 1 == len(missing)
                or missing[at + 1] != number + 1
                or number + 1 - missing[first] >= _REQUEST_BLOCKS
            )
            if is_end:
                futures += self._fetch(version, missing[first], number + 1, is_ahead=is_ahead)
                first = at + 1
        return futures

    def _fetch(self, version: FileStat, first: int, end: int, *, is_ahead: bool = False) -> list[Future[Any]]:
        """Begin to fetch blocks, unless they are being fetched."""
        name = self._name(version)
        futures: list[Future[Any]] = []
        with self._lock:
            wanted = []
            for number in range(first, end):
                if (future := self._fetching.get((name, number))) is not None:
                    futures.append(future)
                else:
                    wanted.append(number)
            if wanted:
                future = _threads().submit(
                    lambda: self._fetch_now(version, wanted[0], wanted[-1] + 1), is_ahead=is_ahead
                )
                self._fetching.update({(name, number): future for number in wanted})
                futures.append(future)
        return futures

    def _fetch_now(self, version: FileStat, first: int, end: int) -> dict[int, bytes]:
        name = self._name(version)
        try:
            start, finish = first * BLOCK_BYTES, min(end * BLOCK_BYTES, version.st_size)
            try:
                content = _fetch_range(self.url, start, finish, version.st_size)
            except RetryableError:
                if self._is_another(version):
                    raise self.changed_error() from None
                raise
            # A file of one request is of one version; its length tells most of the others.
            is_whole = finish - start == version.st_size
            if (len(content) != finish - start or not is_whole) and self.version(newest=True) != version:
                raise self.changed_error()
            if len(content) != finish - start:
                raise RetryableError(
                    f"cannot be read: {len(content)} of {finish - start} bytes came from byte {start} on",
                    where=self.url,
                    hint="is the server reachable?",
                )
            blocks = {
                number: content[(number - first) * BLOCK_BYTES : (number - first + 1) * BLOCK_BYTES]
                for number in range(first, end)
            }
            for number, block in blocks.items():
                self.store.put(name, number, block)
            return blocks
        finally:
            with self._lock:
                for number in range(first, end):
                    self._fetching.pop((name, number), None)

    def _is_another(self, version: FileStat) -> bool:
        """Whether the file has another version by now; false if the server does not answer."""
        try:
            return self.version(newest=True) != version
        except EdlError:
            return False

    def changed_error(self) -> BadInputError:
        """The error for a file that is another one than when its records were counted."""
        return BadInputError(
            "the file changed while it was in use",
            where=self.url,
            hint="write new files beside the old ones instead of over them",
        )

    def _name(self, version: FileStat) -> str:
        return sha256(f"{self.url}\n{version.st_size}\n{version.st_mtime_ns}".encode()).hexdigest()[:24]


class RemoteStream(io.RawIOBase):
    """One version of a file, from which a thread reads. Reading in sequence fetches ahead.

    Args:
        file: the file.
    """

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self.version = file.version()
        self.name = file.url
        self._position = 0
        self._next_block = 0
        self._sequence = 0
        self._reads_ahead = True

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.version.st_size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative position {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self.version.st_size - self._position)
        if wanted <= 0:
            return 0
        number, at = divmod(self._position, BLOCK_BYTES)
        self._read_ahead(number, self._position + wanted)
        block = self._file.read_block(self.version, number)
        part = block[at : at + wanted]
        view[: len(part)] = part
        self._position += len(part)
        return len(part)

    def read(self, size: int | None = -1) -> bytes:
        """All bytes that are asked for, but at the end of the file."""
        rest = max(0, self.version.st_size - self._position)
        wanted = rest if size is None or size < 0 else min(size, rest)
        content = bytearray(wanted)
        done = 0
        while done < wanted:
            done += self.readinto(memoryview(content)[done:])
        return bytes(content)

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch byte ranges now, several requests at a time. This is all that the caller reads."""
        self._reads_ahead = False
        for future in self._file.prefetch(self.version, ranges):
            future.result()

    def _read_ahead(self, number: int, end: int) -> None:
        if not self._reads_ahead:
            return
        last = -(-end // BLOCK_BYTES)
        if number == self._next_block and number:
            self._sequence += 1
        elif number != self._next_block - 1:
            self._sequence = 0
        if number == self._next_block - 1 and last <= self._next_block:
            return
        self._next_block = number + 1
        ahead = min(_READ_AHEAD_BLOCKS, 4 * self._sequence)
        if last + ahead > number + 1:
            self._file.prefetch(self.version, [(number * BLOCK_BYTES, (last + ahead) * BLOCK_BYTES)])


# --------------------------------------------------------------------------------------------------
# Paths.


@total_ordering
class RemotePath:
    """The address of a file or folder. It has those methods of ``Path`` that readers use.

    Args:
        url: the address.
        store: has the blocks of all files of a data set.
        kind: ``file`` or ``directory``, as a listing says; None: unknown.
    """

    def __init__(self, url: str, store: BlockStore, kind: str | None = None) -> None:
        scheme, _, rest = url.partition("://")
        parts = urlsplit(url)
        if ".." in unquote(parts.path).split("/") or not parts.netloc:
            outside = "the path leads out of what the address names"
            raise BadInputError(
                outside if parts.netloc else "the address names no host and no bucket",
                where=url,
                hint="write it as s3://bucket/folder/file, without ..",
            )
        self._url = f"{scheme.lower()}://{rest.rstrip('/')}"
        self._store = store
        self._kind = kind
        self._path = PurePosixPath(parts.path if scheme.lower().startswith("http") else "/" + rest)
        self._file = store.open_file(self._url)

    def __str__(self) -> str:
        return self._url

    def __repr__(self) -> str:
        return f"RemotePath({self._url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and other._url == self._url

    def __lt__(self, other: RemotePath) -> bool:
        return self._url < other._url

    def __hash__(self) -> int:
        return hash(self._url)

    def __truediv__(self, name: str) -> RemotePath:
        base, _, query = self._url.partition("?")
        return RemotePath(f"{base}/{name}" + (f"?{query}" if query else ""), self._store)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._path.name

    @property
    def suffix(self) -> str:
        """The end of the name, from its last dot on."""
        return self._path.suffix

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return self._path.stem

    @property
    def parent(self) -> RemotePath:
        """The folder that contains it."""
        return RemotePath(self._url.partition("?")[0].rpartition("/")[0], self._store)

    @property
    def file(self) -> RemoteFile:
        """What reads it."""
        return self._file

    def index_path(self, suffix: str) -> Path | None:
        """Where an index of the file is kept; None: there is no cache."""
        folder = self._store.folder_of(sha256(self._url.encode()).hexdigest()[:16])
        return None if folder is None else folder / (self.name + suffix)

    def without_cache(self) -> RemotePath:
        """The same file, of which no block goes into the folder."""
        return RemotePath(self._url, BlockStore())

    def open(self, mode: str = "rb", buffering: int = -1) -> Any:
        """The content; ``buffering=0`` as in ``Path.open``."""
        assert mode == "rb", "remote files are only read"
        stream = RemoteStream(self._file)
        return io.BufferedReader(stream, 1 << 16) if buffering else stream

    def stat(self) -> FileStat:
        """Size and version."""
        return self._file.version()

    def read_bytes(self) -> bytes:
        """The whole content."""
        with RemoteStream(self._file) as stream:
            return stream.read()

    def is_file(self) -> bool:
        if self._kind is None:
            with suppress(BadInputError):
                self.stat()
                self._kind = "file"
        return self._kind == "file"

    def is_dir(self) -> bool:
        """Whether it is a folder. HTTP has none."""
        if self._url.startswith("http"):
            return False
        if self._kind is None:
            system = _file_system(self._scheme)
            self._kind = "directory" if _call(self._url, lambda: system.isdir(self._url)) else None
        return self._kind == "directory"

    def exists(self) -> bool:
        """Whether it is a file or a folder."""
        return self.is_file() or self.is_dir()

    def iterdir(self) -> Iterator[RemotePath]:
        """What is in the folder."""
        system = _file_system(self._scheme)
        for each in _call(self._url, lambda: system.ls(self._url, detail=True)):
            path = self._listed(each)
            if path != self:
                yield path

    def find(self) -> list[RemotePath]:
        """All files below the folder, sorted."""
        system = _file_system(self._scheme)
        entries = _call(self._url, lambda: system.find(self._url, detail=True))
        return sorted(self._listed(each) for each in entries.values())

    def glob(self) -> list[RemotePath]:
        """What matches the address, taken as a pattern; sorted."""
        if self._url.startswith("http"):
            raise BadInputError(
                "a pattern needs a listing, which HTTP has not", where=self._url, hint="list the files one by one"
            )
        system = _file_system(self._scheme)
        entries = _call(self._url, lambda: system.glob(self._url, detail=True))
        return sorted(self._listed(each) for each in entries.values())

    @property
    def _scheme(self) -> str:
        return self._url.partition("://")[0]

    def _listed(self, info: Any) -> RemotePath:
        name = str(info["name"])
        return RemotePath(name if "://" in name else f"{self._scheme}://{name}", self._store, info.get("type"))


def fetch_files(paths: Iterable[Path]) -> None:
    """Fetch whole files of a minibatch, several at a time; does nothing for files of this machine."""
    remote = [cast(RemotePath, path).file for path in paths if isinstance(path, RemotePath)]
    _run_all([partial(_fetch_whole, file) for file in remote])


def fetch_ahead(files: Iterable[tuple[Path, FileStat, Sequence[tuple[int, int]]]]) -> None:
    """Begin to fetch byte ranges that are read soon, in this order, as far as memory has room for them.

    Args:
        files: path, version and ranges; those of this machine are left out.
    """
    room: dict[int, int] = {}
    for path, version, ranges in files:
        if not isinstance(path, RemotePath):
            continue
        store = cast(RemotePath, path).file.store
        left = room.setdefault(id(store), store.room_ahead)
        room[id(store)] = left - sum(end - start for start, end in ranges)
        if left > 0:
            cast(RemotePath, path).file.prefetch(version, ranges, is_ahead=True)


def fetch_ends(paths: Iterable[Path]) -> None:
    """Fetch the last block of each file, which has the footer; several at a time."""
    remote = [cast(RemotePath, path).file for path in paths if isinstance(path, RemotePath)]
    _run_all([partial(_fetch_end, file) for file in remote])


def _fetch_whole(file: RemoteFile) -> None:
    with suppress(EdlError):  # whoever reads the file reports it
        version = file.version()
        for future in file.prefetch(version, [(0, version.st_size)]):
            future.result()


def _fetch_end(file: RemoteFile) -> None:
    with suppress(EdlError):
        version = file.version()
        for future in file.prefetch(version, [(max(0, version.st_size - (1 << 16)), version.st_size)]):
            future.result()


def _run_all(actions: Sequence[Callable[[], None]]) -> None:
    if not actions:
        return
    tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    for action in actions:
        tasks.put(action)

    def work() -> None:
        with suppress(queue.Empty):
            while True:
                tasks.get_nowait()()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_FETCH_THREADS, len(actions)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
