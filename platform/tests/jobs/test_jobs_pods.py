"""A whole job as pods run it, without a cluster: every role behind ``edl-role``, each with an address of its own.

The master is a real one in this process; what stands for Kubernetes starts a process for each pod it is asked for.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import fork_server
from support.job_folder import DigitsData, JobFolder, covers, predictions, write_module
from support.job_process import STARTED

from edl.api.cluster_port import DEFAULT_OPTIONS, PodOptions, PodPhase, PodStatus, Role, WatchSynced
from edl.jobfile.loader import load_job_file
from edl.master.backend import LocalMasterBackend
from edl.master.master_process import serve_job
from edl.pod.role_preparation import prepare_role
from edl.storage.durable_files import read_json
from edl.transport.process_identity import ProcessIdentity

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="uses all of 127.0.0.0/8, and /proc"),
]

RECORDS, EPOCHS, FREELY = 640, 2, 160
LOST = "a-worker-is-lost"
TOKEN = "the-token-of-a-job"
WAITS_FOR_LOSS = """
import time
from itertools import count
from pathlib import Path

import tensorflow as tf
from model_zoo.mnist.mnist_functional_api import custom_model, loss, optimizer, eval_metrics_fn
from model_zoo.mnist.records import feed as quick


read = count()


def wait(image):
    while next(read) >= FREELY and not Path(LOST).exists():
        time.sleep(0.01)
    return image


def feed(dataset, mode, metadata):
    def gated(image, *label):
        late = tf.ensure_shape(tf.numpy_function(wait, [image], tf.float32), [784])
        return (late, *label) if label else late

    return quick(dataset, mode, metadata).map(gated)
