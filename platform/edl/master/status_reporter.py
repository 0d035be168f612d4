"""What users read of a running job: events, the status, the final summary, and progress in the log.

Events are written as they happen, the status several times a second.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from edl.api.cluster_port import Role
from edl.api.errors import EdlError, StorageError
from edl.api.run_events import EvaluationEnded, JobEvent, StallBegan
from edl.api.status import STALLED, ParametersStatus, RoleStatus, Status, Summary
from edl.core.allreduce import describe_world
from edl.core.events import EmitEvent, MissingPs, PhaseEntered, TrainingStalled
from edl.core.global_batch import count_full_steps
from edl.core.job import JobStateMachine
from edl.core.job_pods import JobPod
from edl.core.ledger import TRAINING, Ledger
from edl.core.scaling import is_starved
from edl.core.stall import UNSAVED_REASON, find_missing_ps, unsaved_checkpoint_reason
from edl.core.strict_json import decode_json_file
from edl.core.world_rounds import RoundPhase
from edl.jobfile.section_type import from_json, to_json
from edl.master import guarded_threads
from edl.reporting.unit_formats import format_utc
from edl.storage.checkpoint_contents import list_shard_variables
from edl.storage.checkpoint_manifest import cut_directory
from edl.storage.durable_files import append_json_line, read_json, write_json
from edl.storage.run_directory import RunDirectory
from edl.storage.run_weights import describe_initial_weights

log = logging.getLogger(__name__)

LOG_PERIOD_SECONDS = 5.0
"""Seconds between two log lines about progress."""


class ProgressLogger:
    """Logs each training step count once: a waiting job logs nothing."""

    def __init__(self) -> None:
        self._logged_step = -1

    def log_status(self, status: Status) -> None:
        """Log the newest loss if a step was completed since; call every ``LOG_PERIOD_SECONDS``."""
        if status.loss is None or status.step == self._logged_step:
            return
        self._logged_step = status.step
        epoch = f", epoch {status.epoch}/{status.epochs}" if status.epochs > 1 and status.epoch else ""
        records = f"{status.records_done:,} of {status.records_total:,} records"
        log.info("Loss %.4g at step %s%s, %s", status.loss, f"{status.step:,}", epoch, records)


def log_event(event: JobEvent) -> None:
    """Log the result of an evaluation, by name and value; ``v`` is the step, which is the version of the parameters."""
    if isinstance(event, EvaluationEnded):
        metrics = {name: value if value is None else float(f"{value:.6g}") for name, value in event.metrics.items()}
        log.info("Evaluation metrics[v=%d]: %s", event.step, metrics)


# --------------------------------------------------------------------------------------------------
# Throughput.


WINDOW_SECONDS = 5.0
"""Seconds over which the recent rate is measured."""


class ThroughputMeter:
    """Records per second: recent, and over all the time in which records were done.

    Args:
        records: records that an earlier master has counted.
        seconds: the time in which they were done.

    Attributes:
        records: counted records, including those that rolled back later.
        seconds: the time in which they were done.
    """

    def __init__(self, records: int = 0, seconds: float = 0.0) -> None:
        self.records, self.seconds = records, seconds
        self._samples: deque[tuple[float, int]] = deque()
        self._counted_until: float | None = None

    def observe(self, now: float, done: int) -> None:
        """Record the current number of done records; after a rollback it is lower than before."""
        # A rollback starts a new window, because a negative rate would be meaningless.
        if self._samples:
            self._add_interval(now, done, *self._samples[-1])
        if self._samples and done < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, done))
        while now - self._samples[0][0] > WINDOW_SECONDS:
            self._samples.popleft()

    def _add_interval(self, now: float, done: int, before: float, done_before: int) -> None:
        if done > done_before:
            self.records += done - done_before
            self.seconds += now - (before if self._counted_until is None else self._counted_until)
            self._counted_until = now

    @property
    def recent_rate(self) -> float:
        """The rate over the last seconds."""
        return _rate_between(self._samples[0], self._samples[-1]) if self._samples else 0.0

    @property
    def overall_rate(self) -> float:
        """The rate from the first to the last record."""
        return self.records / self.seconds if self.seconds > 0 else 0.0


def _rate_between(a: tuple[float, int], b: tuple[float, int]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0]) if b[0] > a[0] else 0.0


log = logging.getLogger(__name__)

PERIOD_SECONDS = 0.2
"""Seconds between two writes of ``status.json``."""
PENDING, JOINING, LEAVING = "pending", "joining", "leaving"
"""State of a pod that is not running yet, or was asked to stop."""
_REFUSALS_SHOWN = 8
"""Maximum number of refused pods in the status."""


class StatusReporter:
    """Writes ``events.jsonl`` and ``status.json`` of a run. A full disk is logged and does not stop the job.

    Args:
        run: the run directory.
        job: name of the job.
        state: the job's state; read with the shell's lock held.
        on_failure: called when no more events can be written for another reason than the disk.
        on_event: called with every event immediately, before it is written.
        parameters_status: returns the statistics of the parameter servers; None if nothing is trained.
        now: returns the core's time.
    """

    def __init__(
        self,
        run: RunDirectory,
        job: str,
        state: JobStateMachine,
        on_failure: guarded_threads.FailureHandler,
        on_event: Callable[[JobEvent], None] = lambda event: None,
        parameters_status: Callable[[], ParametersStatus | None] = lambda: None,
        now: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._parameters_status, self._now = parameters_status, now
        self._run, self._job, self._state, self._on_event = run, job, state, on_event
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._start_time = find_run_start(run)
        self._throughput = restore_throughput(run, self._start_time)
        self._worker_throughput: dict[str, ThroughputMeter] = {}
        self._first_step: tuple[int, int] | None = None
        """The step and the records done when this master counted them first."""
        self._writing = threading.Lock()
        self._thread = guarded_threads.start_guarded_thread("events", self._write_lines, on_failure)

    # ------------------------------------------------------------------ events

    def emit_core_event(self, command: EmitEvent) -> None:
        """Queue an event of the core with the time of day; what is not meant for users goes to the log."""
        event = command.event
        if isinstance(event, PhaseEntered):
            log.info("%s %s", event.kind, asdict(event))
            return
        if isinstance(event, TrainingStalled):
            event = StallBegan(describe_stall(event.missing, event.unsaved))
        self.emit_event(replace(event, time=time.time()))

    def emit_event(self, event: JobEvent) -> None:
        """Queue an event of the master itself."""
        # Published before it is written: a volume that hangs must not hide it from users.
        self._on_event(event)
        log_event(event)
        self._lines.put(to_json(event))

    def close(self) -> None:
        """Write the queued events and stop."""
        self._lines.put(None)
        self._thread.join()

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                append_json_line(self._run.events, line)
            except StorageError as error:
                log.error("%s", error)

    # ------------------------------------------------------------------ status

    def write_status(self, status: Status) -> None:
        """Replace ``status.json``."""
        try:
            # The periodic report and the last one come from different threads.
            with self._writing:
                write_json(self._run.status, to_json(status))
        except StorageError as error:
            log.error("%s", error)

    def build_status(self) -> Status:
        """The current status. Call with the shell's lock held."""
        state, main = self._state, self._state.main_ledger
        done, total = (main.done_records, count_total_records(state)) if main else (0, 0)
        self._throughput.observe(time.monotonic(), done)
        self._count_added_steps()
        rate = self._throughput.recent_rate
        self._worker_throughput = {uid: pace for uid, pace in self._worker_throughput.items() if uid in state.holders}
        waits = describe_stall(find_missing_ps(state, self._now()), unsaved_checkpoint_reason(state))
        return Status(
            job=self._job,
            run=self._run.run_id,
            run_dir=str(self._run.path),
            phase=STALLED if waits else state.phase,
            updated=time.time(),
            incarnation=state.incarnation,
            reason=waits or state.reason,
            epoch=current_epoch(main) if main else 0,
            epochs=main.epochs if main else 0,
            step=state.step,
            records_total=total,
            records_done=done,
            loss=state.counters.loss,
            metrics=state.counters.metrics,
            samples_per_second=rate,
            records_worked=self._throughput.records,
            seconds_worked=self._throughput.seconds,
            seconds_left=(total - done) / rate if rate > 0 else None,
            workers=tuple(self._role_status(pod) for pod in state.pods.live_pods(Role.WORKER)),
            ps=tuple(self._role_status(pod) for pod in state.pods.live_pods(Role.PS)),
            workers_wanted=state.workers_max,
            workers_min=state.workers_min,
            starved=is_starved(state),
            refusals=self._shown_refusals(),
            parameters=self._parameters_status(),
            steps_not_applied=state.counters.steps_not_applied,
            updates_skipped=state.counters.updates_skipped,
            records_not_trained=self._count_not_trained(),
            world=describe_world(state),
        )

    def _role_status(self, pod: JobPod) -> RoleStatus:
        doing, reason = describe_pod(self._state, pod), ""
        if doing == PENDING:
            reason = pod.message or pod.reason
        elif doing == LEAVING:
            reason = pod.describe_end()
        elif doing == JOINING:
            reason = "follows the steps of the round until it becomes a member"
        return RoleStatus(pod.index, pod.pid, doing, pod.uid, pod.node, reason, self._worker_rate(pod))

    def _worker_rate(self, pod: JobPod) -> float | None:
        """Records per second of a worker, approximately: each step of its leases counts as a whole one."""
        holder = self._state.holders.get(pod.uid)
        if pod.role is not Role.WORKER or holder is None:
            return None
        rate = self._worker_throughput.setdefault(pod.uid, ThroughputMeter())
        rate.observe(time.monotonic(), holder.step_count * self._state.settings.step_records)
        return rate.recent_rate

    def _shown_refusals(self) -> dict[str, str]:
        """The first refused starts: all are requested one after the other, and the status must stay small."""
        refused = sorted(self._state.pods.refusals.items())[:_REFUSALS_SHOWN]
        return {f"{role}-{index}": reason for (role, index), reason in refused}

    def build_summary(self) -> Summary:
        """The summary of the run. Call with the shell's lock held."""
        state, main, counters = self._state, self._state.main_ledger, self._state.counters
        quarantined = sum(work.records for work in main.quarantined_ranges) if main else 0
        # Computed and not assumed to be 0, so that an error of the ledger would show.
        lost = main.total_records - main.done_records - quarantined - main.count_remaining_records() if main else 0
        return Summary(
            records_total=count_total_records(state),
            records_done=main.done_records if main else 0,
            records_repeated=counters.repeated,
            records_lost=lost,
            records_rolled_back=counters.rolled_back,
            records_skipped=counters.skipped + quarantined,
            updates_rolled_back=counters.updates_rolled_back,
            steps_not_applied=counters.steps_not_applied,
            updates_skipped=counters.updates_skipped,
            records_not_trained=self._count_not_trained(),
            warnings=tuple(text for texts in counters.warnings.values() for text in texts),
            states_taken=state.world.states_taken if state.world is not None else 0,
            steps_added=self._count_added_steps(),
            updates_rolled_back_of=self._updates_by_variable(),
            samples_per_second=self._throughput.overall_rate,
            seconds=max(0.0, time.time() - self._start_time),
            workers_lost=counters.workers_lost,
            metrics=counters.metrics,
            export=counters.exported[0] if counters.exported else None,
            export_loading=(counters.loading or None) if counters.exported else None,
            logs=str(self._run.logs),
            began_with=describe_initial_weights(self._run),
            parameters=self._parameters_status(),
        )

    def _count_not_trained(self) -> int:
        main = self._state.main_ledger
        return main.count_done_remainders() if main is not None and self._state.settings.drop_remainder else 0

    def _count_added_steps(self) -> int:
        """Steps beyond those of full batches since this master began; a fixed batch is the same at any world."""
        state, main = self._state, self._state.main_ledger
        batch = state.settings.global_batch
        if batch is None or main is None or not main.plan.records:
            return 0
        done = main.done_records + sum(work.records for work in main.quarantined_ranges)
        if self._first_step is None or done < self._first_step[1]:
            self._first_step = (state.step, done)
        step, before = self._first_step
        return max(0, state.step - step - count_full_steps(before, done, main.plan.records, batch))

    def _updates_by_variable(self) -> dict[str, int]:
        """Rolled-back updates by variable.

        A PS owns the same variables for the whole run, and its shards name them.
        """
        checkpoint, updates = self._state.checkpoint, self._state.counters.updates_of
        if checkpoint is None:
            return {}
        directory = cut_directory(self._run.checkpoints, checkpoint.cut)
        try:
            return {name: count for ps, count in updates.items() for name in list_shard_variables(directory, int(ps))}
        except StorageError as error:
            log.error("cannot determine which variables rolled back: %s", error)
            return {}


