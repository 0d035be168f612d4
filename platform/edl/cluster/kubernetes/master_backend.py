"""Everything that a master in a pod uses: cluster, fence and status publisher of its job, and the steps at its end.

``KubeMasterBackend.acquire`` sends the first request to the API server. No other request is sent before it has
succeeded, because another master may decide until then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
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
from edl.cluster.kubernetes.job_manifests import owner_reference, render_log_pod, render_pod
from edl.cluster.kubernetes.kube_cluster import KubeCluster
from edl.cluster.kubernetes.lease_fence import LeaseCandidate, LeaseFence
from edl.cluster.kubernetes.pod_status import is_pod_over
from edl.cluster.kubernetes.rate_limiter import TokenBucketLimiter
from edl.cluster.kubernetes.resource_kinds import (
    CONFIGMAPS,
    JOBS,
    PODS,
    SECRETS,
    SERVICES,
    Manifest,
    ResourceKind,
    is_being_deleted,
)
from edl.cluster.kubernetes.service_account import connect_service_account
from edl.cluster.kubernetes.status_publisher import KubeStatusPublisher
from edl.core.backoff import ExponentialBackoff
from edl.jobfile.path_resolution import has_shared_storage
from edl.retry.attempts import Retry

# --------------------------------------------------------------------------------------------------
# All objects of a job belong to its Job, and are deleted with it.
#
# ``edl submit`` adds the owner references. After ``edl render | kubectl apply`` they are missing, so the master adds
# them when it starts, except to the token's Secret: whoever may patch Secrets can read them
# (docs/reference/rights.md). The master may delete its own token instead, and does so when its job is over or its Job
# is gone.


def adopt_objects(api: KubeClient, job: str, uid: str) -> None:
    """Add the Job's owner reference to the objects of the job that lack it. Failures are logged.

    Args:
        api: client for the job's namespace.
        job: name of the job.
        uid: uid of the Job.

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
    """The objects beside a Job, except its token."""
    yield CONFIGMAPS, names.spec_configmap(job)
    yield CONFIGMAPS, names.status_configmap(job)
    yield SERVICES, names.master_name(job)


def delete_unowned_token(api: KubeClient, job: str, uid: str, token_secret: str, *, job_ended: bool) -> bool:
    """Delete a token without an owner, if it is not needed any more.

    It is not needed if the Job is gone or being deleted. If the job is over and its Job stays, a token of
    ``edl submit`` stays too, because the Job owns it. A later Job of the same name may use a Secret of the same name,
    so only the Secret that existed while there was no such Job is deleted.

    Args:
        api: client for the job's namespace.
        job: name of the job.
        uid: uid of the Job.
        token_secret: name of the Secret that the job's pods mount. A Secret that the user named is the user's.
        job_ended: the job has ended, and its pods are gone.

    Returns:
        Whether nothing is left to retry. If the Secret must not be deleted, that is logged, and it stays.
    """
    if token_secret != names.token_secret(job):
        return True
    try:
        if _is_token_needed(api, job, uid, job_ended=job_ended):
            return True
        # A master may not get Secrets; a dry run of the deletion returns the uid and nothing of the content.
        secret = api.delete(SECRETS, token_secret, dry_run=True)
        # a new Job, and then its token, may have been created since the first check
        if _is_token_needed(api, job, uid, job_ended=job_ended):
            return True
        api.delete(SECRETS, token_secret, uid=secret["details"]["uid"])
    except (NotFoundError, ConflictError):
        return True
    except ApiError as error:
        forbidden = isinstance(error, RbacDeniedError)
        reason = "masters may not delete their token in this namespace" if forbidden else error.message
        log.warning("%s", _leftover_text(SECRETS, token_secret, job, reason))
        return not isinstance(error, RetryableError)
    log.info("deleted the job's token, %s, which nobody owned", token_secret)
    return True


def _is_token_needed(api: KubeClient, job: str, uid: str, *, job_ended: bool) -> bool:
    try:
        existing_job = api.get(JOBS, names.master_name(job))
    except NotFoundError:
        return False
    if existing_job["metadata"]["uid"] != uid:
        return True
    return not (job_ended or is_being_deleted(existing_job)) or _made_by_submit(existing_job)


