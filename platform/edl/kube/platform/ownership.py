"""Everything of a job belongs to its Job, and goes with it.

``edl submit`` makes it so. After ``edl render | kubectl apply`` nobody has: the master does when it starts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from edl.kube import names
from edl.kube.api import JSON_PATCH, STRATEGIC, Api
from edl.kube.errors import ApiError, InvalidError, NotFoundError
from edl.kube.kinds import CONFIGMAPS, SECRETS, SERVICES, Kind
from edl.kube.manifests.render import owner

log = logging.getLogger(__name__)


def adopt(api: Api, job: str, uid: str) -> None:
    """Put the Job's reference onto the objects of the job that lack it; what cannot be had is logged.

    Args:
        api: of the job's namespace.
        job: name of the job.
        uid: of the Job.
    """
    for kind, name in dependants(job):
        try:
            _adopt(api, kind, name, job, uid)
        except NotFoundError:
            log.info("there is no %s %s", kind.name, name)
        except ApiError as error:
            log.warning("%s %s stays behind when the job is deleted: %s", kind.name, name, error)


def dependants(job: str) -> Iterator[tuple[Kind, str]]:
    """What is made beside a Job. A Secret that the user named for the token is the user's."""
    yield CONFIGMAPS, names.spec(job)
    yield CONFIGMAPS, names.status(job)
    yield SERVICES, names.master(job)
    yield SECRETS, names.token(job)


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
