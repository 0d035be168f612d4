"""Finds the Docker engine and connects to it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from docker import APIClient
from docker.context import ContextAPI
from docker.errors import APIError, DockerException
from docker.utils import kwargs_from_env
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from edl.api.errors import BadInputError, EdlError

# --------------------------------------------------------------------------------------------------
# Errors of a Docker engine, translated in one place.


START_HINT = (
    "start Docker (`systemctl start docker`, Docker Desktop, colima ...), or set DOCKER_HOST to an engine's "
    "unix:// or tcp:// address"
)


class NoEngineError(BadInputError):
    """No Docker engine answers."""


class EngineError(EdlError):
    """The engine refused a request, failed, or the connection broke."""


class BuildFailedError(EngineError):
    """A step of the Dockerfile failed."""


class ImagePushRefusedError(EngineError):
    """A registry refused the image."""


def no_engine_error(address: str, reason: BaseException) -> NoEngineError:
    """The error for an engine that does not answer at the address."""
    if is_caused_by(reason, PermissionError):
        hint = "your user may not use this socket: join the group that owns it (`sudo usermod -aG docker $USER`)"
        return NoEngineError("no permission to talk to the Docker engine", where=address, hint=hint)
    return NoEngineError("no Docker engine answers", where=address, hint=START_HINT)


def is_caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether an error of this kind caused ``error``: in its chain, or wrapped in its arguments."""
    checked_ids: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        candidate = waiting.pop()
        if isinstance(candidate, kind):
            return True
        if isinstance(candidate, BaseException) and id(candidate) not in checked_ids:
            checked_ids.add(id(candidate))
            waiting += [candidate.__cause__, candidate.__context__, *candidate.args]
    return False


@contextmanager
def translate_docker_errors(address: str) -> Iterator[None]:
    """Translate errors of the library and its transport to :class:`EngineError`."""
    try:
        yield
    except APIError as error:
        raise EngineError(
            f"the Docker engine refused the request: {error.explanation or error}", where=address
        ) from error
    except DockerException as error:
        raise EngineError(str(error), where=address) from error
    except (RequestException, HTTPError, OSError) as error:
        raise EngineError(
            f"the connection to the Docker engine was lost: {error}", where=address, hint="try again"
        ) from error


DockerClient: TypeAlias = Any
"""A ``docker.APIClient``. The library has no type annotations."""

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
GREETING_TIMEOUT = 10.0
"""Seconds within which the engine must answer with its API version."""
SILENCE_TIMEOUT = 600.0
"""Seconds without a message after which a working engine counts as gone."""
_SCHEMES = ("unix://", "tcp://", "http://", "https://", "npipe://")


def engine_address(environment: Mapping[str, str]) -> str:
    """The engine's address: ``DOCKER_HOST``, else that of the current context of the ``docker``
    command.

    Raises:
        BadInputError: the client does not support the address's scheme, such as ssh://.
    """
    address = environment.get("DOCKER_HOST") or _context_address() or DEFAULT_ADDRESS
    if not address.startswith(_SCHEMES):
        raise BadInputError(
            "an engine's address must start with unix:// or tcp://", where=f"DOCKER_HOST={address}", hint=START_HINT
        )
    return address


@dataclass(frozen=True, slots=True)
class DockerEngine:
    """An engine that answers.

    Attributes:
        client: the library's client.
        address: the engine's address, for messages.
    """

    client: DockerClient
    address: str


@contextmanager
def connect_engine(environment: Mapping[str, str] | None = None) -> Iterator[DockerEngine]:
    """Connect to the engine that the environment names, for the duration of the block.

    TLS follows ``DOCKER_TLS_VERIFY`` and ``DOCKER_CERT_PATH``.

    Raises:
        NoEngineError: no engine answers at the address, or the user has no access to it.
        BadInputError: the address is invalid.
    """
    known = os.environ if environment is None else environment
    where = engine_address(known)
    client = _make_client(where, kwargs_from_env(environment=dict(known)).get("tls") or False)
    try:
        yield DockerEngine(client, where)
    finally:
        client.close()


def _make_client(where: str, tls: object) -> DockerClient:
    try:
        if where.startswith("unix://"):
            os.stat(where.removeprefix("unix://"))  # raises first: the library would leak a socket
        client = APIClient(base_url=where, version="auto", timeout=GREETING_TIMEOUT, tls=tls)
    except (DockerException, OSError, ValueError) as error:
        raise no_engine_error(where, error) from error
    client.timeout = SILENCE_TIMEOUT
    return client


def _context_address() -> str | None:
    try:
        context = ContextAPI.get_current_context()
    except (DockerException, OSError, ValueError):
        return None  # the context is damaged; the default socket may still answer
    return context.Host if context else None
