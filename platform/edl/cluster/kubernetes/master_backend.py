"""What a master in a pod uses: the cluster, the fence and the status publisher of its job, and how it ends the job.

``KubeMasterBackend.acquire`` makes the first request to the API server. No other request is sent before it has
succeeded: until then another master decides.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from edl.api.cluster_port import PodOptions, Role
from edl.api.errors import BadInputError, RetryableError
from edl.api.job_spec import JobSpec
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import JSON_PATCH, STRATEGIC_MERGE_PATCH, KubeClient, RateLimiter
from edl.cluster.kubernetes.api_errors import (
    ApiError,
    ConflictError,
    InvalidObjectError,
    NotFoundError,
    RbacDeniedError,
)
from edl.cluster.kubernetes.job_manifests import owner_reference, render_pod
from edl.cluster.kubernetes.kube_cluster import KubeCluster
from edl.cluster.kubernetes.lease_fence import LeaseCandidate, LeaseFence
from edl.cluster.kubernetes.rate_limiter import TokenBucketLimiter
from edl.cluster.kubernetes.resource_kinds import CONFIGMAPS, JOBS, SECRETS, SERVICES, Manifest, ResourceKind
from edl.cluster.kubernetes.service_account import connect_service_account
from edl.cluster.kubernetes.status_publisher import KubeStatusPublisher
from edl.jobfile.path_resolution import has_shared_storage

# --------------------------------------------------------------------------------------------------
# Everything of a job belongs to its Job, and goes with it.
#
# ``edl submit`` makes it so. After ``edl render | kubectl apply`` nobody has: the master does when it starts, but for
# the
# token's Secret. Whoever may patch Secrets can read them (docs/reference/rights.md); so the master, which may delete
# its
# own token, takes that along when its job is over or its Job is gone.


def adopt_objects(api: KubeClient, job: str, uid: str) -> None:
    """Put the Job's reference onto the objects of the job that lack it; what cannot be had is logged.

    Args:
        api: of the job's namespace.
        job: name of the job.
        uid: of the Job.

    Raises:
        ApiError: the Job cannot be read.
    """
    if _made_by_submit(api.get(JOBS, names.master_name(job))):
        return
    for kind, name in dependent_objects(job):
        try:
            _adopt_object(api, kind, name, job, uid)
        except NotFoundError:
            log.info("there is no %s %s", kind.name, name)
        except ApiError as error:
            log.warning("%s", _leftover_text(kind, name, job, error.message))


def dependent_objects(job: str) -> Iterator[tuple[ResourceKind, str]]:
    """What is made beside a Job and its token."""
    yield CONFIGMAPS, names.spec_configmap(job)
    yield CONFIGMAPS, names.status_configmap(job)
    yield SERVICES, names.master_name(job)


def delete_unowned_token(api: KubeClient, job: str, uid: str, token_secret: str, *, job_ended: bool) -> bool:
    """Delete the token that nobody owns, if nobody will need it again.

    Nobody will when the Job is gone, or being deleted. When the job is over and its Job stays, the token of
    ``edl submit`` stays as well: it is the Job's. A later Job of the same name may use a Secret of the same name: only
    the Secret that was there while there was no such Job is deleted.

    Args:
        api: of the job's namespace.
        job: name of the job.
        uid: of the Job.
        token_secret: name of the Secret that the pods of the job mount. One that the user named is the user's.
        job_ended: the job has ended, and its pods are gone.

    Returns:
        Whether there is nothing left to retry. A Secret that may not be deleted is logged and stays.
    """
    if token_secret != names.token_secret(job):
        return True
    try:
        if _is_token_needed(api, job, uid, job_ended=job_ended):
            return True
        # A master may not get Secrets; this tells the uid alone.
        found = api.delete(SECRETS, token_secret, dry_run=True)
        if _is_token_needed(
            api, job, uid, job_ended=job_ended
        ):  # a new Job may have been made since, and then its token
            return True
        api.delete(SECRETS, token_secret, uid=found["details"]["uid"])
    except (NotFoundError, ConflictError):
        return True
    except ApiError as error:
        forbidden = isinstance(error, RbacDeniedError)
        why = "masters may not delete their token in this namespace" if forbidden else error.message
        log.warning("%s", _leftover_text(SECRETS, token_secret, job, why))
        return not isinstance(error, RetryableError)
    log.info("deleted the job's token, %s, which nobody owned", token_secret)
    return True


def _is_token_needed(api: KubeClient, job: str, uid: str, *, job_ended: bool) -> bool:
    try:
        there = api.get(JOBS, names.master_name(job))
    except NotFoundError:
        return False
    if there["metadata"]["uid"] != uid:
        return True
    return not (job_ended or there["metadata"].get("deletionTimestamp")) or _made_by_submit(there)


def _made_by_submit(there: Manifest) -> bool:
    """Whether ``edl submit`` made the Job, and with it all else as the Job's own."""
    return names.SUBMISSION_ANNOTATION in (there["metadata"].get("annotations") or {})


