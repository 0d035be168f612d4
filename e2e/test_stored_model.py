"""Jobs that only evaluate or predict, with the weights of a run on the volume; workers go and come meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.jobs import MINIBATCH, ClusterJob, delete_pod, digits
from e2e.ledger import STORAGE, finish_and_count
from e2e.namespaces import Namespace
from e2e.volume import MOUNT

from edl.api.cluster_port import Role
from edl.cluster.kubernetes.resource_kinds import Manifest

pytestmark = pytest.mark.in_turn(2)
TASK_MINIBATCHES = 2
RECORD_SECONDS = 0.05


@pytest.fixture
def trained(namespace: Namespace) -> ClusterJob:
    """A job that is done: its run has checkpoints and an export."""
    spec = digits("trained", image=namespace.images.zoo, seconds=5, workers=2, export={})
    spec["train"] = {**spec["train"], "epochs": 1}
    job = ClusterJob.write(namespace, spec)
    job.submit()
    finish_and_count(job, epochs=1)
    return job


def stored_model_job(trained: ClusterJob, task: str, weights: str, workers: int = 2) -> ClusterJob:
    """A job that evaluates or predicts the test images with the weights of the trained one."""
    namespace = trained.namespace
    spec: Manifest = digits(f"{task}-it", image=namespace.images.zoo, seconds=5, workers=workers)
    model = {"zoo": "model_zoo", "definition": "paced_evaluation.custom_model", "weights": weights}
    data = {"validation" if task == "evaluate" else "prediction": f"{MOUNT}/mnist/test"}
    train = {"minibatch_size": MINIBATCH, "minibatches_per_task": TASK_MINIBATCHES}
    spec |= {"task": task, "model": model, "data": data, "train": train}
    spec["pod"]["env"]["E2E_STEP_SECONDS"] = str(RECORD_SECONDS)
    return ClusterJob.write(namespace, spec)


def lose_worker(job: ClusterJob, doing: str) -> None:
    """Delete the pod of a worker that holds a task, once others are done."""

    def busy() -> list[int] | None:
        status = job.status()
        indices = [worker["index"] for worker in status.get("workers", ()) if worker["state"] == doing]
        return indices if indices and status["records_done"] else None

    index = job.wait_for(f"a worker that is {doing}", busy)[0]
    delete_pod(job.namespace, job.pod_name(Role.WORKER, index))
    job.wait_for("the lost worker is gone", lambda: index not in job.workers() or None)


def finished(job: ClusterJob) -> tuple[Any, Path]:
    """The summary of a job that must be done without parameter servers, and its directory."""
    assert job.ps_uids() == {}
    job.finish_quickly()
    how = job.wait_end()
    summary = job.wait_for("its summary", lambda: job.page("summary.json"), 10)
    assert how == "Complete", f"{job.name}: {how}, {job.page('failure.json')}"
    assert summary["records_lost"] == 0
    assert summary["records_done"] == summary["records_total"] > 0
    folder = job.namespace.folder / "runs" / job.name
    place = f"{STORAGE}/{job.namespace.name}/{job.name}/{job.uid}"
    return summary, job.namespace.volume.fetch_folder(place, folder)


def test_an_evaluation_gives_the_metrics_of_the_trained_job(trained: ClusterJob) -> None:
    job = stored_model_job(trained, "evaluate", "trained")
    job.submit()
    lose_worker(job, "evaluating")
    summary, folder = finished(job)
    assert 0 < summary["records_repeated"] <= TASK_MINIBATCHES * MINIBATCH
    expected = trained.page("summary.json")["metrics"]
    assert summary["metrics"] == pytest.approx(expected, rel=1e-4)
    assert json.loads((folder / "metrics.json").read_text())["metrics"] == summary["metrics"]


def test_predictions_are_on_the_volume(trained: ClusterJob) -> None:
    place = f"{MOUNT}{STORAGE}/{trained.namespace.name}/trained/{trained.uid}"
    job = stored_model_job(trained, "predict", f"{place}/export/model.keras")
    job.submit()
    lose_worker(job, "predicting")
    summary, folder = finished(job)
    rows = 0
    for path in (folder / "predictions").glob("*.npz"):
        with np.load(path) as file:
            assert len(file["outputs"]) == file["end"] - file["start"]
            rows += len(file["outputs"])
    assert rows == summary["records_total"]


def test_weights_that_are_not_there_are_bad_input(trained: ClusterJob) -> None:
    job = stored_model_job(trained, "evaluate", "nobody/r1", workers=1)
    job.submit()
    assert job.wait_end() == "Failed"
    failure = job.wait_for("why it failed", lambda: job.page("failure.json"), 10)
    assert "nobody/r1" in str(failure)
