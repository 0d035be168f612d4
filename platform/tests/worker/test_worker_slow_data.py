"""Each strategy measures how long it waits for minibatches, and tells users."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.waiting_clock import WAIT_WARNING, use_waiting_clock
from worker.loop_harness import LEASE, TOKEN, PsServers, ScriptedChannel, ScriptedMaster

from edl.api.cluster_port import Role
from edl.api.job_spec import JobSpec
from edl.jobfile.event_json import parse_event_line
from edl.jobfile.loader import dump_job_spec, load_job_file
from edl.storage.durable_files import read_json
from edl.storage.run_directory import create_run
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import BulkClient
from edl.transport.process_identity import ProcessIdentity
from edl.worker.graceful_shutdown import ShutdownGate

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

MODEL = """
import keras, tensorflow as tf

def custom_model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

def loss(labels, predictions):
    return tf.square(labels - predictions)

def optimizer():
    return keras.optimizers.SGD(0.001)

def eval_metrics_fn():
    return {"mae": keras.metrics.MeanAbsoluteError()}

def feed(dataset, mode, metadata):
    return dataset.map(lambda row: (tf.strings.to_number(row[:2]), tf.strings.to_number(row[2:])))
"""
RECORDS, MINIBATCH = 24, 4


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a model and its data; on a clock on which minibatches are waited for."""
    (tmp_path / "data.csv").write_text("".join(f"{n},{n % 3},{n % 5}\n" for n in range(RECORDS)))
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "small.py").write_text(MODEL)
    use_waiting_clock(monkeypatch)
    return tmp_path


def write_job(folder: Path, strategy: dict[str, Any], *, evaluates: bool = False) -> JobSpec:
    data = str(folder / "data.csv")
    job = {
        "apiVersion": "edl.dev/v1",
        "name": "job",
        "model": {"zoo": str(folder / "zoo"), "definition": "small.custom_model"},
        "data": {"training": data, "validation": data if evaluates else None, "reader": {"header": False}},
        "train": {"minibatch_size": MINIBATCH, "minibatches_per_task": RECORDS // MINIBATCH},
        "strategy": strategy,
    }
    (folder / "job.json").write_text(json.dumps(job))
    spec = load_job_file(folder / "job.json")
    (folder / "spec.json").write_text(json.dumps(dump_job_spec(spec)))
    return spec


class OneLeaseMaster(ScriptedMaster):
    """Grants all records of a file, one lease for each kind of task, and then has no more work."""

    def __init__(self, source: Path, *kinds: str, minibatch: int = MINIBATCH) -> None:
        super().__init__()
        for number, kind in enumerate(kinds):
            self.grant(
                pb.Task(
                    lease=LEASE + number,
                    kind=kind,
                    source=str(source),
                    end=RECORDS,
                    minibatch=minibatch,
                    expires_seconds=60,
                )
            )

    def _lease(self) -> pb.LeaseReply:
        return self.answers.popleft() if self.answers else pb.LeaseReply(incarnation=1, stop=pb.Stop(reason="done"))

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """Topics and texts, as workers sent them."""
        return [(each.topic, each.text) for request in self.requests("Progress") for each in request.warnings]


def connect_runtime(folder: Path, spec: JobSpec, master: ScriptedMaster) -> Any:
    """The part of a worker that talks to the master, with its threads."""
    from edl.worker.runtime import WorkerRuntime

    identity = ProcessIdentity(folder, Role.WORKER, 0, "uid-0", TOKEN, folder, "unix:none")
    runtime = WorkerRuntime(identity, spec, ShutdownGate(), ScriptedChannel(master))  # type: ignore[arg-type]
    runtime.start()
    return runtime


def train_with_servers(folder: Path, monkeypatch: pytest.MonkeyPatch, *kinds: str) -> OneLeaseMaster:
    """A whole worker with a parameter server, whose tasks are of these kinds."""
    from edl.worker import training_setup
    from edl.worker.worker_process import ImportSlot, _run_tasks

    spec = write_job(folder, {"name": "ParameterServer"}, evaluates="evaluation" in kinds)
    master = OneLeaseMaster(folder / "data.csv", *kinds)
    with ExitStack() as closing:
        servers = PsServers(1)
        closing.callback(servers.close)
        master.placement = servers.placement()

        def connect(*arguments: Any, **options: Any) -> BulkClient:
            return closing.enter_context(contextlib.closing(BulkClient(*arguments, **options)))

        monkeypatch.setattr(training_setup, "BulkClient", connect)  # a process that ends closes none
        runtime = connect_runtime(folder, spec, master)
        assert _run_tasks(runtime, ImportSlot(None)) == 0
        runtime.leases.stop()
        runtime.progress.stop()
    assert [report.lease - LEASE for report in master.requests("Report")] == list(range(len(kinds)))
    return master


def test_a_worker_with_parameter_servers_tells_that_it_waits_for_data(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train_with_servers(folder, monkeypatch, "training").warnings == [WAIT_WARNING]


@pytest.mark.repetition
def test_an_evaluation_may_wait_for_its_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert train_with_servers(folder, monkeypatch, "evaluation").warnings == []


def take_minibatches(source: Any) -> Iterator[int]:
    """The numbers of records of the minibatches that a rank takes, which are then applied."""
    lease = source.current()
    while lease.has_steps:
        share = lease.share()
        yield lease.load().record_count
        source.mark_applied(share, lease.next_step + 1)


def take_global_batches(source: Any) -> Iterator[int]:
    """The same, of a rank whose share of each global batch is a minibatch."""
    for step in range(RECORDS // MINIBATCH):
        shares, loaded_steps = source.load_share(MINIBATCH, MINIBATCH)
        for _, loaded in loaded_steps:
            yield loaded.record_count
        for share in shares:
            source.mark_applied(share, step + 1)


@pytest.mark.parametrize("global_batch", [None, MINIBATCH])
def test_a_rank_of_all_reduce_tells_that_it_waits_for_data(folder: Path, global_batch: int | None) -> None:
    from edl.keras.model_contract import load_model_module
    from edl.worker.allreduce.setup import _make_share_source

    spec = write_job(folder, {"name": "AllReduce", "global_batch": global_batch})
    # With a global batch, a step of a lease is a record.
    master = OneLeaseMaster(folder / "data.csv", "training", minibatch=MINIBATCH if global_batch is None else 1)
    runtime = connect_runtime(folder, spec, master)
    runtime.model_module.set_result(load_model_module(spec.model, needs_metrics=True))
    source = _make_share_source(runtime)
    while source.current() is None:
        source.take_tasks(1.0)
    take = take_minibatches if global_batch is None else take_global_batches
    assert list(take(source)) == [MINIBATCH] * (RECORDS // MINIBATCH)
    runtime.progress.send_all()
    runtime.leases.stop()
    runtime.progress.stop()
    assert master.warnings == [WAIT_WARNING]


def test_a_run_of_strategy_local_tells_that_it_waits_for_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edl.worker import worker_process
    from edl.worker.local_strategy.local_main import main

    monkeypatch.setattr(worker_process, "set_thread_counts", lambda workers: None)  # once a process only
    write_job(folder, {"name": "Local"})
    run = create_run(folder / "runs" / "local" / "job")
    run.spec.write_bytes((folder / "spec.json").read_bytes())
    assert main({"EDL_RUN_DIR": str(run.path), "EDL_JSON": "1"}) == 0
    _, text = WAIT_WARNING
    events: list[Any] = [parse_event_line(line) for line in run.events.read_text().splitlines()]
    assert [event.message for event in events if event.kind == "warning"] == [text]
    assert read_json(run.path / "summary.json")["warnings"] == [text]