def _made_by_submit(existing_job: Manifest) -> bool:
    """Whether ``edl submit`` created the Job, and with it the owner references of the other objects."""
    return names.SUBMISSION_ANNOTATION in (existing_job["metadata"].get("annotations") or {})


def _adopt_object(api: KubeClient, kind: ResourceKind, name: str, job: str, uid: str) -> None:
    """Adopt an object with two patches: one tests that the object belongs to the job, the other adds the reference."""
    label = names.JOB_LABEL.replace("~", "~0").replace("/", "~1")
    try:
        api.patch(kind, name, [{"op": "test", "path": f"/metadata/labels/{label}", "value": job}], style=JSON_PATCH)
    except InvalidObjectError:
        log.info("%s %s does not belong to this job", kind.name, name)
        return
    # A strategic merge by uid: other owners stay, and repeating it does not add the reference twice.
    api.patch(kind, name, {"metadata": {"ownerReferences": [owner_reference(job, uid)]}}, style=STRATEGIC_MERGE_PATCH)


def _leftover_text(kind: ResourceKind, name: str, job: str, reason: str) -> str:
    """A line about an object without an owner: what happens to it, why, and what the user can do."""
    return (
        f"{kind.name} {name} stays when the Job is deleted with kubectl: {reason}. "
        f"`edl delete {job}` removes it, before or after that, and so does `kubectl delete {kind.name.lower()} {name}`"
    )


log = logging.getLogger(__name__)

CONCLUDE_SECONDS = 20.0
"""Time for which a master tries to remove the pods of its job and to mark the Job as failed."""
LEAVE_SECONDS = 5.0
"""Time for which a leaving master tries to find out whether its Job still exists. Its pod has 30 s in all."""
_CONCLUDE_BACKOFF = ExponentialBackoff(first_seconds=0.25, max_seconds=1.0)
_POOL_SIZE = 8


