"""Prediction: every record once, in files that a repeated task replaces, or through the user's processor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker.loop_harness import LEASE, LinearNetwork, LoopHarness, record, task

from edl.api.errors import BadInputError, StorageError
from edl.keras.user_code import UserCodeError
from edl.worker.lease_client import LeasedTask
from edl.worker.predictor import NpzOutput, PredictionOutput, Predictor, ProcessorOutput, outputs_by_name
from edl.worker.stored_weights import StoredWeights


@pytest.fixture
def harness() -> Iterator[LoopHarness]:
    harness = LoopHarness()
    yield harness
    harness.close()


SLAB = np.array([1, 10, 100], np.float32)


def predictor(harness: LoopHarness, output: PredictionOutput) -> Predictor:
    return Predictor(
        LinearNetwork(),
        SLAB,
        StoredWeights.empty(),
        output,
        harness.streams["prediction"],
        harness.leases,
        harness.progress,
        harness.gate,
    )


def expected(start: int, end: int) -> np.ndarray:
    return np.array([record(i)[:-1] @ SLAB for i in range(start, end)])


def test_each_range_gives_one_file_with_its_outputs(harness: LoopHarness, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    predict = predictor(harness, NpzOutput(out, ["s"]))
    for leased in harness.take(task(1, 0, 10, "prediction"), task(2, 10, 12, "prediction")):
        predict.run(leased)
    harness.progress.send_all()

    assert sorted(path.name for path in out.iterdir()) == ["s-0-10.npz", "s-10-12.npz"]
    with np.load(out / "s-0-10.npz") as arrays:
        assert (arrays["start"], arrays["end"], arrays["source"]) == (0, 10, "s")
        np.testing.assert_array_equal(arrays["outputs"], expected(0, 10))
    assert len(harness.master.requests("Report")) == 2


def test_a_task_that_is_done_twice_leaves_one_file(harness: LoopHarness, tmp_path: Path) -> None:
    predict = predictor(harness, NpzOutput(tmp_path, ["s"]))
    for leased in harness.take(task(1, 0, 10, "prediction"), task(2, 0, 10, "prediction")):
        predict.run(leased)
    assert [path.name for path in tmp_path.iterdir()] == ["s-0-10.npz"]


def test_files_say_nothing_before_the_range_is_complete(harness: LoopHarness, tmp_path: Path) -> None:
    """What was computed is in this process only: a range that is given back must be predicted as a whole."""
    files = NpzOutput(tmp_path, ["s"])
    (leased,) = harness.take(task(1, 0, 12, "prediction"))
    end = files.end_range

    def ended(leased: LeasedTask) -> None:
        harness.progress.send_all()
        assert harness.master.requests("Progress")[-1].leases[0].through == 0
        end(leased)

    files.end_range = ended  # type: ignore[method-assign]
    predictor(harness, files).run(leased)
    assert len(harness.master.requests("Progress")) == 1


class RecordingProcessor:
    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def process(self, predictions: Any, worker_id: int) -> None:
        self.calls.append((len(predictions), worker_id))


def test_a_processor_gets_every_minibatch_and_each_is_told_at_once(harness: LoopHarness) -> None:
    processor = RecordingProcessor()
    for leased in harness.take(task(1, 0, 10, "prediction")):
        predictor(harness, ProcessorOutput(processor, 3, Path(__file__).parent)).run(leased)
    assert processor.calls == [(4, 3), (4, 3), (2, 3)]
    reported_steps = [r.leases[0].through for r in harness.master.requests("Progress")]
    assert reported_steps == [1, 2, 3]


class TensorProcessor:
    """Takes outputs as tensors, which have numpy()."""

    def process(self, predictions: Any, worker_id: int) -> None:
        self.logits: Any = predictions["logits"].numpy().tolist()
        self.mean = float(predictions["probs"].mean())


def test_a_processor_may_take_the_outputs_as_tensors() -> None:
    processor = TensorProcessor()
    outputs = {"logits": np.array([[1.5], [2.5]]), "probs": np.array([0.25, 0.75])}
    ProcessorOutput(processor, 0, Path(__file__).parent).add_minibatch(outputs)
    assert (processor.logits, processor.mean) == ([[1.5], [2.5]], 0.5)


class RaisingProcessor:
    def process(self, predictions: Any, worker_id: int) -> None:
        raise KeyError("table")


def test_a_processor_that_raises_is_the_users_error() -> None:
    with pytest.raises(UserCodeError) as error:
        ProcessorOutput(RaisingProcessor(), 0, Path(__file__).parent).add_minibatch(np.zeros(3))
    assert "PredictionOutputsProcessor.process() raised KeyError: 'table'" in str(error.value)
    assert 'raise KeyError("table")' in error.value.detail


def test_a_processor_without_process_is_named() -> None:
    with pytest.raises(BadInputError, match="has no method process"):
        ProcessorOutput(object(), 0, Path(__file__).parent)  # type: ignore[arg-type]


def test_equal_file_names_in_different_folders_do_not_meet(tmp_path: Path) -> None:
    files = NpzOutput(tmp_path, ["/a/part", "/b/part", "/b/other"])
    names = {files.file_path(LeasedTask(LEASE, "prediction", source, 0, 4)).name for source in ("/a/part", "/b/part")}
    assert len(names) == 2
    assert files.file_path(LeasedTask(LEASE, "prediction", "/b/other", 0, 4)).name == "other-0-4.npz"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files = NpzOutput(tmp_path / "file", ["s"])
    leased = LeasedTask(LEASE, "prediction", "s", 0, 4)
    files.begin_range(leased)
    with pytest.raises(StorageError, match="predictions"):
        files.end_range(leased)


@pytest.mark.parametrize(
    ("outputs", "names"),
    [
        (np.zeros(2), ["outputs"]),
        ([np.zeros(2), np.ones(2)], ["outputs_0", "outputs_1"]),
        ({"a": np.zeros(2)}, ["outputs_a"]),
    ],
)
def test_several_outputs_have_several_names(outputs: Any, names: list[str]) -> None:
    assert list(outputs_by_name(outputs)) == names
