"""What people read: events as they happen, the status a few times a second, the summary at the end."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from dataclasses import fields
from typing import Any

from edl.core.cluster import Role
from edl.core.errors import StorageError
from edl.core.events import Tell
from edl.core.fleet import Pod
from edl.core.job import JobState
from edl.spec.event import EVENTS, Event
from edl.spec.status import RoleStatus, Status, Summary
from edl.store.rundir import RunDir, append_line, write_json

log = logging.getLogger(__name__)

WINDOW_SECONDS = 5.0
PERIOD_SECONDS = 0.2


class Rate:
    """Records a second: lately, and over all the time in which records were done."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] = (0.0, 0)

    def observe(self, now: float, done: int) -> None:
        """So many records are done now; fewer than before after a rollback."""
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()
            self._first = None
        if not self._seen or done != self._seen[-1][1]:
            self._last = (now, done)
        if self._seen and self._first is None and done > self._seen[0][1]:
            self._first = self._seen[-1]
        self._seen.append((now, done))
        while now - self._seen[0][0] > WINDOW_SECONDS:
            self._seen.popleft()

    @property
    def lately(self) -> float:
        """Over the last seconds."""
        return _slope(self._seen[0], self._seen[-1]) if self._seen else 0.0

    @property
    def overall(self) -> float:
        """From the first to the last record."""
        return _slope(self._first, self._last) if self._first else 0.0


def _slope(a: tuple[float, int], b: tuple[float, int]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0]) if b[0] > a[0] else 0.0


class Reporter:
    """Writes ``events.jsonl`` and ``status.json`` of a run, from a thread of its own."""

    def __init__(self, run: RunDir, job: str, state: JobState) -> None:
        self._run, self._job, self._state = run, job, state
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._rate = Rate()
        self._began = time.time()
        self._thread = threading.Thread(target=self._write_lines, name="events", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ events

    def tell(self, what: Tell) -> None:
        """Queue an event of the core; called under the shell's lock."""
        kind = EVENTS.get(what.event)
        if kind is None:
            log.info("%s %s", what.event, dict(what.fields))
            return
        given = {**what.fields, "time": time.time()}
        if "worker" in given:
            pod = self._state.fleet.pods.get(given["worker"])
            given["worker"] = pod.index if pod else None
        event = kind(**{f.name: given[f.name] for f in fields(kind) if f.name in given})
        self.put(event)

    def put(self, event: Event) -> None:
        """Queue an event of the master's own."""
        self._lines.put(event.to_json())

    def close(self) -> None:
        """Write what is queued."""
        self._lines.put(None)
        self._thread.join()

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                append_line(self._run.events, line)
            except StorageError as error:
                log.error("%s", error)

    # ------------------------------------------------------------------ status

    def write_status(self, status: Status) -> None:
        """Replace ``status.json``; a full disk is logged and does not stop the job."""
        try:
            write_json(self._run.status, status.to_json())
        except StorageError as error:
            log.error("%s", error)

    def status(self) -> Status:
        """The job as it is now. Call with the shell's lock held."""
        state, main = self._state, self._state.main
        done, total = (main.done_records, records_total(state)) if main else (0, 0)
        self._rate.observe(time.monotonic(), done)
        rate = self._rate.lately
        return Status(
            job=self._job,
            run=self._run.run_id,
            run_dir=str(self._run.path),
            phase=state.phase,
            updated=time.time(),
            incarnation=state.incarnation,
            reason=state.reason,
            epoch=min(main.epoch + 1, main.epochs) if main else 0,
            epochs=main.epochs if main else 0,
            step=state.step,
            records_total=total,
            records_done=done,
            loss=state.counters.loss,
            metrics=state.counters.metrics,
            samples_per_second=rate,
            seconds_left=(total - done) / rate if rate > 0 else None,
            workers=tuple(self._role(pod) for pod in state.fleet.live(Role.WORKER)),
            ps=tuple(self._role(pod) for pod in state.fleet.live(Role.PS)),
        )

    def _role(self, pod: Pod) -> RoleStatus:
        return RoleStatus(pod.index, pod.pid, describe_pod(self._state, pod), pod.uid)

    def summary(self, run_seconds: float | None = None) -> Summary:
        """What the run came to."""
        state, main, counters = self._state, self._state.main, self._state.counters
        quarantined = sum(work.records for work in main.quarantined) if main else 0
        lost = main.total - main.done_records - quarantined - main.remaining() if main else 0
        return Summary(
            records_total=records_total(state),
            records_done=main.done_records if main else 0,
            records_repeated=counters.repeated,
            records_lost=lost,
            records_rolled_back=counters.rolled_back,
            records_skipped=counters.skipped + quarantined,
            updates_rolled_back=counters.updates_rolled_back,
            samples_per_second=self._rate.overall,
            seconds=run_seconds if run_seconds is not None else time.time() - self._began,
            workers_lost=counters.workers_lost,
            metrics=counters.metrics,
            export=counters.exported[0] if counters.exported else None,
            logs=str(self._run.logs),
        )


def records_total(state: JobState) -> int:
    """Records that the job is to work through."""
    main, limit = state.main, state.settings.max_steps
    if main is None:
        return 0
    return main.total if limit is None or state.settings.predict else min(main.total, limit * main.minibatch)


def describe_pod(state: JobState, pod: Pod) -> str:
    """What a pod is doing, in a word."""
    if pod.role is Role.PS:
        return "serving" if pod.attached and pod.initialized else "starting"
    kinds = [kind for kind, _ in state.leases_of(pod.uid)]
    if kinds:
        return {"training": "training", "evaluation": "evaluating", "prediction": "predicting"}.get(kinds[0], kinds[0])
    return "waiting" if pod.uid in state.holders else "starting"
