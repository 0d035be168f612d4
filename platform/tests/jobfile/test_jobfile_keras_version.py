"""The backend of Keras: only TensorFlow trains under EDL's strategies, and others are refused before an import."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.jobfile.keras_version import check_backend, find_backend


def write_config(folder: Path, text: str) -> dict[str, str]:
    folder.mkdir(parents=True)
    (folder / "keras.json").write_text(text)
    return {"HOME": str(folder.parent)}


def test_without_a_choice_keras_uses_tensorflow(tmp_path: Path) -> None:
    check_backend({"HOME": str(tmp_path)})
    check_backend({})
    check_backend({"KERAS_BACKEND": "tensorflow"})


@pytest.mark.parametrize("backend", ["jax", "torch", "numpy", "openvino", "nosuch"])
def test_another_backend_is_refused_by_name_with_the_way_that_is_open(backend: str) -> None:
    with pytest.raises(BadInputError) as error:
        check_backend({"KERAS_BACKEND": backend})
    assert not missing_keys(str(error.value), "KERAS_BACKEND", backend, "TensorFlow", "client.steps()")


def test_the_variable_wins_over_the_file_of_keras(tmp_path: Path) -> None:
    home = write_config(tmp_path / ".keras", json.dumps({"backend": "jax"}))
    assert find_backend(home) == ("jax", str(tmp_path / ".keras" / "keras.json"))
    assert find_backend(home | {"KERAS_BACKEND": "tensorflow"})[0] == "tensorflow"
    assert find_backend({"HOME": "/nowhere", "KERAS_HOME": str(tmp_path / ".keras")})[0] == "jax"


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"backend": null}', "{"])
def test_a_file_that_says_nothing_changes_nothing(tmp_path: Path, text: str) -> None:
    assert find_backend(write_config(tmp_path / ".keras", text))[0] == "tensorflow"
