"""Sections of the JobSpec about pods: resources, volumes, storage, pod settings, user and ServiceAccounts.

Most fields apply on Kubernetes only. ``edl run`` accepts them and ignores them; the description of each such field says
so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from edl.api.fields import PATH, Field, JsonValue, Quantity, TextForm

_ABSOLUTE_PATH = TextForm("an absolute path", r"^/[\s\S]*$")
_ACCOUNT = TextForm("the name of a ServiceAccount, such as edl-job-master", r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
# Parts that are neither . nor .., without a lookahead: Helm checks values with Go's regular expressions.
_PATH_PART = r"(\.?[^/.][^/]*|\.\.[^/]+)"
_SUB_PATH = TextForm("a relative path without .., such as datasets/mnist", rf"^{_PATH_PART}(/{_PATH_PART})*$")
_SECRET_KEY = TextForm("a key of a Secret: letters, digits, -, _ and .", r"^[-._a-zA-Z0-9]{1,253}$")

# What Kubernetes takes as names of objects and labels:
# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/ and .../labels/
_SUBDOMAIN_PATTERN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_CLAIM_NAME = TextForm("the name of a PersistentVolumeClaim, such as fileserver-claim", f"^{_SUBDOMAIN_PATTERN}$")
_SECRET_NAME = TextForm("the name of a Secret", f"^{_SUBDOMAIN_PATTERN}$")
# with the longest job name and index this gives 63 characters, the longest name that a pod's host name keeps whole
_NAME_PREFIX = TextForm(
    "1 to 10 of a-z, 0-9 and -, beginning with a letter and not ending with -", r"^[a-z]([-a-z0-9]{0,8}[a-z0-9])?$"
)
_LABEL_NAME = TextForm(
    "the name of a label, such as example.com/team",
    rf"^({_SUBDOMAIN_PATTERN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?$",
)
_LABEL_VALUE = TextForm(
    "a label's value: at most 63 of A-Z, a-z, 0-9, -, _ and ., beginning and ending with a letter or digit",
    r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$",
)


@dataclass(frozen=True, slots=True)
class LimitSpec:
    """Resource limits of one pod. Without them it may use idle CPU, and no more memory than it requests."""

    cpu: Annotated[
        float | None,
        Field(
            "CPU limit of one pod; null: none, so that it may use idle CPU.",
            unit="cores",
            quantity=Quantity.POSITIVE_CORES,
        ),
    ] = None
    memory: Annotated[
        int | None,
        Field(
            "Memory limit of one pod; null: its request. A pod above its request is the first to end on a full node.",
            unit="bytes",
            quantity=Quantity.POSITIVE_SIZE,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ResourceSpec:
    """Resource requests of one pod of a role."""

    cpu: Annotated[
        float,
        Field(
            "CPU request of one pod; edl run does not limit its processes.",
            unit="cores",
            quantity=Quantity.POSITIVE_CORES,
        ),
    ] = 2.0
    memory: Annotated[
        int,
        Field(
            "Memory request of one pod; edl run does not limit its processes.",
            unit="bytes",
            quantity=Quantity.POSITIVE_SIZE,
        ),
    ] = 2 << 30
    gpu: Annotated[int, Field("GPUs of one pod.", unit="devices", built=(0,))] = 0
    ephemeral_storage: Annotated[
        int | None,
        Field(
            "What one pod may write to its node's disk: its log and temporary files, not volumes. A "
            "pod that writes more is evicted, which counts as a crash. null: no request, for nodes "
            "that do not account for it. edl run does not limit its processes.",
            unit="bytes",
            quantity=Quantity.POSITIVE_SIZE,
        ),
    ] = 10 << 30
    limits: Annotated[LimitSpec, Field("Limits that differ from the requests; edl run ignores them.")] = field(
        default_factory=LimitSpec
    )


@dataclass(frozen=True, slots=True)
class WorkerResourceSpec(ResourceSpec):
    """Resource requests of one worker's pod. Only workers may have GPUs: the other roles run no TensorFlow."""

    gpu: Annotated[
        int,
        Field(
            "GPUs of one pod, as requests of nvidia.com/gpu. The image must have TensorFlow with CUDA. That of make "
            "images has not, and its pods would hold GPUs and train on the CPU. EDL was never tried on GPUs. edl run "
            "uses all that it finds.",
            unit="devices",
        ),
    ] = 0


@dataclass(frozen=True, slots=True)
class VolumeSpec:
    """A directory that all roles share."""

    mount: Annotated[str, Field("Path of the volume in the containers and in paths of this file.", text=_ABSOLUTE_PATH)]
    claim: Annotated[
        str | None, Field("PersistentVolumeClaim of the volume; edl run ignores it.", text=_CLAIM_NAME)
    ] = None
    host_path: Annotated[
        str | None,
        Field("Directory of every node instead of a claim, if the namespace allows hostPath.", text=_ABSOLUTE_PATH),
    ] = None
    sub_path: Annotated[
        str | None,
        Field("Folder of the claim that is mounted instead of its top; edl run ignores it.", text=_SUB_PATH),
    ] = None
    local: Annotated[
        str | None, Field("Folder that edl run uses instead of the volume, relative to this file.", text=PATH)
    ] = None


