"""The packages of the extra ``train``, which the light client does without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from edl.api.errors import BadInputError

_PACKAGE_BY_MODULE: Mapping[str, str] = {"google": "protobuf"}
"""Packages whose modules have another name than the one that pip installs."""


@contextmanager
def needing_train_extra(what: str) -> Iterator[None]:
    """Name a package that is missing, and how to install it; ``what`` is what needs it, with its verb."""
    try:
        yield
    except ImportError as error:
        package = _PACKAGE_BY_MODULE.get((error.name or "").partition(".")[0], error.name)
        raise BadInputError(f"{what} the package {package}", hint="pip install 'edl-platform[train]'") from error
