"""Where a job runs: what its pods ask for, the volumes they share, the user they run as.

Most of it is for Kubernetes: ``edl run`` carries it and does not use it, and each such field says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from edl.jobfile.document_tree import JsonValue
from edl.jobfile.quantities import POSITIVE_CORES_TYPE, POSITIVE_SIZE_TYPE
from edl.jobfile.scalar_types import (
    CLAIM_NAME,
    LABEL_NAME,
    LABEL_VALUE,
    SECRET_NAME,
    AnyJsonType,
    IntegerType,
    ListType,
    MappingType,
    NullableType,
    TextOrMappingType,
    TextType,
)
from edl.jobfile.section_type import FieldOption, SectionType

_ABSOLUTE_PATH_TYPE = TextType(r"^/[\s\S]*$", "an absolute path")
_PATH_TYPE = TextType(description="a path")
_ANY_TEXT_TYPE = TextType(r"^[\s\S]*$")
_ACCOUNT_TYPE = TextType(r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", "the name of a ServiceAccount, such as edl-job-master")
_SECRET_KEY_TYPE = TextType(r"^[-._a-zA-Z0-9]{1,253}$", "a key of a Secret: letters, digits, -, _ and .")
_COUNT_TYPE = IntegerType(0)


@dataclass(frozen=True, slots=True)
class ResourceSpec:
    """What one pod of a role asks Kubernetes for."""

    cpu: Annotated[
        float, FieldOption(POSITIVE_CORES_TYPE, "CPU of one pod; edl run does not limit its processes.", "cores")
    ] = 2.0
    memory: Annotated[
        int, FieldOption(POSITIVE_SIZE_TYPE, "Memory of one pod; edl run does not limit its processes.", "bytes")
    ] = 2 << 30
    gpu: Annotated[int, FieldOption(_COUNT_TYPE, "GPUs of one pod.", "devices", built=(0,))] = 0
    ephemeral_storage: Annotated[
        int | None,
        FieldOption(
            NullableType(POSITIVE_SIZE_TYPE),
            "Most that one pod writes on its node's own disk: its log, its temporary files; a pod that writes more is "
            "evicted, which counts as a crash. Not what it writes on volumes; null asks for none, where nodes do not "
            "count it. edl run does not limit its processes.",
            "bytes",
        ),
    ] = 10 << 30


@dataclass(frozen=True, slots=True)
class WorkerResourceSpec(ResourceSpec):
    """What one worker's pod asks Kubernetes for: of all roles only workers compute on devices."""

    gpu: Annotated[int, FieldOption(_COUNT_TYPE, "GPUs of one pod; edl run uses those that there are.", "devices")] = 0


@dataclass(frozen=True, slots=True)
class VolumeSpec:
    """A directory that all roles share."""

    mount: Annotated[str, FieldOption(_ABSOLUTE_PATH_TYPE, "Where the volume appears in paths of this file.")]
    claim: Annotated[
        str | None,
        FieldOption(NullableType(CLAIM_NAME), "PersistentVolumeClaim of the volume; edl run does not use it."),
    ] = None
    host_path: Annotated[
        str | None,
        FieldOption(
            NullableType(_ABSOLUTE_PATH_TYPE),
            "Directory of every node, in place of a claim, where the namespace allows hostPath.",
        ),
    ] = None
    local: Annotated[
        str | None,
        FieldOption(
            NullableType(_PATH_TYPE), "Folder that stands for the volume under edl run, relative to this file."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class StorageSpec:
    """Where journal, checkpoints and logs go."""

    claim: Annotated[
        str | None,
        FieldOption(
            NullableType(CLAIM_NAME), "PersistentVolumeClaim; null is the first volume's. edl run does not use it."
        ),
    ] = None
    path: Annotated[
        str | None,
        FieldOption(
            NullableType(_PATH_TYPE),
            "Directory of runs; null is .edl where edl run was called, on Kubernetes the first volume.",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class SecretKeyRef:
    """Where a variable's value is kept, so that it stands in no job file and in no run directory."""

    secret: Annotated[
        str, FieldOption(SECRET_NAME, "Name of the Secret; an admin allows it by admission.allowedSecrets.")
    ]
    key: Annotated[str, FieldOption(_SECRET_KEY_TYPE, "Key of the value in the Secret.")]


@dataclass(frozen=True, slots=True)
class PodSpec:
    """What every pod of the job gets; edl run has no pods and does not use it."""

    env: Annotated[
        Mapping[str, str | SecretKeyRef],
        FieldOption(
            MappingType(TextOrMappingType(_ANY_TEXT_TYPE, SectionType(SecretKeyRef))),
            "Environment variables of every container: text, or {secret: NAME, key: KEY} for a value that a Secret of "
            "the namespace keeps.",
        ),
    ] = field(default_factory=dict)
    node_selector: Annotated[
        Mapping[str, str], FieldOption(MappingType(LABEL_VALUE, LABEL_NAME), "Labels of the nodes that pods may use.")
    ] = field(default_factory=dict)
    tolerations: Annotated[
        tuple[Mapping[str, JsonValue], ...],
        FieldOption(ListType(MappingType(AnyJsonType())), "Tolerations, as Kubernetes has them."),
    ] = ()
    affinity: Annotated[
        Mapping[str, JsonValue], FieldOption(MappingType(AnyJsonType()), "Affinity, as Kubernetes has it.")
    ] = field(default_factory=dict)
    labels: Annotated[
        Mapping[str, str], FieldOption(MappingType(LABEL_VALUE, LABEL_NAME), "Labels that are added to pods.")
    ] = field(default_factory=dict)
    annotations: Annotated[
        Mapping[str, str], FieldOption(MappingType(_ANY_TEXT_TYPE, LABEL_NAME), "Annotations that are added to pods.")
    ] = field(default_factory=dict)
    overrides: Annotated[
        Mapping[str, JsonValue],
        FieldOption(MappingType(AnyJsonType()), "Parts of a pod that are merged in last, as Kubernetes has them."),
    ] = field(default_factory=dict)
    image_pull_secrets: Annotated[
        tuple[str, ...], FieldOption(ListType(SECRET_NAME), "Names of the Secrets that the image is pulled with.")
    ] = ()


@dataclass(frozen=True, slots=True)
class RunAsSpec:
    """The user that containers run as."""

    user: Annotated[int, FieldOption(_COUNT_TYPE, "Numeric user id.")] = 1000
    group: Annotated[int, FieldOption(_COUNT_TYPE, "Numeric group id, also of the volumes' files.")] = 1000


@dataclass(frozen=True, slots=True)
class SecuritySpec:
    """Whom pods run as; edl run does not use it."""

    run_as: Annotated[RunAsSpec, FieldOption(SectionType(RunAsSpec), "User and group of every container.")] = field(
        default_factory=RunAsSpec
    )
    master_account: Annotated[
        str,
        FieldOption(_ACCOUNT_TYPE, "ServiceAccount of the master, which starts, watches and deletes the job's pods."),
    ] = "edl-job-master"
    pod_account: Annotated[
        str, FieldOption(_ACCOUNT_TYPE, "ServiceAccount of parameter servers and workers; they get no API token.")
    ] = "edl-none"
