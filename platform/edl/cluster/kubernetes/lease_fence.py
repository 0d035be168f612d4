"""The fence between masters of a job: a Lease that one pod acquires, renews and releases.

Every write names the resourceVersion that it replaces, so if two masters write at the same time, one is refused. The
age of a renewal is measured with the API server's clock, or by observing that the Lease does not change; never with a
node's clock. A Lease that somebody deleted is created again, unless its Job is being deleted: nobody would remove it.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from edl.api.errors import RetryableError
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.api_errors import ApiError, ConflictError, NotFoundError
from edl.cluster.kubernetes.pod_status import is_pod_over, read_containers
from edl.cluster.kubernetes.resource_kinds import JOBS, LEASES, PODS, Manifest, is_being_deleted
from edl.core.decision import Decision
from edl.core.leader_election import (
    LEASE_SECONDS,
    RENEW_DEADLINE_SECONDS,
    RENEW_INTERVAL_SECONDS,
    LeadershipRecord,
    may_take_over,
)

log = logging.getLogger(__name__)

_HOLDER_SEPARATOR = "_"
_NUMBER_PATTERN = re.compile(r"\b\d+\b")


@dataclass(frozen=True, slots=True)
class LeaseCandidate:
    """The pod that wants to become the master of a job.

    Attributes:
        job: name of the job.
        pod: name of the pod.
        uid: uid of the pod.
        owner_references: owner references that the Lease gets.
    """

    job: str
    pod: str
    uid: str
    owner_references: tuple[Manifest, ...] = field(default=())

    @property
    def holder_identity(self) -> str:
        """The pod as holder of the Lease."""
        return f"{self.pod}{_HOLDER_SEPARATOR}{self.uid}"


class LeaseFence:
    """The Lease of a job, from the view of one candidate; see ``edl.core.leader_election.MasterFence``.

    Args:
        api: a client of its own: a renewal must not wait for other requests.
        candidate: this pod.
        clock: monotonic seconds.
    """

    def __init__(
        self, api: KubeClient, candidate: LeaseCandidate, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api, self._candidate, self._clock = api, candidate, clock
        self._name = names.master_name(candidate.job)
        self._lock = (
            threading.Lock()
        )  # one request at a time, because each needs the resourceVersion of the previous one
        self._version = ""
        self._unchanged_since = 0.0
        self._renewed_at: float | None = None
        self._incarnation = 0
        self._lost = False
        self._last_logged = ""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ the port

    @property
    def incarnation(self) -> int:
        """Number of this master, higher than that of every master that held the Lease before."""
        return self._incarnation

    def holds(self) -> bool:
        """Whether no other master can have acquired the Lease yet."""
        renewed = self._renewed_at
        return renewed is not None and not self._lost and self._clock() - renewed < RENEW_DEADLINE_SECONDS

    def lost(self) -> bool:
        """Whether another master has acquired the Lease."""
        return self._lost

    def release(self) -> None:
        """Stop renewing and release the Lease. If the server is unreachable, it expires instead."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            if self._renewed_at is None or self._lost:
                return
            # from now on holds() is False, even if the request below fails
            self._renewed_at = None
            try:
                self._write_lease({"holderIdentity": None})
            except NotFoundError:
                log.info("the Lease was deleted with its Job")
            except ApiError as error:
                log.warning("the Lease was not released; it expires in %g s: %s", LEASE_SECONDS, error)

    # ------------------------------------------------------------------ acquiring

    def acquire(self, should_stop: Callable[[], bool], wait: Callable[[float], Any]) -> bool:
        """Try to acquire the Lease until ``should_stop`` returns True, then renew it until ``release``.

        Args:
            should_stop: called between two attempts.
            wait: waits for a number of seconds, less when the master stops.

        Returns:
            Whether this pod holds the Lease.

        Raises:
            ApiError: a permanent error; the service account may not use Leases.
        """
        while not should_stop():
            answer = self.try_acquire()
            self._log_change(answer)
            if answer.value:
                self._thread = threading.Thread(target=self._renew_loop, name="lease", daemon=True)
                self._thread.start()
                return True
            # half the interval, so that a released Lease is noticed soon
            wait(RENEW_INTERVAL_SECONDS / 2)
        return False

    def try_acquire(self) -> Decision[bool]:
        """Acquire the Lease if that is allowed now; return whether it was acquired, and the reason."""
        with self._lock:
            began = self._clock()  # before the request: the deadline must not begin later than at the server
            try:
                lease, server_now = self._read_lease()
                record = None if lease is None else self._leadership_record(lease)
                # a holder whose containers have ended need not expire: its successor starts at once
                ended = record is not None and self._holder_ended(record.holder)
                answer = may_take_over(record, self._candidate.holder_identity, server_now, holder_ended=ended)
                if answer.value:
                    self._take_lease(lease, began)
            except ConflictError:
                return Decision(False, "another master acquired it first")
            except ApiError as error:
                if not isinstance(error, RetryableError):
                    raise
                return Decision(False, str(error))
            return answer

    def _take_lease(self, lease: Manifest | None, began: float) -> None:
        # the number is in an annotation of the Lease, so it grows even if the journal's volume is new
        self._incarnation = _parse_incarnation(lease) + 1
        self._write_lease({"acquireTime": _format_micro_time(), **self._renewed_spec()}, create=lease is None)
        self._renewed_at = began

    def _leadership_record(self, lease: Manifest) -> LeadershipRecord:
        version, spec = lease["metadata"]["resourceVersion"], lease.get("spec", {})
        # how long it stays unchanged is measured with this process's clock, whatever the clocks of nodes show
        if version != self._version:
            self._version, self._unchanged_since = version, self._clock()
        return LeadershipRecord(
            holder=spec.get("holderIdentity") or "",
            renewed_at=_last_change_time(lease),
            duration_seconds=float(spec.get("leaseDurationSeconds") or LEASE_SECONDS),
            unchanged_seconds=self._clock() - self._unchanged_since,
        )

    def _holder_ended(self, holder: str) -> bool:
        """Whether a kubelet reported that the holder has ended. A deleted pod may still run on a lost node."""
        pod, _, uid = holder.rpartition(_HOLDER_SEPARATOR)
        if not pod or holder == self._candidate.holder_identity:
            return False
        try:
            holder_pod = self._api.get(PODS, pod)
        except NotFoundError:
            return False
        return str(holder_pod["metadata"]["uid"]) == uid and has_pod_ended(holder_pod)

    # ------------------------------------------------------------------ renewing

    def renew_lease(self) -> None:
        """Renew once. Errors are logged, and change what ``holds`` and ``lost`` return."""
        with self._lock:
            began = self._clock()
            try:
                self._write_renewal(began)
            except ApiError as error:
                self._log_change(Decision(False, f"not renewed: {error}"))
            else:
                self._log_change(Decision(not self._lost, "another master holds it" if self._lost else "renewed"))

    def _write_renewal(self, began: float) -> None:
        try:
            self._write_lease(self._renewed_spec())
        except (ConflictError, NotFoundError):
            # the Lease was changed or deleted: lost if another master holds it, otherwise written again
            lease, _ = self._read_lease()
            holder = "" if lease is None else lease.get("spec", {}).get("holderIdentity") or ""
            if lease is not None and holder != self._candidate.holder_identity:
                self._lost = True
                return
            # otherwise the Lease would be created again after its Job, and nobody would delete it
            if lease is None and self._is_job_going():
                raise
            self._version = "" if lease is None else lease["metadata"]["resourceVersion"]
            self._write_lease(self._renewed_spec(), create=lease is None)
        self._renewed_at = began

    def _is_job_going(self) -> bool:
        """Whether the Lease is missing because its Job is being deleted, or because this master is releasing it."""
        if self._stopping.is_set():
            return True
        try:
            job = self._api.get(JOBS, names.master_name(self._candidate.job))
        except NotFoundError:
            return True
        known = {owner["uid"] for owner in self._candidate.owner_references}
        return is_being_deleted(job) or job["metadata"]["uid"] not in known

    def _renew_loop(self) -> None:
        while not self._stopping.wait(RENEW_INTERVAL_SECONDS) and not self._lost:
            self.renew_lease()

    def _log_change(self, decision: Decision[bool]) -> None:
        """Log a decision if it differs from the last one in more than its numbers, such as seconds."""
        message = _NUMBER_PATTERN.sub("", decision.reason)
        if message != self._last_logged:
            log.log(logging.INFO if decision.value else logging.WARNING, "Lease %s: %s", self._name, decision.reason)
        self._last_logged = message

    # ------------------------------------------------------------------ requests

    def _renewed_spec(self) -> Manifest:
        duration = int(LEASE_SECONDS)
        return {
            "holderIdentity": self._candidate.holder_identity,
            "renewTime": _format_micro_time(),
            "leaseDurationSeconds": duration,
        }

    def _read_lease(self) -> tuple[Manifest | None, float | None]:
        """The Lease, or None if there is none, and the server's time."""
        try:
            answer = self._api.request("GET", LEASES.path(self._api.namespace, self._name))
        except NotFoundError:
            return None, None
        return answer.body, answer.server_time

    def _write_lease(self, spec: Manifest, *, create: bool = False) -> None:
        meta: Manifest = {
            "labels": names.object_labels(self._candidate.job),
            "annotations": {names.INCARNATION_ANNOTATION: str(self._incarnation)},
            "ownerReferences": [dict(owner) for owner in self._candidate.owner_references],
        }
        if create:
            head = {"apiVersion": LEASES.api_version, "kind": LEASES.name, "metadata": {"name": self._name, **meta}}
            written = self._api.create({**head, "spec": spec})
        else:
            # with the resourceVersion the server refuses the patch if anybody has changed the Lease
            change = {"metadata": {"resourceVersion": self._version, **meta}, "spec": spec}
            written = self._api.patch(LEASES, self._name, change)
        self._version = written["metadata"]["resourceVersion"]


def has_pod_ended(pod: Manifest) -> bool:
    """Whether a kubelet reported that all containers of a pod have ended.

    The phase is not enough: a controller sets the phase Failed for pods of a lost node, which it cannot observe.
    """
    ends = [container.end for container in read_containers(pod) if not container.is_init]
    return is_pod_over(pod) and bool(ends) and None not in ends


def _parse_incarnation(lease: Manifest | None) -> int:
    text = "" if lease is None else lease["metadata"].get("annotations", {}).get(names.INCARNATION_ANNOTATION, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def _last_change_time(lease: Manifest) -> float | None:
    """When the server last changed the object, in unix seconds of its clock."""
    times = [entry["time"] for entry in lease["metadata"].get("managedFields") or () if entry.get("time")]
    return max((datetime.fromisoformat(time).timestamp() for time in times), default=None)


def _format_micro_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
