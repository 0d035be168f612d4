"""Two workers notice that their model code differs, although their variables have the same names and shapes."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from support.job_folder import write_module

import edl
from edl.api.job_spec import ModelSpec
from edl.keras.zoo_code import digest_code, digest_zoo_code

pytestmark = pytest.mark.tensorflow

from edl.keras.model_contract import load_model_module  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402
from edl.keras.replica_state import ReplicaState  # noqa: E402

SOURCE = b'''
"""A module."""

def loss(labels, predictions):
    """The loss."""
    return labels - predictions
'''


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        (b'"""A module."""', b'"""Another text."""', True),
        (b'"""The loss."""', b'"""What is trained."""', True),
        (b"labels - predictions", b"(labels  -\n  predictions)  # the difference", True),
        (b"labels - predictions", b"labels + predictions", False),
        (b"def loss", b"def loss(:", False),
    ],
)
def test_only_what_the_code_does_is_compared(old: bytes, new: bytes, is_same: bool) -> None:
    assert old in SOURCE
    assert (digest_code(SOURCE.replace(old, new)) == digest_code(SOURCE)) is is_same


MODULE = """
import keras
from {name}_parts import difference

def custom_model():
    return keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])

def loss(labels, predictions):
    return difference(labels, predictions) ** 2

optimizer = keras.optimizers.SGD
eval_metrics_fn = dict

def feed(dataset, mode, metadata):
    return dataset
"""
PARTS = "def difference(labels, predictions):\n    return labels - predictions\n"


def build_rank(folder: Path, name: str, parts: str) -> ReplicaState:
    """A rank whose module imports another one of its zoo."""
    (folder / name).mkdir()
    zoo = write_module(folder / name, "zoo_code", MODULE.format(name=name))
    write_module(folder / name, f"{name}_parts", parts)
    module = load_model_module(ModelSpec(zoo=str(zoo), definition="zoo_code.custom_model", params={}))
    return ModelReplica(module, seed=1, rank_seed=0, sample=None)


def test_ranks_with_another_loss_have_another_fingerprint_and_the_file_is_named(tmp_path: Path) -> None:
    """The file that the module imports has another sign, as when it was edited before a worker was replaced."""
    # Modules of one name in one process: each zoo has its own.
    first = build_rank(tmp_path, "zoo_code_one", PARTS)
    again = first.fingerprint()
    second = build_rank(tmp_path, "zoo_code_two", PARTS.replace("-", "+"))
    assert first.fingerprint() == again != second.fingerprint()
    assert first.describe_variables().keys() >= {"code of zoo_code.py", "code of zoo_code_one_parts.py"}


@pytest.mark.repetition
def test_packages_of_an_environment_in_the_zoo_are_no_model_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project folder with its virtual environment: two workers need not have imported the same packages."""
    packages = tmp_path / ".venv/lib/python3.11/site-packages"
    for folder, name in ((packages, "zoo_code_package"), (tmp_path, "zoo_code_own")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text("VALUE = 1\n")
        monkeypatch.syspath_prepend(folder)
        import_module(name)
    assert list(digest_zoo_code(tmp_path)) == ["zoo_code_own.py"]
    repository = Path(edl.__file__).parents[2]
    assert not any(path.startswith("platform/edl/") for path in digest_zoo_code(repository))
