"""Where a job runs: what its pods ask for, the volumes they share, the user they run as.

Most of it is for Kubernetes: ``edl run`` carries it and does not use it, and each such field says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from edl.api.fields import PATH, Field, JsonValue, Quantity, TextForm

_ABSOLUTE_PATH = TextForm("an absolute path", r"^/[\s\S]*$")
_ACCOUNT = TextForm("the name of a ServiceAccount, such as edl-job-master", r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
_SECRET_KEY = TextForm("a key of a Secret: letters, digits, -, _ and .", r"^[-._a-zA-Z0-9]{1,253}$")

# What Kubernetes takes as names of objects and labels:
# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/ and .../labels/
_SUBDOMAIN_PATTERN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_CLAIM_NAME = TextForm("the name of a PersistentVolumeClaim, such as fileserver-claim", f"^{_SUBDOMAIN_PATTERN}$")
_SECRET_NAME = TextForm("the name of a Secret", f"^{_SUBDOMAIN_PATTERN}$")
_LABEL_NAME = TextForm(
    "the name of a label, such as example.com/team",
    rf"^({_SUBDOMAIN_PATTERN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?$",
)
_LABEL_VALUE = TextForm(
    "a label's value: at most 63 of A-Z, a-z, 0-9, -, _ and ., beginning and ending with a letter or digit",
    r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$",
)


@dataclass(frozen=True, slots=True)
class ResourceSpec:
    """What one pod of a role asks Kubernetes for."""

    cpu: Annotated[
        float,
        Field("CPU of one pod; edl run does not limit its processes.", unit="cores", quantity=Quantity.POSITIVE_CORES),
    ] = 2.0
    memory: Annotated[
        int,
        Field(
            "Memory of one pod; edl run does not limit its processes.", unit="bytes", quantity=Quantity.POSITIVE_SIZE
        ),
    ] = 2 << 30
    gpu: Annotated[int, Field("GPUs of one pod.", unit="devices", built=(0,))] = 0
    ephemeral_storage: Annotated[
        int | None,
        Field(
            "Most that one pod writes on its node's own disk: its log, its temporary files; a pod that writes more is "
            "evicted, which counts as a crash. Not what it writes on volumes; null asks for none, where nodes do not "
            "count it. edl run does not limit its processes.",
            unit="bytes",
            quantity=Quantity.POSITIVE_SIZE,
        ),
    ] = 10 << 30


@dataclass(frozen=True, slots=True)
class WorkerResourceSpec(ResourceSpec):
    """What one worker's pod asks Kubernetes for: of all roles only workers compute on devices."""

    gpu: Annotated[int, Field("GPUs of one pod; edl run uses those that there are.", unit="devices")] = 0


@dataclass(frozen=True, slots=True)
class VolumeSpec:
    """A directory that all roles share."""

    mount: Annotated[str, Field("Where the volume appears in paths of this file.", text=_ABSOLUTE_PATH)]
    claim: Annotated[
        str | None, Field("PersistentVolumeClaim of the volume; edl run does not use it.", text=_CLAIM_NAME)
    ] = None
    host_path: Annotated[
        str | None,
        Field(
            "Directory of every node, in place of a claim, where the namespace allows hostPath.", text=_ABSOLUTE_PATH
        ),
    ] = None
    local: Annotated[
        str | None, Field("Folder that stands for the volume under edl run, relative to this file.", text=PATH)
    ] = None


@dataclass(frozen=True, slots=True)
class StorageSpec:
    """Where journal, checkpoints and logs go."""

    claim: Annotated[
        str | None,
        Field("PersistentVolumeClaim; null is the first volume's. edl run does not use it.", text=_CLAIM_NAME),
    ] = None
    path: Annotated[
        str | None,
        Field("Directory of runs; null is .edl where edl run was called, on Kubernetes the first volume.", text=PATH),
    ] = None


@dataclass(frozen=True, slots=True)
class SecretKeyRef:
    """Where a variable's value is kept, so that it stands in no job file and in no run directory."""

    secret: Annotated[
        str, Field("Name of the Secret; an admin allows it by admission.allowedSecrets.", text=_SECRET_NAME)
    ]
    key: Annotated[str, Field("Key of the value in the Secret.", text=_SECRET_KEY)]


@dataclass(frozen=True, slots=True)
class PodSpec:
    """What every pod of the job gets; edl run has no pods and does not use it."""

    env: Annotated[
        Mapping[str, str | SecretKeyRef],
        Field(
            "Environment variables of every container: text, or {secret: NAME, key: KEY} for a value that a Secret of "
            "the namespace keeps."
        ),
    ] = field(default_factory=dict)
    node_selector: Annotated[
        Mapping[str, str], Field("Labels of the nodes that pods may use.", text=_LABEL_VALUE, keys=_LABEL_NAME)
    ] = field(default_factory=dict)
    tolerations: Annotated[tuple[Mapping[str, JsonValue], ...], Field("Tolerations, as Kubernetes has them.")] = ()
    affinity: Annotated[Mapping[str, JsonValue], Field("Affinity, as Kubernetes has it.")] = field(default_factory=dict)
    labels: Annotated[
        Mapping[str, str], Field("Labels that are added to pods.", text=_LABEL_VALUE, keys=_LABEL_NAME)
    ] = field(default_factory=dict)
    annotations: Annotated[Mapping[str, str], Field("Annotations that are added to pods.", keys=_LABEL_NAME)] = field(
        default_factory=dict
    )
    overrides: Annotated[
        Mapping[str, JsonValue], Field("Parts of a pod that are merged in last, as Kubernetes has them.")
    ] = field(default_factory=dict)
    image_pull_secrets: Annotated[
        tuple[str, ...], Field("Names of the Secrets that the image is pulled with.", text=_SECRET_NAME)
    ] = ()


@dataclass(frozen=True, slots=True)
class RunAsSpec:
    """The user that containers run as."""

    user: Annotated[int, Field("Numeric user id.")] = 1000
    group: Annotated[int, Field("Numeric group id, also of the volumes' files.")] = 1000


@dataclass(frozen=True, slots=True)
class SecuritySpec:
    """Whom pods run as; edl run does not use it."""

    run_as: Annotated[RunAsSpec, Field("User and group of every container.")] = field(default_factory=RunAsSpec)
    master_account: Annotated[
        str, Field("ServiceAccount of the master, which starts, watches and deletes the job's pods.", text=_ACCOUNT)
    ] = "edl-job-master"
    pod_account: Annotated[
        str, Field("ServiceAccount of parameter servers and workers; they get no API token.", text=_ACCOUNT)
    ] = "edl-none"