def describe_stall(missing: Sequence[MissingPs], unsaved: str) -> str:
    """What a stalled job waits for; empty for any other."""
    ps = (f"waiting for ps-{each.index}, {each.reason}{_format_since(each.since)}" for each in missing)
    return "; ".join([*ps, *([f"{UNSAVED_REASON}: {unsaved}"] if unsaved else [])])


def _format_since(moment: float) -> str:
    return f" since {format_utc(moment)}" if moment else ""


def count_total_records(state: JobStateMachine) -> int:
    """The total number of records: the done ones, and those of the remaining steps.

    With ``max_steps`` the number is exact only after the last step, because a minibatch at the end of a
    range may be smaller.
    """
    main, limit = state.main_ledger, state.settings.max_steps
    if main is None:
        return 0
    if limit is None or state.settings.main_kind != TRAINING:
        return main.total_records
    # Under AllReduce each member has a minibatch in a step, or a share of the global batch.
    done, minibatches = (main.done_steps, 1) if state.world is None else (state.step, max(1, len(state.world.members)))
    left = max(0, limit - done) * (state.settings.global_batch or minibatches * main.minibatch)
    return min(main.total_records, main.done_records + left)


def current_epoch(ledger: Ledger) -> int:
    """The current epoch, from 1."""
    # By the done records: the plan is ahead, because ranges are leased before they are done.
    records = ledger.plan.records
    return min(ledger.done_records // records + 1, ledger.epochs) if records else ledger.epochs


def describe_pod(state: JobStateMachine, pod: JobPod) -> str:
    """What a pod is doing, in one word."""
    if not pod.staying:
        return LEAVING
    if not pod.has_run:
        return PENDING
    if pod.role is Role.PS:
        return "serving" if pod.attached and pod.initialized else "starting"
    kinds = [kind for kind, _ in state.worker_leases(pod.uid)]
    if kinds and kinds[0] == state.settings.main_kind and pod.building:
        # A worker may hold a lease while it still imports TensorFlow.
        return "starting"
    if kinds:
        return {"training": "training", "evaluation": "evaluating", "prediction": "predicting"}.get(kinds[0], kinds[0])
    if pod.uid not in state.holders:
        return "starting"
    rounds = state.world
    # Between two rounds nobody trains, and the next one may have this worker.
    joins = rounds is not None and rounds.phase is RoundPhase.RUNNING and pod.uid not in rounds.members
    return JOINING if joins else "waiting"


def find_run_start(run: RunDirectory) -> float:
    """When the run was last started or resumed, in unix seconds, regardless of master restarts."""
    # Without such an event, it starts now.
    started = 0.0
    with suppress(FileNotFoundError), run.events.open("rb") as lines:
        for line in lines:
            # The file may be large; parse only the lines that can be such an event.
            if b'"run_started"' in line:
                started = _parse_start_time(line) or started
    return started or time.time()


def restore_throughput(run: RunDirectory, run_start: float) -> ThroughputMeter:
    """Restore the rate from the status of the previous master, if it belongs to the same start of the run."""
    # If there is none, or it is unreadable, measuring starts over.
    with suppress(EdlError):
        status = from_json(Status, read_json(run.status), str(run.status))
        if status.updated >= run_start:
            rate = ThroughputMeter(status.records_worked, status.seconds_worked)
            # The time of the previous master on this process's clock. Clocks of two machines may
            # differ, so it may seem to lie in the future.
            rate.observe(time.monotonic() - max(0.0, time.time() - status.updated), status.records_done)
            return rate
    return ThroughputMeter()


def _parse_start_time(line: bytes) -> float | None:
    try:
        event = decode_json_file(line)
    except ValueError:  # truncated by a crash
        return None
    return float(event["time"]) if event.get("event") == "run_started" else None