"""
"""A module whose records, beyond the first ``FREELY`` of a process, wait until a worker was killed (a file says so)."""


Process = subprocess.Popen[str] | fork_server.Popen


def start_pod(words: list[str], environment: Mapping[str, str]) -> Process:
    """``edl-role WORDS`` with a session of its own; its role is forked too, in place of the ``exec``."""
    if not STARTED:
        return fork_server.Popen(words, Path(), environment=environment, errors=sys.stderr.buffer, module="edl.pod")
    command = [sys.executable, "-m", "edl.pod", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True, text=True)


class LoopbackPods:
    """The cluster port: each pod is an ``edl-role`` process that listens on an address of its own."""

    def __init__(self, spec: Path, folder: Path, run_dir: str, master_address: str) -> None:
        self._spec, self._folder = spec, folder
        self._shared = {
            "EDL_NAMESPACE": "team",
            "EDL_TOKEN_FILE": str(folder / "token"),
            "EDL_RUN_DIR": run_dir,
            "EDL_MASTER_ADDRESS": master_address,
        }
        self._lock = threading.Lock()
        self._processes: dict[str, Process] = {}
        self._news: queue.Queue[PodStatus | None] = queue.Queue()
        self.seen: dict[str, PodStatus] = {}
        self._has_ended = False

    def start(self, role: Role, index: int, wish: PodOptions = DEFAULT_OPTIONS) -> str:
        with self._lock:
            number = len(self.seen)
            uid = f"uid-{number}-of-{role}-{index}"
            runtime = self._folder / f"run-{number}"
            runtime.mkdir()
            own = {"EDL_INDEX": str(index), "EDL_UID": uid, "EDL_POD": f"edl-digits-{role}-{index}"}
            where = {"EDL_HOST": f"127.0.7.{number + 2}", "EDL_RUNTIME_DIR": str(runtime)}
            process = start_pod([role, str(self._spec)], {**os.environ, **self._shared, **own, **where})
            self._processes[uid] = process
            if self._has_ended:  # the master had asked for it before its job failed
                self._kill(uid)
            self._tell(PodStatus(uid, role, index, PodPhase.RUNNING, node="here"))
        threading.Thread(target=self._await, args=(uid, process), daemon=True).start()
        return uid

    def delete(self, uid: str, *, grace: float) -> None:
        self._processes[uid].terminate()
        threading.Timer(grace, self._kill, (uid,)).start()

    def watch(self) -> Iterator[PodStatus | WatchSynced]:
        yield WatchSynced()
        while (pod := self._news.get()) is not None:
            yield pod

    def close(self) -> None:
        self._news.put(None)

    def kill_role(self, uid: str) -> None:
        """Kill what process 1 started, as the kernel does that is out of memory."""
        pid = self._processes[uid].pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)

    def kill_all(self) -> None:
        with self._lock:
            self._has_ended = True
            for uid in self._processes:
                self._kill(uid)

    def _kill(self, uid: str) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._processes[uid].pid, signal.SIGKILL)

    def _await(self, uid: str, process: Process) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            output.read()
        code = process.wait()
        with self._lock:
            phase = PodPhase.FAILED if code else PodPhase.SUCCEEDED
            self._tell(replace(self.seen[uid], phase=phase, exit_code=code, reason="Error" if code else "Completed"))

    def _tell(self, pod: PodStatus) -> None:
        self.seen[pod.uid] = pod
        self._news.put(pod)


@pytest.fixture(scope="module")
def job_folder(tmp_path_factory: pytest.TempPathFactory) -> JobFolder:
    folder = tmp_path_factory.mktemp("pods")
    records = DigitsData.write(folder / "train.recordio", RECORDS, seed=1)
    zoo = write_module(folder, "gated", WAITS_FOR_LOSS, {"FREELY": FREELY, "LOST": str(folder / "pods" / LOST)})
    return JobFolder.make(
        folder,
        "digits",
        "gated.custom_model",
        model={"zoo": str(zoo), "definition": "gated.custom_model", "params": {"filters": 2}},
        data={"training": str(records.file), "validation": str(records.file)},
        train={"epochs": EPOCHS, "minibatch_size": 16, "minibatches_per_task": 4},
        checkpoint={"every_steps": 40},
        ps={"count": 2},
        workers={"max": 2},
    )


def serve_pods(
    job_folder: JobFolder, folder: Path, *, uid: str = "job-uid", kills: str = ""
) -> tuple[int, Path, LoopbackPods]:
    """Run a job to its end; its exit code, its directory and its pods.

    Args:
        job_folder: the job.
        folder: of the pods; storage is beside it.
        uid: of the Job.
        kills: the state of a worker that is killed once, such as ``training``; empty: none is.
    """
    (folder / "token").write_text(TOKEN)
    environment = {
        "EDL_NAMESPACE": "team",
        "EDL_JOB_UID": uid,
        "EDL_STORAGE": str(folder.parent / "storage"),
        "EDL_HOST": "127.0.7.1",
        "EDL_UID": "uid-of-master",
        "EDL_TOKEN_FILE": str(folder / "token"),
        "EDL_RUNTIME_DIR": str(folder),
    }
    variables = environment | prepare_role("master", str(job_folder.file), environment)
    identity = ProcessIdentity.from_environment(variables)
    pods = LoopbackPods(job_folder.file, folder, variables["EDL_RUN_DIR"], identity.master_address)
    killing = threading.Thread(target=kill_worker, args=(pods, Path(variables["EDL_RUN_DIR"]), kills, folder / LOST))
    if kills:
        killing.start()
    else:
        (folder / LOST).touch()
    try:
        code = serve_job(
            identity, load_job_file(identity.run_dir / "spec.json"), LocalMasterBackend(pods), threading.Event()
        )
    finally:
        pods.kill_all()
        if kills:
            killing.join()
    return code, identity.run_dir, pods


@pytest.fixture(scope="module")
def trained_pods(job_folder: JobFolder) -> tuple[int, Path, LoopbackPods]:
    (job_folder.folder / "pods").mkdir()
    return serve_pods(job_folder, job_folder.folder / "pods", kills="training")


def test_a_job_of_pods_trains_through_the_loss_of_a_worker(trained_pods: tuple[int, Path, LoopbackPods]) -> None:
    code, run, pods = trained_pods
    summary = read_json(run / "summary.json")
    assert code == 0
    assert read_json(run / "status.json")["phase"] == "Done", read_json(run / "status.json")["reason"]
    assert (summary["records_done"], summary["records_lost"], summary["workers_lost"]) == (EPOCHS * RECORDS, 0, 1)
    assert summary["records_repeated"] <= 16
    ended = [pod for pod in pods.seen.values() if pod.exit_code == 137 and pod.role is Role.WORKER]
    assert len(ended) == 1
    logs = {path.name: path.read_text() for path in (run / "logs").iterdir()}
    assert {"ps-0.log", "ps-1.log", "worker-0.log", "worker-1.log"} <= logs.keys()
    assert "serves on 127.0.7." in logs["ps-0.log"]
    assert ":7071" in logs["ps-0.log"]
    assert [line["run"] for line in events(run) if line["event"] == "run_started"] == ["job-uid"]


@pytest.mark.repetition
def test_pods_evaluate_and_predict_with_the_run_of_another_job(
    job_folder: JobFolder, trained_pods: tuple[int, Path, LoopbackPods]
) -> None:
    """The master finds the weights on the volume; no parameter server starts."""
    folder = job_folder.folder
    for name in ("evaluated", "predicted", "refused"):
        (folder / name).mkdir()
    code, trained, _ = trained_pods
    assert code == 0
    expected = read_json(trained / "summary.json")["metrics"]

    evaluation = stored_model_job(job_folder, "evaluate", "validation", "digits", folder / "evaluated")
    code, run, pods = serve_pods(evaluation, folder / "evaluated", uid="uid-2", kills="evaluating")
    summary = read_json(run / "summary.json")
    assert read_json(run / "status.json")["phase"] == "Done", read_json(run / "status.json")["reason"]
    assert (code, summary["records_done"], summary["records_lost"]) == (0, RECORDS, 0)
    assert (summary["workers_lost"], summary["records_repeated"]) == (1, 64)
    assert summary["metrics"] == pytest.approx(expected, rel=1e-4)
    assert read_json(run / "metrics.json")["metrics"] == summary["metrics"]
    assert {pod.role for pod in pods.seen.values()} == {Role.WORKER}

    prediction = stored_model_job(job_folder, "predict", "prediction", str(trained), folder / "predicted")
    code, run, _ = serve_pods(prediction, folder / "predicted", uid="uid-3")
    outputs, ranges = predictions(run / "predictions")
    assert (code, len(outputs)) == (0, RECORDS)
    assert covers(ranges, RECORDS)

    unknown = stored_model_job(job_folder, "evaluate", "validation", "digits/nobody", folder / "refused")
    code, run, _ = serve_pods(unknown, folder / "refused", uid="uid-4")
    assert read_json(run / "status.json")["phase"] == "Failed"
    assert "nobody" in read_json(run / "failure.json")["reason"]


def stored_model_job(trained: JobFolder, task: str, data_set: str, weights: str, pods: Path) -> JobFolder:
    """A job that works with the weights of another one, on the same records; its pods are in the folder ``pods``."""
    folder = trained.folder / f"job-{task}"
    zoo = write_module(folder, "gated", WAITS_FOR_LOSS, {"FREELY": FREELY, "LOST": str(pods / LOST)})
    model = {**trained.spec["model"], "zoo": str(zoo), "weights": weights}
    fields = {name: trained.spec[name] for name in ("train", "workers")}
    name = f"{task}-it"
    data = {data_set: trained.spec["data"]["training"]}
    return JobFolder.make(
        folder, name, str(model["definition"]), **{**fields, "task": task, "model": model, "data": data}
    )


def kill_worker(pods: LoopbackPods, run: Path, doing: str, lost: Path) -> None:
    """Kill a worker in this state, once some steps or records are done; then make the file ``lost``."""
    status: dict[str, Any] = {}
    waiting = threading.Event()
    while status.get("phase") not in ("Done", "Failed"):
        busy = [worker["uid"] for worker in status.get("workers", ()) if worker["state"] == doing]
        if busy and (status["step"] >= 5 or (doing != "training" and status["records_done"])):
            pods.kill_role(busy[0])
            lost.touch()
            return
        waiting.wait(0.02)
        if (run / "status.json").exists():
            status = read_json(run / "status.json")


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