@dataclass(frozen=True, slots=True)
class StorageSpec:
    """Where journal, checkpoints and logs are written."""

    claim: Annotated[
        str | None,
        Field("PersistentVolumeClaim; null: that of the first volume. edl run ignores it.", text=_CLAIM_NAME),
    ] = None
    path: Annotated[
        str | None,
        Field(
            "Directory of runs, for edl run relative to this file; null: .edl in the current folder, or on Kubernetes "
            "the first volume.",
            text=PATH,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class SecretKeyRef:
    """A reference to a key of a Secret, so that neither job file nor run directory contains the value."""

    secret: Annotated[
        str, Field("Name of the Secret; an admin allows it with admission.allowedSecrets.", text=_SECRET_NAME)
    ]
    key: Annotated[str, Field("Key of the value in the Secret.", text=_SECRET_KEY)]


@dataclass(frozen=True, slots=True)
class IdentityLabels:
    """Further labels by which other tools find the pods of a job, beside EDL's own (edl.dev/job and so on)."""

    job: Annotated[str | None, Field("Label with the job's name.", text=_LABEL_NAME)] = None
    role: Annotated[str | None, Field("Label with the role: master, ps or worker.", text=_LABEL_NAME)] = None
    index: Annotated[str | None, Field("Label with the pod's index; the master has 0.", text=_LABEL_NAME)] = None
    status: Annotated[
        str | None,
        Field(
            "Label with how the job ended, Finished or Failed: of the master's Job and pod, and of the pod of "
            "master.log_pod. It is set at the end.",
            text=_LABEL_NAME,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class PodSpec:
    """Settings of every pod of the job; edl run ignores them."""

    name_prefix: Annotated[
        str,
        Field(
            "First part of the names of workers and parameter servers, PREFIX-JOB-worker-INDEX. The Job and its other "
            "objects keep edl-JOB.",
            text=_NAME_PREFIX,
        ),
    ] = "edl"
    identity_labels: Annotated[
        IdentityLabels, Field("Further labels with the pod's job, role and index, and the job's end.")
    ] = field(default_factory=IdentityLabels)
    image_pull_policy: Annotated[
        str | None,
        Field(
            "When nodes pull the image; null: Kubernetes' default, which is always for the tag latest.",
            choices=("Always", "IfNotPresent", "Never"),
        ),
    ] = None
    env: Annotated[
        Mapping[str, str | SecretKeyRef],
        Field(
            "Environment variables of every container: text, or {secret: NAME, key: KEY} for a value "
            "from a Secret of the namespace, which an admin creates and allows."
        ),
    ] = field(default_factory=dict)
    node_selector: Annotated[
        Mapping[str, str], Field("Labels of the nodes on which pods may run.", text=_LABEL_VALUE, keys=_LABEL_NAME)
    ] = field(default_factory=dict)
    tolerations: Annotated[tuple[Mapping[str, JsonValue], ...], Field("Tolerations, in the syntax of Kubernetes.")] = ()
    affinity: Annotated[Mapping[str, JsonValue], Field("Affinity, in the syntax of Kubernetes.")] = field(
        default_factory=dict
    )
    labels: Annotated[Mapping[str, str], Field("Additional labels of pods.", text=_LABEL_VALUE, keys=_LABEL_NAME)] = (
        field(default_factory=dict)
    )
    annotations: Annotated[Mapping[str, str], Field("Additional annotations of pods.", keys=_LABEL_NAME)] = field(
        default_factory=dict
    )
    # merged last, so that a user can set whatever the spec does not model
    overrides: Annotated[
        Mapping[str, JsonValue], Field("Parts of a pod, in the syntax of Kubernetes, that are merged in last.")
    ] = field(default_factory=dict)
    image_pull_secrets: Annotated[
        tuple[str, ...], Field("Names of the Secrets for pulling the image.", text=_SECRET_NAME)
    ] = ()


@dataclass(frozen=True, slots=True)
class RunAsSpec:
    """The user that containers run as."""

    user: Annotated[int, Field("Numeric user id.")] = 1000
    group: Annotated[int, Field("Numeric group id, also of files on volumes.")] = 1000


@dataclass(frozen=True, slots=True)
class SecuritySpec:
    """User and ServiceAccounts of the pods; edl run ignores them."""

    run_as: Annotated[RunAsSpec, Field("User and group of every container.")] = field(default_factory=RunAsSpec)
    master_account: Annotated[
        str, Field("ServiceAccount of the master, which creates, watches and deletes the job's pods.", text=_ACCOUNT)
    ] = "edl-job-master"
    pod_account: Annotated[
        str, Field("ServiceAccount of parameter servers and workers, which get no API token.", text=_ACCOUNT)
    ] = "edl-none"
