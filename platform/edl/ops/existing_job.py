"""The job that has a name already."""

from __future__ import annotations

from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.resource_kinds import CONFIGMAPS, JOBS, Manifest
from edl.jobfile.job_spec import JobSpec
from edl.jobfile.loader import loads
from edl.jobfile.problems import SpecError
from edl.jobfile.published_status import Publication
from edl.ops.job_deletion import Remains
from edl.ops.job_view import JobSeen


def existing(there: Remains) -> JobSeen | None:
    """The Job among what has a job's label; None when there is none, though other objects may be left."""
    for job in there.of(JOBS):
        meta = job["metadata"]
        name = meta["labels"][names.JOB]
        return JobSeen(name, meta.get("namespace", ""), job, *_told(there, name))
    return None


def spec_of(there: Remains, name: str) -> JobSpec | None:
    """The spec that the job was submitted with; None when its ConfigMap is gone or of another version of EDL."""
    for page in there.of(CONFIGMAPS):
        if page["metadata"]["name"] == names.spec(name):
            try:
                return loads((page.get("data") or {}).get(names.SPEC_KEY, ""), names.spec(name))
            except SpecError:  # the new master compares with what is on the volume
                return None
    return None


def since(job: JobSeen) -> str:
    """When a job was submitted, for people."""
    return str(job.job["metadata"].get("creationTimestamp", "")).replace("T", " ").replace("Z", " UTC")


def _told(there: Remains, name: str) -> tuple[Publication, str]:
    pages: Manifest = {}
    for page in there.of(CONFIGMAPS):
        if page["metadata"]["name"] == names.status(name):
            pages = page.get("data") or {}
    try:
        return Publication.from_pages(pages), ""
    except SpecError as error:
        return Publication(), str(error)
