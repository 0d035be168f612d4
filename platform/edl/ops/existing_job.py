"""The job that has a name already."""

from __future__ import annotations

from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.resource_kinds import CONFIGMAPS, JOBS, Manifest
from edl.jobfile.job_spec import JobSpec
from edl.jobfile.loader import load_job_text
from edl.jobfile.problems import SpecError
from edl.jobfile.published_status import PublishedStatus
from edl.ops.job_deletion import JobObjects
from edl.ops.job_view import JobView


def find_existing_job(there: JobObjects) -> JobView | None:
    """The Job among what has a job's label; None when there is none, though other objects may be left."""
    for job in there.of(JOBS):
        meta = job["metadata"]
        name = meta["labels"][names.JOB_LABEL]
        return JobView(name, meta.get("namespace", ""), job, *_read_publication(there, name))
    return None


def read_submitted_spec(there: JobObjects, name: str) -> JobSpec | None:
    """The spec that the job was submitted with; None when its ConfigMap is gone or of another version of EDL."""
    for page in there.of(CONFIGMAPS):
        if page["metadata"]["name"] == names.spec_configmap(name):
            try:
                return load_job_text((page.get("data") or {}).get(names.SPEC_KEY, ""), names.spec_configmap(name))
            except SpecError:  # the new master compares with what is on the volume
                return None
    return None


def format_submit_time(job: JobView) -> str:
    """When a job was submitted, for people."""
    return str(job.job["metadata"].get("creationTimestamp", "")).replace("T", " ").replace("Z", " UTC")


def _read_publication(there: JobObjects, name: str) -> tuple[PublishedStatus, str]:
    pages: Manifest = {}
    for page in there.of(CONFIGMAPS):
        if page["metadata"]["name"] == names.status_configmap(name):
            pages = page.get("data") or {}
    try:
        return PublishedStatus.from_configmap_data(pages), ""
    except SpecError as error:
        return PublishedStatus(), str(error)
