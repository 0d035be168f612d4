"""images/: what goes into EDL's own images agrees with pyproject.toml and with what builds are checked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edl.ops.image_build import ENTRY_POINT, IMAGE_LABEL

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "images"


def requirements(*options: str) -> list[str]:
    command = [sys.executable, IMAGES / "requirements.py", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_submitter_is_light() -> None:
    listed = requirements()
    assert any(line.startswith("kubernetes") for line in listed)
    assert not [line for line in listed if line.startswith(("tensorflow", "keras", "numpy", "grpcio", "protobuf"))]


@pytest.mark.parametrize("tensorflow", ["tensorflow-cpu", "tensorflow[and-cuda]"])
def test_one_tensorflow_is_asked_for_in_the_versions_of_pyproject(tensorflow: str) -> None:
    listed = requirements("--extra", "train", "--tensorflow", tensorflow)
    assert [line for line in listed if line.startswith("tensorflow")] == [f"{tensorflow}>=2.21,<2.22"]
    assert len(set(listed)) == len(listed)


def test_the_variant_for_keras_2_has_one_tensorflow() -> None:
    listed = requirements("--extra", "keras2", "--tensorflow", "tensorflow")
    assert [line for line in listed if line.startswith(("tensorflow", "tf_keras"))] == [
        "tensorflow>=2.21,<2.22",
        "tf_keras>=2.21,<2.22",
    ]
    assert '--extra "${EXTRA}"' in (IMAGES / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize(("file", "kind"), [("Dockerfile", "training"), ("submitter.Dockerfile", "submitter")])
def test_images_say_what_they_are_and_run_as_nobody_special(file: str, kind: str) -> None:
    text = (IMAGES / file).read_text(encoding="utf-8")
    assert f'{IMAGE_LABEL}="{kind}"' in text
    assert text.endswith(f'USER 1000:1000\nWORKDIR /home/edl\nENTRYPOINT ["{ENTRY_POINT}"]\n')


def test_what_the_images_copy_is_in_the_context() -> None:
    allowed = {
        line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"
    }
    assert allowed >= {"pyproject.toml", "constraints.txt", "README.md", "images/requirements.py", "images/slim.py"}
    assert all((ROOT / path).exists() for path in allowed)
    for file in ("Dockerfile", "submitter.Dockerfile"):
        for line in (IMAGES / file).read_text(encoding="utf-8").splitlines():
            command, *sources = line.split()[:-1] or [""]
            if command == "COPY" and not sources[0].startswith("--"):
                assert [
                    each for each in sources if not any(path.startswith(each.rstrip("/")) for path in allowed)
                ] == []
