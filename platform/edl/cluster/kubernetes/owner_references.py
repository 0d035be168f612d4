"""Everything of a job belongs to its Job, and goes with it.

``edl submit`` makes it so. After ``edl render | kubectl apply`` nobody has: the master does when it starts, but for the
token's Secret. Whoever may patch Secrets can read them (docs/reference/rights.md); so the master, which may delete its
own token, takes that along when its job is over or its Job is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from edl.api.errors import RetryableError
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import JSON_PATCH, STRATEGIC_MERGE_PATCH, KubeClient
from edl.cluster.kubernetes.api_errors import (
    ApiError,
    ConflictError,
    InvalidObjectError,
    NotFoundError,
    RbacDeniedError,
)
from edl.cluster.kubernetes.job_manifests import owner_reference
from edl.cluster.kubernetes.resource_kinds import CONFIGMAPS, JOBS, SECRETS, SERVICES, Manifest, ResourceKind

log = logging.getLogger(__name__)


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


def delete_unowned_token(api: KubeClient, job: str, uid: str, token_secret: str, *, over: bool) -> bool:
    """Delete the token that nobody owns, if nobody will need it again.

    Nobody will when the Job is gone, or being deleted. When the job is over and its Job stays, the token of
    ``edl submit`` stays as well: it is the Job's. A later Job of the same name may use a Secret of the same name: only
    the Secret that was there while there was no such Job is deleted.

    Args:
        api: of the job's namespace.
        job: name of the job.
        uid: of the Job.
        token_secret: name of the Secret that the pods of the job mount. One that the user named is the user's.
        over: the job has ended, and its pods are gone.

    Returns:
        Whether there is nothing left to try; what stays for want of a right is logged.
    """
    if token_secret != names.token_secret(job):
        return True
    try:
        if _is_token_needed(api, job, uid, over=over):
            return True
        # A master may not get Secrets; this tells the uid alone.
        found = api.delete(SECRETS, token_secret, dry_run=True)
        if _is_token_needed(api, job, uid, over=over):  # a new Job may have been made since, and then its token
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


def _is_token_needed(api: KubeClient, job: str, uid: str, *, over: bool) -> bool:
    try:
        there = api.get(JOBS, names.master_name(job))
    except NotFoundError:
        return False
    if there["metadata"]["uid"] != uid:
        return True
    return not (over or there["metadata"].get("deletionTimestamp")) or _made_by_submit(there)


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
