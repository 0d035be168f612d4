"""Which store a parameter server takes, and why; with how many threads."""

from __future__ import annotations

import builtins
import sys

import numpy as np
import pytest
from support.text_keys import missing_keys

from edl.api.job_spec import ParameterServerSpec
from edl.api.pod_spec import ResourceSpec
from edl.api.tables import TableSpec
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_store import NumpyParameterStore
from edl.ps import model_state
from edl.ps.model_state import NATIVE_STORE, NUMPY_STORE, ModelState, NativeExtension, StoreFactory, choose_store
from edl.ps.server_process import table_thread_count
from edl.transport.peer_errors import PeerRefusedError
from edl.transport.process_identity import count_available_cores

BUILT = NativeExtension(("sgd", "adam"))
ABSENT = NativeExtension(problem="the native extension cannot be imported (no such file)")
ADAM, FTRL = OptimizerSpec("adam"), OptimizerSpec("ftrl")
NOTHING = np.empty(0, np.float32)


def declared(optimizer: OptimizerSpec) -> ModelDeclaration:
    return ModelDeclaration((), (TableSpec("emb", 9, 2, {"name": "zeros"}, 1),), optimizer, "model")


@pytest.mark.parametrize(
    ("wanted", "found", "optimizer", "value", "reason"),
    [
        ("auto", BUILT, None, NATIVE_STORE, "is available"),
        ("auto", BUILT, ADAM, NATIVE_STORE, "is available"),
        ("auto", BUILT, FTRL, NUMPY_STORE, "ftrl"),
        ("auto", ABSENT, ADAM, NUMPY_STORE, "no such file"),
        ("native", BUILT, ADAM, NATIVE_STORE, "ps.store asks for it"),
        ("numpy", BUILT, ADAM, NUMPY_STORE, "ps.store asks for it"),
        ("numpy", ABSENT, ADAM, NUMPY_STORE, "ps.store asks for it"),
    ],
)
def test_the_choice_and_its_reason(wanted, found, optimizer, value, reason):
    chosen = choose_store(wanted, found, optimizer)
    assert chosen.value == value
    assert reason in chosen.reason


@pytest.mark.parametrize(
    ("found", "optimizer", "message", "hint"),
    [
        (ABSENT, ADAM, r"ps\.store is native.*extension", "make native"),
        (BUILT, FTRL, r"ps\.store is native.*ftrl", "ps.store"),
    ],
)
def test_native_tables_that_cannot_be_had_are_refused_when_they_are_declared_and_when_restored(
    found, optimizer, message, hint
):
    wants = StoreFactory("native", native_extension=found)
    contents = ModelState(wants)
    snapshot = NumpyParameterStore(declared(optimizer), NOTHING).take_snapshot()
    for refused in (
        lambda: contents.declare_model(declared(optimizer), NOTHING),
        lambda: wants.restore_store(snapshot),
    ):
        with pytest.raises(PeerRefusedError, match=message) as caught:
            refused()
        assert caught.value.kind == "model"
        assert hint in caught.value.hint
    assert not contents.initialized


def test_without_the_extension_numpy_serves_and_the_reason_is_the_import_s(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments):
        if name == "edl.numerics.native_table":
            raise ImportError("libstdc++ is too old")
        return real(name, *arguments)

    monkeypatch.delitem(sys.modules, "edl.numerics.native_table", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    extension = model_state.find_extension()
    assert (extension.optimizers, "libstdc++ is too old" in extension.problem) == ((), True)
    assert type(StoreFactory(native_extension=extension).make_store(declared(ADAM), NOTHING)) is NumpyParameterStore


def test_that_the_optimizer_decided_is_said_once_it_is_known(caplog):
    caplog.set_level("INFO")
    StoreFactory(native_extension=BUILT).make_store(declared(FTRL), NOTHING)
    (message,) = [record.getMessage() for record in caplog.records]
    assert not missing_keys(message, "numpy", "ftrl", "sgd, adam")


@pytest.mark.parametrize(
    ("cpu", "count", "machine", "in_pod", "share"),
    [
        (2.0, 1, 16, True, 2),
        (0.5, 1, 16, True, 1),
        (2.5, 4, 16, True, 3),
        (64.0, 1, 96, True, 8),
        (4.0, 1, 2, True, 2),
        (2.0, 1, 2, False, 2),
        (2.0, 2, 2, False, 1),
        (2.0, 4, 2, False, 1),
        (2.0, 3, 16, False, 5),
    ],
)
def test_threads_are_the_cores_that_a_parameter_server_has(cpu, count, machine, in_pod, share):
    ps = ParameterServerSpec(count=count, resources=ResourceSpec(cpu=cpu))
    assert table_thread_count(ps, machine, in_pod=in_pod) == share


def test_cores_are_those_that_this_process_may_use():
    assert count_available_cores() >= 1
