"""Everything of a job belongs to its Job, and goes with it.

``edl submit`` makes it so. After ``edl render | kubectl apply`` nobody has: the master does when it starts, as far as
it may. Patching Secrets is a right that masters have only where their admin has given it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from edl.kube import names
from edl.kube.api import JSON_PATCH, STRATEGIC, Api
from edl.kube.errors import ApiError, InvalidError, NoRightError, NotFoundError
from edl.kube.kinds import CONFIGMAPS, JOBS, SECRETS, SERVICES, Kind
from edl.kube.manifests.render import owner

log = logging.getLogger(__name__)


def adopt(api: Api, job: str, uid: str, token_secret: str) -> None:
    """Put the Job's reference onto the objects of the job that lack it; what cannot be had is logged.

    Args:
        api: of the job's namespace.
        job: name of the job.
        uid: of the Job.
        token_secret: name of the Secret that the pods of the job mount.

    Raises:
        ApiError: the Job cannot be read.
    """
    if _was_submitted(api, job):
        return
    for kind, name in dependants(job, token_secret):
        try:
            _adopt(api, kind, name, job, uid)
        except NotFoundError:
            log.info("there is no %s %s", kind.name, name)
        except ApiError as error:
            log.warning("%s", _stays(kind, name, job, error))


def dependants(job: str, token_secret: str) -> Iterator[tuple[Kind, str]]:
    """What is made beside a Job. A Secret that the user named for the token is the user's."""
    yield CONFIGMAPS, names.spec(job)
    yield CONFIGMAPS, names.status(job)
    yield SERVICES, names.master(job)
    if token_secret == names.token(job):
        yield SECRETS, token_secret


def _was_submitted(api: Api, job: str) -> bool:
    """Whether ``edl submit`` made the Job, and with it all else as the Job's own."""
    meta = api.get(JOBS, names.master(job))["metadata"]
    return names.SUBMISSION in (meta.get("annotations") or {})


def _adopt(api: Api, kind: Kind, name: str, job: str, uid: str) -> None:
    """Two patches, since a master has no right to get Secrets: one that only tests, one that adds."""
    label = names.JOB.replace("~", "~0").replace("/", "~1")
    try:
        api.patch(kind, name, [{"op": "test", "path": f"/metadata/labels/{label}", "value": job}], style=JSON_PATCH)
    except InvalidError:
        log.info("%s %s is somebody else's", kind.name, name)
        return
    # Merged by uid: other owners stay, and the Job's own reference is there once however often this is done.
    api.patch(kind, name, {"metadata": {"ownerReferences": [owner(job, uid)]}}, style=STRATEGIC)


def _stays(kind: Kind, name: str, job: str, error: ApiError) -> str:
    """What becomes of an object that is not the Job's own, why, and what to do: one line."""
    forbidden = kind is SECRETS and isinstance(error, NoRightError)
    why = "masters may not patch Secrets in this namespace" if forbidden else error.message
    return (
        f"{kind.name} {name} stays behind when the Job is deleted with kubectl: {why}. "
        f"`edl delete {job}` removes it, before or after, and so does `kubectl delete {kind.name.lower()} {name}`"
    )