@dataclass(frozen=True, slots=True)
class MasterPodInfo:
    """Identity of a master's pod, from its environment.

    Attributes:
        job: name of the job.
        job_uid: uid of the Job.
        namespace: namespace of the job.
        pod: name of the master's pod.
        pod_uid: uid of the master's pod.
        run_dir: directory of the run.
        token_secret: name of the Secret that the job's pods mount.
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
        """Read the variables that ``edl.cluster.kubernetes.job_manifests`` sets in the master's pod.

        Raises:
            BadInputError: a variable is missing.
        """
        wanted = ("EDL_JOB_UID", "EDL_NAMESPACE", "EDL_POD", "EDL_UID", "EDL_RUN_DIR")
        missing = [name for name in wanted if not environment.get(name)]
        if missing:
            raise BadInputError(
                f"The environment has no {', '.join(missing)}", hint="The pod of a master is created by edl submit."
            )
        job_uid, namespace, pod, uid, run_dir = (environment[name] for name in wanted)
        return cls(
            job, job_uid, namespace, pod, uid, run_dir, environment.get("EDL_TOKEN_SECRET") or names.token_secret(job)
        )


class KubeMasterBackend:
    """A ``MasterBackend`` of ``edl.master.backend``: the Job becomes Complete or Failed, and no pod outlives it.

    Args:
        spec: the job's spec, from which its pods are rendered.
        pod_info: the pod in which the master runs.
        make_client: makes an API client with or without a rate limiter; the fence has a client without one.
    """

    gone_seconds = 8.0
    """Maximum seconds for pods to end at the end of the job."""

    def __init__(
        self, spec: JobSpec, pod_info: MasterPodInfo, make_client: Callable[[RateLimiter | None], KubeClient]
    ) -> None:
        owners = (owner_reference(pod_info.job, pod_info.job_uid),)
        self._spec, self._pod_info = spec, pod_info
        self.durable = has_shared_storage(spec)
        self.fence = LeaseFence(make_client(None), LeaseCandidate(pod_info.job, pod_info.pod, pod_info.pod_uid, owners))
        # cluster and publisher send changes only while this master holds the Lease; a renewal must wait for neither
        self._api = make_client(TokenBucketLimiter()).with_fence(self.fence.holds)
        render = partial(self._render_pod, spec)
        self.cluster = KubeCluster(self._api, pod_info.job, pod_info.job_uid, pod_info.namespace, render)
        self.status_publisher = KubeStatusPublisher(make_client(None).with_fence(self.fence.holds), pod_info.job)
        self.desired_states = self.status_publisher
        self._unfenced = make_client(None)  # for the token, which may be deleted after the Lease was released
        self._concluded = False
        self._spec_uid: str | None = None

    @classmethod
    def from_environment(cls, spec: JobSpec, environment: Mapping[str, str]) -> KubeMasterBackend:
        """The backend of a master in this pod.

        Raises:
            BadInputError: this is not the pod of a master, or it has no service account.
        """
        pod_info = MasterPodInfo.from_environment(spec.name, environment)
        connection = connect_service_account(environment, pod_info.namespace, pool_size=_POOL_SIZE)
        return cls(spec, pod_info, lambda pace: KubeClient(connection, rate_limiter=pace))

    def acquire(self, stopping: threading.Event) -> bool:
        """Acquire the Lease; then adopt the job's objects, in case they were applied with kubectl.

        Args:
            stopping: set when this master is told to exit.

        Returns:
            Whether the Lease was acquired; False if the master was told to exit before.

        Raises:
            ApiError: a permanent error; the service account may not use Leases.
        """
        if not self.fence.acquire(stopping.is_set, stopping.wait):
            return False
        # on a thread of its own: training must not wait for these requests
        threading.Thread(target=self._complete_objects, name="ownership", daemon=True).start()
        return True

    def conclude(self, *, failed: bool) -> int:
        """Remove the pods of the job. If it failed, prevent that Kubernetes starts another master.

        Retries for a while if the server is unreachable. If that fails for a failed job, another master starts, finds
        the end of the job in its journal, and does this again. What remains of a completed job is deleted with its
        Job, except a token without an owner.

        Returns:
            The master's exit code, which decides the Job's result: a pod that exits with 0 makes it Complete.
        """
        until = time.monotonic() + CONCLUDE_SECONDS
        steps: list[Callable[[], bool]] = [partial(self._clear_pods, keep_crashed=failed and not self.durable)]
        if failed:
            steps.append(self._fail_job)
        done = [_retry_until(step, until) for step in steps]
        self._label_end("Failed" if failed else "Finished", until)
        if all(done):  # otherwise another master may start, and its pod mounts the token
            self._concluded = _retry_until(partial(self._delete_unowned_token, job_ended=True), until)
        return 1 if failed else 0

    def close(self) -> None:
        """Publish the last status, release the Lease, and delete the token if the Job is gone.

        A master cannot tell from SIGTERM whether its node is drained or its Job was deleted, so it looks at the Job.
        The next master must not wait for that, so the Lease is released first.
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
        """Uid of the ConfigMap that the job's pods name as their controller; empty if it cannot be read.

        Pods start without it, but ``kubectl drain`` then needs ``--force``. That is not worth delaying a job.
        """
        if self._spec_uid is None:
            name = names.spec_configmap(self._pod_info.job)
            try:
                self._spec_uid = str(self._api.get(CONFIGMAPS, name)["metadata"]["uid"])
            except NotFoundError:
                # remembered, so that it is requested and logged only once
                self._spec_uid = ""
                log.warning(
                    "there is no ConfigMap %s: pods start without a controller, and kubectl drain needs --force", name
                )
            except ApiError as error:
                log.warning("a pod starts without a controller, so kubectl drain will need --force: %s", error)
        return self._spec_uid or ""

    def _complete_objects(self) -> None:
        try:
            adopt_objects(self._api, self._pod_info.job, self._pod_info.job_uid)
        except Exception:  # training does not depend on it
            log.exception("the owner references of the job's objects could not be added")
        if self._spec.master.log_pod:
            self._create_log_pod()

    def _create_log_pod(self) -> None:
        pod_info = self._pod_info
        pod = render_log_pod(
            self._spec,
            namespace=pod_info.namespace,
            job_uid=pod_info.job_uid,
            run_dir=pod_info.run_dir,
            since=time.time(),
            spec_uid=self._read_spec_uid(),
        )
        name = pod["metadata"]["name"]
        try:
            if not _retry_until(partial(self._create_or_replace, pod), time.monotonic() + CONCLUDE_SECONDS):
                log.warning("the pod %s, which prints this log, was not created: an older one still exists", name)
        except Exception as error:  # noqa: BLE001  training does not depend on it
            log.warning("the pod %s, which prints this log, could not be created: %s", name, error)

    def _create_or_replace(self, pod: Manifest) -> bool:
        """Create a pod, unless one of its name runs for this Job; return whether there is one now."""
        name = pod["metadata"]["name"]
        try:
            self._api.create(pod)
        except ConflictError:
            try:
                existing = self._api.get(PODS, name)
            except NotFoundError:
                return False
            owners = {each.get("uid") for each in existing["metadata"].get("ownerReferences") or ()}
            if self._pod_info.job_uid in owners and not is_pod_over(existing) and not is_being_deleted(existing):
                return True
            # That of a run before, or of an earlier Job of this name.
            with suppress(NotFoundError, ConflictError):
                self._api.delete(PODS, name, uid=existing["metadata"]["uid"], grace=0)
            return False
        return True

    def _delete_unowned_token(self, *, job_ended: bool) -> bool:
        pod_info = self._pod_info
        return delete_unowned_token(
            self._unfenced, pod_info.job, pod_info.job_uid, pod_info.token_secret, job_ended=job_ended
        )

    def _clear_pods(self, *, keep_crashed: bool) -> bool:
        """Return whether no pods are left, or they cannot be deleted.

        A pod may appear late, requested just before the end, so this is repeated until there was nothing to delete.
        """
        try:
            return self.cluster.delete_all_pods(keep_crashed=keep_crashed)
        except ApiError as error:
            log.warning("pods of the job still exist: %s", error)
            return not isinstance(error, RetryableError)

    def _label_end(self, end: str, until: float) -> None:
        """Label what users take for the master with the job's end (``pod.identity_labels.status``)."""
        label = self._spec.pod.identity_labels.status
        if label is None:
            return
        pod_info = self._pod_info
        labelled = [
            (JOBS, names.master_name(pod_info.job), pod_info.job_uid),
            (PODS, pod_info.pod, pod_info.pod_uid),
        ]
        if self._spec.master.log_pod:
            log_pod = names.log_pod_name(pod_info.job, self._spec.pod.name_prefix)
            with suppress(ApiError):  # it was not created, which a warning has said
                labelled.append((PODS, log_pod, str(self._api.get(PODS, log_pod)["metadata"]["uid"])))
        for kind, name, uid in labelled:
            _retry_until(partial(self._set_label, kind, name, uid, label, end), until)

    def _set_label(self, kind: ResourceKind, name: str, uid: str, label: str, value: str) -> bool:
        """Label an object; return False if a retry may help."""
        path = label.replace("~", "~0").replace("/", "~1")
        body: list[dict[str, Any]] = [
            # the test fails, and with it the patch, if a later object has the name
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": f"/metadata/labels/{path}", "value": value},
        ]
        try:
            self._api.patch(kind, name, body, style="json")
        except ApiError as error:
            log.warning("%s %s could not be labelled %s=%s: %s", kind.name, name, label, value, error)
            return not isinstance(error, RetryableError)
        return True

    def _fail_job(self) -> bool:
        """Set the Job's backoffLimit to 0, so that it fails with this master; return False if a retry may help."""
        name = names.master_name(self._pod_info.job)
        test: list[dict[str, Any]] = [
            # the test fails, and with it the patch, if a later Job has the name
            {"op": "test", "path": "/metadata/uid", "value": self._pod_info.job_uid},
            {"op": "replace", "path": "/spec/backoffLimit", "value": 0},
        ]
        try:
            self._api.patch(JOBS, name, test, style="json")
        except ApiError as error:
            log.warning("the Job could not be marked as failed: %s", error)
            return not isinstance(error, RetryableError)
        return True


def _retry_until(step: Callable[[], bool], deadline: float) -> bool:
    """Repeat a step until it succeeds or the deadline has passed; return whether it succeeded."""
    retry = Retry(_CONCLUDE_BACKOFF, time.sleep)
    while not step():
        if time.monotonic() >= deadline:
            return False
        retry.wait()
    return True
