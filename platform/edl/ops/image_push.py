"""Pushes an image: progress by layer, and the refusals of registries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from docker.errors import APIError

from edl.ops.docker_engine import DockerEngine, ImagePushRefusedError, translate_docker_errors

_NO_ACCESS = re.compile(r"denied|unauthorized|no basic auth|authentication required|forbidden", re.IGNORECASE)
_NO_IMAGE = re.compile(r"does not exist locally|no such image", re.IGNORECASE)
_DONE_STATUSES = ("Pushed", "Layer already exists")


@dataclass(frozen=True, slots=True)
class PushProgress:
    """The progress of a push.

    Attributes:
        sent_bytes: bytes sent of each layer that has started.
        total_bytes: size of each of these layers.
        waiting_layers: layers that have not started.
        finished_layers: layers that the registry has.
        digest: digest of the pushed image, at the end.
    """

    sent_bytes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    total_bytes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    waiting_layers: frozenset[str] = frozenset()
    finished_layers: frozenset[str] = frozenset()
    digest: str = ""

    def with_message(self, message: Mapping[str, Any]) -> PushProgress:
        """The state after one more message of the engine."""
        if "aux" in message:
            return replace(self, digest=str(message["aux"].get("Digest", "")))
        layer, status = message.get("id"), message.get("status", "")
        if layer is None:
            return self
        if status in _DONE_STATUSES:
            sent = {**self.sent_bytes, layer: self.total_bytes[layer]} if layer in self.total_bytes else self.sent_bytes
            return replace(
                self,
                sent_bytes=sent,
                waiting_layers=self.waiting_layers - {layer},
                finished_layers=self.finished_layers | {layer},
            )
        if status == "Pushing":
            return self._with_layer_progress(layer, message.get("progressDetail") or {})
        return (
            replace(self, waiting_layers=self.waiting_layers | {layer}) if status in ("Preparing", "Waiting") else self
        )

    def _with_layer_progress(self, layer: str, detail: Mapping[str, int]) -> PushProgress:
        sent = detail.get("current", 0)
        size = max(detail.get("total", 0), sent)  # totals are estimates, and more may be sent
        return replace(
            self,
            sent_bytes={**self.sent_bytes, layer: sent},
            total_bytes={**self.total_bytes, layer: size},
            waiting_layers=self.waiting_layers - {layer},
        )


def push_image(engine: DockerEngine, image: str) -> Iterator[PushProgress]:
    """Push an image to the registry that its name says, with the credentials of ``docker login``.

    Raises:
        ImagePushRefusedError: the engine has no such image, or the registry refuses it.
        EngineError: the connection to the engine broke.
    """
    with translate_docker_errors(engine.address):
        try:
            messages = engine.client.push(image, stream=True, decode=True)
        except APIError as error:
            raise push_error(str(error.explanation or error), image) from error
        yield from push_progress(messages, image)


def push_progress(messages: Iterable[Mapping[str, Any]], image: str) -> Iterator[PushProgress]:
    """The states of a push, from the engine's messages.

    Raises:
        ImagePushRefusedError: a message reports an error.
    """
    state, error = PushProgress(), ""
    for message in messages:  # read to the end even after an error: this frees the connection
        error = error or str(message.get("error", ""))
        state = state.with_message(message)
        yield state
    if error:
        raise push_error(error, image)


def push_error(reason: str, image: str) -> ImagePushRefusedError:
    """The error of a push, from the engine's message."""
    if _NO_IMAGE.search(reason):
        hint = "build it with `edl zoo build PATH --image NAME`; `docker images` lists the images"
        return ImagePushRefusedError("there is no such image in the Docker engine", where=image, hint=hint)
    hint = "check the registry's name, and that it is reachable"
    if _NO_ACCESS.search(reason):
        hint = f"log in with `docker login{_registry_argument(image)}` as a user who may push there"
    return ImagePushRefusedError(f"the registry refuses the image: {reason.strip()}", where=image, hint=hint)


def _registry_argument(image: str) -> str:
    host = image.partition("/")[0]
    return f" {host}" if "/" in image and ("." in host or ":" in host or host == "localhost") else ""