def _adopt_object(api: KubeClient, kind: ResourceKind, name: str, job: str, uid: str) -> None:
    """Two patches: one that only tests whether the object is the job's, one that adds."""
    label = names.JOB_LABEL.replace("~", "~0").replace("/", "~1")
    try:
        api.patch(kind, name, [{"op": "test", "path": f"/metadata/labels/{label}", "value": job}], style=JSON_PATCH)
    except InvalidObjectError:
        log.info("%s %s is somebody else's", kind.name, name)
        return
    # Merged by uid: other owners stay, and the Job's own reference is there once however often this is done.
    api.patch(kind, name, {"metadata": {"ownerReferences": [owner_reference(job, uid)]}}, style=STRATEGIC_MERGE_PATCH)


def _leftover_text(kind: ResourceKind, name: str, job: str, why: str) -> str:
    """What becomes of an object that is not the Job's own, why, and what to do: one line."""
    return (
        f"{kind.name} {name} stays behind when the Job is deleted with kubectl: {why}. "
        f"`edl delete {job}` removes it, before or after, and so does `kubectl delete {kind.name.lower()} {name}`"
    )


log = logging.getLogger(__name__)

CONCLUDE_SECONDS = 20.0
"""How long a master goes on removing the pods of its job, and telling Kubernetes that it has failed."""
LEAVE_SECONDS = 5.0
"""How long a master that goes tries to hear whether its Job is still there: its pod has 30 s in all."""
_CONCLUDE_PAUSE_SECONDS = 0.5
_POOL_SIZE = 8


@dataclass(frozen=True, slots=True)
class MasterPodInfo:
    """Where a master is, as its pod tells it.

    Attributes:
        job: name of the job.
        job_uid: of the Job.
        namespace: of all of it.
        pod: name of the master's pod.
        pod_uid: of the master's pod.
        run_dir: directory of the run.
        token_secret: name of the Secret that the pods of the job mount.
    """

    job: str
    job_uid: str
    namespace: str
    pod: str
    pod_uid: str
    run_dir: str
    token_secret: str

    @classmethod
    def from_environment(cls, job: str, environment: Mapping[str, str]) -> MasterPodInfo:
        """Read what ``edl.cluster.kubernetes.job_manifests`` put into the master's pod.

        Raises:
            BadInputError: a variable is missing.
        """
        wanted = ("EDL_JOB_UID", "EDL_NAMESPACE", "EDL_POD", "EDL_UID", "EDL_RUN_DIR")
        missing = [name for name in wanted if not environment.get(name)]
        if missing:
            raise BadInputError(f"The environment lacks {', '.join(missing)}", hint="edl submit makes a master's pod.")
        job_uid, namespace, pod, uid, run_dir = (environment[name] for name in wanted)
        return cls(
            job, job_uid, namespace, pod, uid, run_dir, environment.get("EDL_TOKEN_SECRET") or names.token_secret(job)
        )


