"""What goes wrong with a Docker engine, translated once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docker.errors import APIError, DockerException
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from edl.api.errors import BadInputError, EdlError

START_HINT = (
    "start Docker (`systemctl start docker`, Docker Desktop, colima ...), or set DOCKER_HOST to an engine's "
    "unix:// or tcp:// address"
)


class NoEngineError(BadInputError):
    """No Docker engine answers."""


class EngineError(EdlError):
    """The engine refused, failed, or went away in the middle."""


class BuildFailedError(EngineError):
    """A step of the Dockerfile failed."""


class PushRefusedError(EngineError):
    """A registry did not take the image."""


def no_engine_error(address: str, reason: BaseException) -> NoEngineError:
    """The error for an engine that does not answer at the address."""
    if is_caused_by(reason, PermissionError):
        hint = "your user may not use this socket: join the group that owns it (`sudo usermod -aG docker $USER`)"
        return NoEngineError("no permission to talk to the Docker engine", where=address, hint=hint)
    return NoEngineError("no Docker engine answers", where=address, hint=START_HINT)


def is_caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether an error of this kind is below ``error``: in its chain of causes, or wrapped in its arguments."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        found = waiting.pop()
        if isinstance(found, kind):
            return True
        if isinstance(found, BaseException) and id(found) not in seen:
            seen.add(id(found))
            waiting += [found.__cause__, found.__context__, *found.args]
    return False


@contextmanager
def translate_docker_errors(address: str) -> Iterator[None]:
    """Raise what the library and its transport raise as :class:`EngineError`."""
    try:
        yield
    except APIError as error:
        raise EngineError(f"the Docker engine refuses: {error.explanation or error}", where=address) from error
    except DockerException as error:
        raise EngineError(str(error), where=address) from error
    except (RequestException, HTTPError, OSError) as error:
        raise EngineError(f"the Docker engine went away: {error}", where=address, hint="try again") from error
