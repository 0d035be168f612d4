"""What the plan of a run warns of, and where it says predictions go."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.api.job_spec import DataSpec, JobSpec, ModelSpec, TrainSpec, WorkerSpec
from edl.api.status import Status
from edl.api.strategy import Strategy
from edl.jobfile.section_type import to_json
from edl.ops.local_run_plan import LocalRunPlan, RecordCounts, RunArguments
from edl.storage.checkpoint_manifest import CheckpointManifest
from edl.storage.durable_files import write_json
from edl.storage.journal_truncation import CheckpointRestart
from edl.storage.run_directory import RunDirectory, make_run_directory
from edl.storage.weights_lookup import TrainedWeights


@pytest.mark.parametrize(("max_steps", "warns"), [(39, True), (40, True), (41, False)])
def test_a_limit_of_steps_is_compared_with_the_step_as_the_new_strategy_counts_it(
    tmp_path: Path, max_steps: int, warns: bool
) -> None:
    """Four workers of AllReduce made ten steps of four minibatches each."""
    run = RunDirectory(tmp_path / "r1")
    make_run_directory(run)
    write_json(
        run.status, to_json(Status(job="j", run="r1", run_dir=str(run.path), phase="Interrupted", updated=1, step=10))
    )
    ledger = {"done_records": 640, "done_steps": 40, "world_step": 10}
    restart = CheckpointRestart(
        run, CheckpointManifest(3, 10, "now", (), ledger), 0, old_strategy="AllReduce", new_strategy="ParameterServer"
    )
    spec = JobSpec(
        name="j",
        model=ModelSpec("m.custom_model", "/zoo"),
        data=DataSpec(training=("/data/train",)),
        train=TrainSpec(max_steps=max_steps),
        strategy=Strategy(name="ParameterServer"),
    )
    plan = LocalRunPlan(
        spec, RunArguments(Path("job.yaml")), RecordCounts(), run, is_resumed=True, checkpoint_restart=restart
    )
    text = "\n".join(plan.plan_lines())
    assert "ParameterServer" in text
    assert "step 40" in text
    assert ("train.max_steps" in text) == warns


@pytest.mark.parametrize(
    ("strategy", "said"),
    [("AllReduce", "training starts with 2 of 3 (workers.min)"), ("ParameterServer", "")],
)
def test_the_plan_says_with_how_many_workers_training_starts(tmp_path: Path, strategy: str, said: str) -> None:
    """One worker may train a short job alone, before the others have imported TensorFlow."""
    spec = JobSpec(
        name="j",
        model=ModelSpec("m.custom_model", "/zoo"),
        data=DataSpec(training=("/data/train",)),
        strategy=Strategy(name=strategy),
        workers=WorkerSpec(min=2, max=3),
    )
    text = "\n".join(
        LocalRunPlan(spec, RunArguments(Path("job.yaml")), RecordCounts(), RunDirectory(tmp_path)).plan_lines()
    )
    assert said in text
    assert ("workers.min" in text) == bool(said)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (
            "class PredictionOutputsProcessor: ...",
            "PredictionOutputsProcessor of the model module, writes no files to /out",
        ),
        ("", "writes to /out"),
    ],
)
def test_the_plan_says_where_predictions_go(tmp_path: Path, module: str, said: str) -> None:
    (tmp_path / "m.py").write_text(f"def custom_model(): ...\n{module}\n")
    spec = JobSpec(
        name="j",
        model=ModelSpec("m.custom_model", str(tmp_path)),
        data=DataSpec(prediction=("/data/new",)),
        task="predict",
    )
    plan = LocalRunPlan(
        spec,
        RunArguments(Path("job.yaml")),
        RecordCounts(prediction=(3,)),
        RunDirectory(tmp_path / "r1"),
        output=Path("/out"),
        weights=TrainedWeights(tmp_path / "model.keras"),
    )
    (line,) = [line for line in plan.plan_lines() if "predictions" in line or "writes to" in line]
    assert said in line