class KubeMasterBackend:
    """The master's view of its job on Kubernetes.

    Args:
        spec: the job's spec, from which its pods are rendered.
        pod_info: the pod in which the master runs.
        make_client: makes an API client with or without a rate limiter; the fence has a client without one.
    """

    def __init__(
        self, spec: JobSpec, pod_info: MasterPodInfo, make_client: Callable[[RateLimiter | None], KubeClient]
    ) -> None:
        owners = (owner_reference(pod_info.job, pod_info.job_uid),)
        self._pod_info = pod_info
        self.durable = has_shared_storage(spec)
        self.fence = LeaseFence(make_client(None), LeaseCandidate(pod_info.job, pod_info.pod, pod_info.pod_uid, owners))
        self._api = make_client(TokenBucketLimiter()).with_fence(self.fence.holds)
        render = partial(self._render_pod, spec)
        self.cluster = KubeCluster(self._api, pod_info.job, pod_info.job_uid, pod_info.namespace, render)
        self.status_publisher = KubeStatusPublisher(make_client(None).with_fence(self.fence.holds), pod_info.job)
        self._unfenced = make_client(None)
        self._concluded = False
        self._spec_uid: str | None = None

    @classmethod
    def from_environment(cls, spec: JobSpec, environment: Mapping[str, str]) -> KubeMasterBackend:
        """The platform of this pod.

        Raises:
            BadInputError: this is no master's pod, or it has no service account.
        """
        pod_info = MasterPodInfo.from_environment(spec.name, environment)
        connection = connect_service_account(environment, pod_info.namespace, pool_size=_POOL_SIZE)
        return cls(spec, pod_info, lambda pace: KubeClient(connection, rate_limiter=pace))

    def acquire(self, stopping: threading.Event) -> bool:
        """Wait for the right to decide; then what was applied by hand is made the Job's own.

        Args:
            stopping: set when this master is told to go.

        Returns:
            Whether it has the right; not, if it was told to go before.

        Raises:
            ApiError: it will never get it: its service account may not touch Leases.
        """
        if not self.fence.acquire(stopping.is_set, stopping.wait):
            return False
        threading.Thread(target=self._adopt_objects, name="ownership", daemon=True).start()
        return True

    def conclude(self, *, failed: bool) -> None:
        """Leave nothing of the job behind, and tell Kubernetes that one that exits 1 after this was the last master.

        Goes on for a while if the server is away. When that was in vain for a job that failed, another master starts,
        reads in the journal that the job has ended, and does this again; what a job that is done left behind goes with
        its Job, but for a token that nobody owns.
        """
        until = time.monotonic() + CONCLUDE_SECONDS
        steps: list[Callable[[], bool]] = [partial(self._clear_pods, keep_crashed=failed and not self.durable)]
        if failed:
            steps.append(self._fail_job)
        done = [_retry_until(step, until) for step in steps]
        if all(done):  # otherwise another master may come, and its pod mounts the token
            self._concluded = _retry_until(partial(self._delete_unowned_token, job_ended=True), until)

    def close(self) -> None:
        """Show what was published last, give the right back, and leave nothing behind if the Job is gone.

        Whether a master was told to go because its node is drained or because its Job was deleted, only the Job can
        tell. The next master must not wait for that answer.
        """
        self.status_publisher.close()
        self.fence.release()
        if not self._concluded:
            _retry_until(partial(self._delete_unowned_token, job_ended=False), time.monotonic() + LEAVE_SECONDS)

    def _render_pod(self, spec: JobSpec, role: Role, index: int, options: PodOptions) -> Manifest:
        pod_info = self._pod_info
        return render_pod(
            spec,
            role,
            index,
            namespace=pod_info.namespace,
            job_uid=pod_info.job_uid,
            run_dir=pod_info.run_dir,
            options=options,
            token_secret=pod_info.token_secret,
            spec_uid=self._read_spec_uid(),
        )

    def _read_spec_uid(self) -> str:
        """Uid of the ConfigMap that pods of the job name as their controller; empty when it cannot be had.

        A pod starts without it, and then ``kubectl drain`` wants ``--force``: nothing that a job would wait for.
        """
        if self._spec_uid is None:
            name = names.spec_configmap(self._pod_info.job)
            try:
                self._spec_uid = str(self._api.get(CONFIGMAPS, name)["metadata"]["uid"])
            except NotFoundError:
                self._spec_uid = ""
                log.warning(
                    "there is no ConfigMap %s: pods start without a controller, kubectl drain wants --force", name
                )
            except ApiError as error:
                log.warning("a pod starts without a controller, and kubectl drain will want --force: %s", error)
        return self._spec_uid or ""

    def _adopt_objects(self) -> None:
        try:
            adopt_objects(self._api, self._pod_info.job, self._pod_info.job_uid)
        except Exception:  # training does not depend on it
            log.exception("the objects of the job were not made the Job's own")

    def _delete_unowned_token(self, *, job_ended: bool) -> bool:
        pod_info = self._pod_info
        return delete_unowned_token(
            self._unfenced, pod_info.job, pod_info.job_uid, pod_info.token_secret, job_ended=job_ended
        )

    def _clear_pods(self, *, keep_crashed: bool) -> bool:
        """Whether the pods are gone, also one that was asked for in the last moment; or cannot be removed by us."""
        try:
            return self.cluster.delete_all_pods(keep_crashed=keep_crashed)
        except ApiError as error:
            log.warning("pods of the job are still there: %s", error)
            return not isinstance(error, RetryableError)

    def _fail_job(self) -> bool:
        """Whether the Job knows, or never will."""
        name = names.master_name(self._pod_info.job)
        test: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": self._pod_info.job_uid},
            {"op": "replace", "path": "/spec/backoffLimit", "value": 0},
        ]
        try:
            self._api.patch(JOBS, name, test, style="json")
        except ApiError as error:
            log.warning("the Job was not told that it has failed: %s", error)
            return not isinstance(error, RetryableError)
        return True


def _retry_until(step: Callable[[], bool], deadline: float) -> bool:
    """Try a step until it has succeeded, or it is too late; whether it has."""
    while not step():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_CONCLUDE_PAUSE_SECONDS)
    return True
