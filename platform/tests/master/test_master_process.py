"""The master from end to end: a real one on a fake cluster, with roles that follow the protocol and compute nothing."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from master.in_process_job import RECORDS, VALIDATION, InProcessJob, ScriptedWorker, in_process_job
from master.master_stubs import LONG, TOKEN

from edl.api.errors import RefusedError, StorageError
from edl.cluster.local.local_cluster import LocalCluster
from edl.core import checkpointing, lease_timeouts
from edl.core.job import JobStateMachine
from edl.jobfile.loader import dump_job_spec
from edl.master import checkpoint_coordinator, master_process
from edl.master.backend import LocalMasterBackend
from edl.master.master_process import main
from edl.master.ps_client import PsControlClient
from edl.storage.checkpoint_manifest import cut_directory
from edl.storage.durable_files import read_json, write_json
from edl.storage.segment_chain import SegmentChain
from edl.transport.control_client import RetryPolicy


def test_a_job_trains_evaluates_and_exports() -> None:
    changes = {"data": {"training": "train.csv", "validation": "validation.csv"}, "export": {}, "ps": {"count": 2}}
    with in_process_job(**changes) as job:
        assert job.run_master() == 0
        summary = job.summary()
        assert (summary["records_total"], summary["records_done"], summary["records_lost"]) == (RECORDS, RECORDS, 0)
        assert (summary["records_repeated"], summary["records_rolled_back"], summary["workers_lost"]) == (0, 0, 0)
        assert summary["metrics"] == {"seen": VALIDATION}
        assert summary["export"] == "/somewhere/export"
        assert read_json(job.run.status)["phase"] == "Done"
        assert [event["phase"] for event in job.events("job_ended")] == ["Done"]
        assert {0, 20} <= {entry["step"] for entry in job.entries("saved")}  # others as the machine has time for them
        assert len(list(job.run.checkpoints.glob("*/manifest.json"))) <= 3


def test_workers_describe_the_data_of_a_users_own_reader() -> None:
    with in_process_job(module="def custom_model(): ...\ndef custom_data_reader(): ...\n") as job:
        assert job.run_master() == 0
        assert job.summary()["records_done"] == RECORDS
        assert [entry["training"] for entry in job.entries("dataset")] == [[["own", RECORDS]]]


def test_a_master_that_is_told_to_go_leaves_the_job_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        lease_timeouts, "SILENCE_FLOOR", LONG
    )  # a busy machine makes no worker lose its lease between the two
    with in_process_job(train={"minibatch_size": 2, "minibatches_per_task": 4, "epochs": 3}) as job:
        job.at_step[7] = lambda worker: job.stopping.set()
        assert job.run_master() == 143
        assert all(not pod.has_ended for pod in job.cluster.pods())
        assert job.summary()["records_lost"] == 0  # for whoever ends the run in its place
        assert job.events("job_ended") == []
        assert job.run_master() == 0
        summary = job.summary()
        assert (summary["records_done"], summary["records_lost"]) == (3 * RECORDS, 0)
        assert (summary["records_repeated"], summary["records_rolled_back"], summary["workers_lost"]) == (0, 0, 0)
        assert [entry["number"] for entry in job.entries("incarnation")] == [1, 2]


def test_after_everything_was_killed_the_job_goes_on_from_the_newest_checkpoint() -> None:
    with in_process_job(train={"minibatch_size": 2, "minibatches_per_task": 4, "epochs": 2}) as job:
        job.at_step[18] = lambda worker: job.stopping.set()
        assert job.run_master() == 143
        least, most = job.summary()["records_done"], 2 * job.steps
        newest = job.entries("saved")[-1]
        job.kill_all()
        assert job.run_master() == 0
        (back,) = job.events("rolled_back")
        summary = job.summary()
        assert summary["records_rolled_back"] == back["records"]
        # What was done since the checkpoint. Workers do not wait for one, so a slow disk means more steps.
        assert back["to_cut"] == newest["cut"]
        assert least <= newest["ledger"]["done_records"] + back["records"] <= most
        assert (summary["records_done"], summary["records_lost"]) == (2 * RECORDS, 0)


@pytest.mark.parametrize("killed", [False, True])
def test_a_run_that_goes_on_with_fewer_epochs_than_it_did_ends_as_trained(killed: bool) -> None:
    data = {"training": "train.csv", "validation": "validation.csv"}
    train = {"minibatch_size": 2, "minibatches_per_task": 4, "epochs": 4}
    with in_process_job(data=data, train=train, export={}) as job:
        job.at_step[52] = lambda worker: job.stopping.set()  # in the third epoch of 20 steps
        assert job.run_master() == 143
        if killed:
            job.kill_all()
        job.spec = replace(job.spec, train=replace(job.spec.train, epochs=1))
        assert job.run_master() == 0
        summary = job.summary()
        assert summary["records_done"] == summary["records_total"] > RECORDS
        assert (summary["records_lost"], summary["metrics"]) == (0, {"seen": VALIDATION})
        assert summary["export"] == "/somewhere/export"
        assert read_json(job.run.status)["phase"] == "Done"
        state = job.events("job_ended")[0]
        assert (state["phase"], state["reason"]) == ("Done", "all records are done")


EPOCHS = 8
LONGER = {"minibatch_size": 2, "minibatches_per_task": 4, "epochs": EPOCHS}
KEPT = {"every_steps": 5, "keep": 3}
"""One that the journal may not know yet when the master is told to go, the newest that it knows, and an older one."""


def killed_with_damaged_checkpoints(job: InProcessJob, *, all_of_them: bool) -> tuple[int, list[int]]:
    """Stop the job, kill its pods, damage its newest checkpoint or all; returns the newest and the older ones."""

    def committed() -> list[int]:
        return [int(path.parent.name.removeprefix("cut-")) for path in job.run.checkpoints.glob("*/manifest.json")]

    def stop_with_three(worker: Any) -> None:  # of which the journal knows two
        if len(committed()) >= 3:
            job.stopping.set()

    job.at_step.update(dict.fromkeys(range(10, EPOCHS * RECORDS // 2), stop_with_three))
    assert job.run_master() == 143
    job.at_step.clear()
    job.kill_all()
    newest = job.entries("saved")[-1]["cut"]
    for cut in committed():
        if all_of_them or cut >= newest:
            (cut_directory(job.run.checkpoints, cut) / "ps-0.safetensors").write_bytes(b"?")
    return newest, sorted(cut for cut in committed() if cut < newest)


def test_an_older_checkpoint_stands_in_for_a_damaged_one() -> None:
    with in_process_job(train=LONGER, checkpoint=KEPT) as job:
        _, older = killed_with_damaged_checkpoints(job, all_of_them=False)
        assert job.run_master() == 0
        assert read_json(job.run.status)["reason"] == "all records are done"
        assert [entry["cut"] for entry in job.entries("checkpoint_back")] == older[-1:]
        back = [event["records"] for event in job.events("rolled_back")]
        assert len(back) == 2
        summary = job.summary()
        assert summary["records_rolled_back"] == sum(back)
        assert (summary["records_done"], summary["records_lost"]) == (EPOCHS * RECORDS, 0)
        assert f"falling back to checkpoint {older[-1]}" in " ".join(
            event["message"] for event in job.events("warning")
        )


def test_a_job_without_a_checkpoint_that_is_intact_ends_and_names_all_of_them() -> None:
    with in_process_job(train=LONGER, checkpoint=KEPT) as job:
        newest, older = killed_with_damaged_checkpoints(job, all_of_them=True)
        assert job.run_master() == 0
        assert job.failure()["kind"] == "storage"
        assert f"cut-{newest:08d}" in job.failure()["reason"]
        assert all(f"checkpoint {cut} cannot be used" in job.failure()["reason"] for cut in older)


def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost() -> None:
    with in_process_job() as job:
        job.at_step[6] = lambda worker: job.cluster.kill(worker.uid)
        assert job.run_master() == 0
        summary = job.summary()
        assert (summary["records_done"], summary["records_lost"], summary["workers_lost"]) == (RECORDS, 0, 1)
        assert summary["records_repeated"] <= 2
        assert len(job.events("role_ended")) >= 1


def test_the_only_ps_is_killed_and_the_job_rolls_back() -> None:
    with in_process_job() as job:
        job.at_step[12] = lambda worker: job.cluster.kill(next(iter(job.servers)))
        assert job.run_master() == 0
        assert len(job.events("rolled_back")) == 1
        assert job.summary()["records_done"] == RECORDS
        assert job.summary()["records_lost"] == 0


@pytest.mark.parametrize("count", [1, 2])
def test_without_a_volume_nothing_is_kept_and_a_lost_ps_takes_along_what_it_held(
    count: int,
) -> None:
    changes = {"data": {"training": "train.csv", "validation": "validation.csv"}, "export": {}, "ps": {"count": count}}
    with in_process_job(**changes) as job:
        around = LocalMasterBackend(job.cluster.connect(), durable=False)
        job.at_step[12] = lambda worker: job.cluster.kill(next(iter(job.servers)))
        assert job.run_master(around) == 0
        back, *more = job.events("rolled_back")  # and what was in, and reported only later
        assert back["to_cut"] is None
        assert (back["records"] > 0) == (count == 1), "of several, one begins anew and the ledger stays"
        assert all(each["records"] == 0 < each["updates"] for each in more)
        assert sum(each["updates"] for each in (back, *more)) == job.summary()["updates_rolled_back"]
        assert (job.summary()["records_done"], job.summary()["records_lost"]) == (RECORDS, 0)
        assert job.summary()["metrics"] == {"seen": VALIDATION}
        assert job.summary()["export"] == "/somewhere/export"
        assert job.entries("saved") == []
        assert list(job.run.checkpoints.iterdir()) == []


def test_a_ps_that_is_lost_while_nobody_pushes_gets_the_model_too() -> None:
    """Without a checkpoint only workers can give it the model, and they have no work from which to find out."""
    with in_process_job(workers={"min": 1, "max": 1}) as job:

        def lose_the_ps(worker: ScriptedWorker) -> None:
            job.cluster.kill(next(iter(job.servers)))
            until = monotonic() + LONG
            while not job.events("rolled_back") and monotonic() < until:
                sleep(0.01)

        job.at_step[12] = lose_the_ps  # the last of a lease: the worker asks for work next, when there is none
        assert job.run_master(LocalMasterBackend(job.cluster.connect(), durable=False)) == 0
        assert len(job.events("rolled_back")) == 1
        assert (job.summary()["records_done"], job.summary()["records_lost"]) == (RECORDS, 0)


def test_a_ps_that_lives_and_is_silent_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_process, "PsControlClient", partial(PsControlClient, answer_timeout=0.0))
    # Where it falls silent while a checkpoint is saved, that is given up and tried again, and only then it is asked.
    monkeypatch.setattr(checkpoint_coordinator, "_RETRY", RetryPolicy(timeout_seconds=0.2))
    monkeypatch.setattr(checkpointing, "RETRY_SAVING_SECONDS", 0.2)
    with in_process_job() as job:
        job.at_step[8] = lambda worker: next(iter(job.servers.values())).fall_silent()
        assert job.run_master() == 0
        assert "it is replaced" in " ".join(event["message"] for event in job.events("warning"))
        assert len(job.events("rolled_back")) == 1
        assert (job.summary()["records_done"], job.summary()["records_lost"]) == (RECORDS, 0)


# ---------------------------------------------------------------------------------------------- clear failures


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"data": {"training": "nothing-here"}}, "nothing-here"),
        ({"data": {"training": "empty.csv"}}, "no records"),
        ({"model": {"definition": "missing.custom_model"}}, "missing"),
        ({"model": {"definition": "m.other_model"}}, "other_model"),
    ],
)
def test_bad_input_ends_the_job_and_says_why(changes: dict[str, Any], why: str) -> None:
    with in_process_job(**changes) as job:
        assert job.run_master() == 0
        assert job.failure()["kind"] == "input"
        assert why in job.failure()["reason"]
        assert [event["phase"] for event in job.events("job_ended")] == ["Failed"]


def test_a_data_set_without_records_ends_the_job() -> None:
    module = "def custom_model(): ...\ndef custom_data_reader(): ...\n"
    with in_process_job({"describe": lambda task: {"training": [], "validation": []}}, module) as job:
        assert job.run_master() == 0
        assert job.failure()["kind"] == "input"
        assert "no records" in job.failure()["reason"]


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (b"{", "not JSON"),
        ([1, 2], "one entry per metric"),
        ({"seen": {"additive": True, "states": ["many"]}}, "'seen'"),
        (b'"' + b"x" * (4 << 20) + b'"', "larger than max"),
    ],
)
def test_a_result_that_cannot_be_entered_ends_the_job_and_not_the_master(result: Any, why: str) -> None:
    data = {"training": "train.csv", "validation": "validation.csv"}
    with in_process_job({"evaluation": lambda task: result}, data=data) as job:
        assert job.run_master() == 0
        assert job.failure()["kind"] == "refused"
        assert why in job.failure()["reason"]
        assert len(job.entries("incarnation")) == 1


def test_a_disk_that_is_full_ends_the_job_and_the_checkpoint_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    full = StorageError("no space left on device", where="the journal", hint="free some space")
    with in_process_job() as job:

        def fill(worker: Any) -> None:
            def refuse(self: Any, group: bytes) -> float:
                raise full

            monkeypatch.setattr(SegmentChain, "append", refuse)

        job.at_step[12] = fill
        assert job.run_master() == 0
        monkeypatch.undo()
        assert job.failure()["kind"] == "storage"
        assert "no space left" in job.failure()["reason"]
        assert [event["phase"] for event in job.events("job_ended")] == ["Failed"]
        assert read_json(job.run.status)["phase"] == "Failed"
        job.kill_all()
        assert job.run_master() == 0  # there is room again: as after a power cut
        assert job.summary()["records_done"] == RECORDS
        assert job.summary()["records_lost"] == 0


def test_a_checkpoint_that_cannot_be_read_ends_the_job() -> None:
    every = EPOCHS * RECORDS // 2 // 2
    with in_process_job(train=LONGER, checkpoint={"every_steps": every, "keep": 2}) as job:
        once = threading.Lock()

        def damage(worker: Any) -> None:
            # When the first one is on disk, and before the second one begins.
            if list(job.run.checkpoints.glob("*/manifest.json")) and once.acquire(blocking=False):
                for shard in job.run.checkpoints.rglob("*.safetensors"):
                    shard.write_bytes(b"damaged")
                job.cluster.kill(next(iter(job.servers)))

        job.at_step.update(dict.fromkeys(range(every + 1, 2 * every), damage))
        assert job.run_master() == 0
        assert once.locked()
        assert job.failure()["kind"] == "storage"
        assert "safetensors" in job.failure()["reason"] or "cut-" in job.failure()["reason"]


def test_a_master_that_fails_by_itself_says_so_and_another_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with in_process_job() as job:

        def break_it(worker: Any) -> None:
            monkeypatch.setattr(JobStateMachine, "handle", lambda *_: 1 / 0)

        job.at_step[6] = break_it
        assert job.run_master() == 1
        assert "ZeroDivisionError" in caplog.text
        monkeypatch.undo()
        assert job.run_master() == 0
        assert job.summary()["records_lost"] == 0


def test_a_second_master_is_refused_while_the_first_one_lives() -> None:
    with in_process_job() as job, job.master(), pytest.raises(RefusedError):
        job.master()


def test_a_job_that_had_ended_is_told_again_by_the_next_master() -> None:
    with in_process_job() as job:
        assert job.run_master() == 0
        job.run.events.unlink()
        assert job.run_master() == 0
        assert [event["phase"] for event in job.events("job_ended")] == ["Done"]


# ---------------------------------------------------------------------------------------------- as a process


@pytest.fixture
def restored_process() -> Iterator[None]:
    """What ``main`` changes about its process, put back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def environment(monkeypatch: pytest.MonkeyPatch, job: InProcessJob) -> None:
    token = job.folder / "token"
    token.write_text(TOKEN)
    write_json(job.run.spec, dump_job_spec(job.spec))
    variables = {"RUN_DIR": job.run.path, "ROLE": "master", "INDEX": 0, "UID": "master-0-a", "TOKEN_FILE": token}
    variables |= {"RUNTIME_DIR": job.folder, "MASTER_ADDRESS": f"unix:{job.folder}/master"}
    for name, value in variables.items():
        monkeypatch.setenv(f"EDL_{name}", str(value))
    monkeypatch.setattr(LocalCluster, "from_environment", lambda token: job.cluster.connect())


@pytest.mark.usefixtures("restored_process")
def test_sigterm_means_leaving_with_143_and_the_job_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with in_process_job() as job:
        environment(monkeypatch, job)
        job.at_step[4] = lambda worker: os.kill(os.getpid(), signal.SIGTERM)
        assert main() == 143
        assert all(not pod.has_ended for pod in job.cluster.pods())
        assert main() == 0
        assert job.summary()["records_done"] == RECORDS


@pytest.mark.usefixtures("restored_process")
def test_a_master_that_cannot_begin_says_why_and_leaves_with_1(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with in_process_job() as job:
        environment(monkeypatch, job)
        job.run.journal.rmdir()
        Path(job.run.journal).write_text("in the way")
        assert main() == 1
        assert str(job.run.journal) in caplog.text


@pytest.mark.usefixtures("restored_process")
def test_a_run_whose_spec_was_damaged_is_told_with_its_path_and_a_remedy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with in_process_job() as job:
        environment(monkeypatch, job)
        job.run.spec.write_text("{")
        assert main() == 2
        assert str(job.run.spec) in caplog.text
        assert "restore it" in caplog.text
