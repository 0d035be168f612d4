"""Which images `make images` and the end-to-end tests build, without a Docker engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edl import __version__

ROOT = Path(__file__).resolve().parents[3]
FOR_USERS = ["edl/edl:dev", f"edl/edl:{__version__}", "edl/submitter:dev", f"edl/submitter:{__version__}"]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that builds and tags give, in order."""
    monkeypatch.syspath_prepend(str(ROOT))
    from e2e import images

    names: list[str] = []

    def record(*command: object, **_options: object) -> str:
        words = [str(word) for word in command]
        is_tag = words[:2] == ["docker", "tag"]
        names.append(words[3] if is_tag else words[words.index("-t" if "-t" in words else "--image") + 1])
        return ""

    monkeypatch.setattr(images, "run_program", record)
    return names


def test_make_images_builds_what_users_install_from(built: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from e2e import images

    monkeypatch.setattr(sys, "argv", ["e2e.images", "--build"])
    images.main()
    assert built == FOR_USERS


def test_the_tests_build_their_own_images_too(built: list[str]) -> None:
    from e2e import images

    assert images.build_images() == images.JobImages()
    assert built == [*FOR_USERS, "edl/e2e-postgresql:dev", "edl/e2e:dev"]
