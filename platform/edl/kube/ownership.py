"""Everything of a job belongs to its Job, and goes with it.

``edl submit`` makes it so. After ``edl render | kubectl apply`` nobody has: the master does when it starts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from edl.kube import names
from edl.kube.api import Api
from edl.kube.errors import ApiError, NotFoundError
from edl.kube.kinds import CONFIGMAPS, SECRETS, SERVICES, Kind
from edl.kube.render import owner

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
    meta = api.get(kind, name)["metadata"]
    others = [one for one in meta.get("ownerReferences") or () if one["name"] != names.master(job)]
    known = [one["uid"] for one in meta.get("ownerReferences") or ()]
    if uid in known or meta.get("labels", {}).get(names.JOB) != job:
        return
    change = {"resourceVersion": meta["resourceVersion"], "ownerReferences": [*others, owner(job, uid)]}
    api.patch(kind, name, {"metadata": change})
