"""Where a job runs: what its pods ask for, the volumes they share, the user they run as.

Most of it is for Kubernetes: ``edl run`` carries it and does not use it, and each such field says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from edl.jobfile.composite_types import Anything, ListOf, Named, Nullable, TextOr
from edl.jobfile.document_tree import Json
from edl.jobfile.kubernetes_names import CLAIM, LABEL, LABEL_VALUE, SECRET
from edl.jobfile.quantities import SOME_CORES, SOME_SIZE
from edl.jobfile.scalar_types import Text, Whole
from edl.jobfile.section_type import Option, Section

_ABSOLUTE = Text(r"^/[\s\S]*$", "an absolute path")
_PATH = Text(meaning="a path")
_ANY_TEXT = Text(r"^[\s\S]*$")
_ACCOUNT = Text(r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", "the name of a ServiceAccount, such as edl-job-master")
_SECRET_KEY = Text(r"^[-._a-zA-Z0-9]{1,253}$", "a key of a Secret: letters, digits, -, _ and .")
_COUNT = Whole(0)


@dataclass(frozen=True, slots=True)
class Resources:
    """What one pod of a role asks Kubernetes for."""

    cpu: Annotated[float, Option(SOME_CORES, "CPU of one pod; edl run does not limit its processes.", "cores")] = 2.0
    memory: Annotated[int, Option(SOME_SIZE, "Memory of one pod; edl run does not limit its processes.", "bytes")] = (
        2 << 30
    )
    gpu: Annotated[int, Option(_COUNT, "GPUs of one pod.", "devices", built=(0,))] = 0
    ephemeral_storage: Annotated[
        int | None,
        Option(
            Nullable(SOME_SIZE),
            "Most that one pod writes on its node's own disk: its log, its temporary files; a pod that writes more is "
            "evicted, which counts as a crash. Not what it writes on volumes; null asks for none, where nodes do not "
            "count it. edl run does not limit its processes.",
            "bytes",
        ),
    ] = 10 << 30


@dataclass(frozen=True, slots=True)
class WorkerResources(Resources):
    """What one worker's pod asks Kubernetes for: of all roles only workers compute on devices."""

    gpu: Annotated[int, Option(_COUNT, "GPUs of one pod; edl run uses those that there are.", "devices")] = 0


@dataclass(frozen=True, slots=True)
class Volume:
    """A directory that all roles share."""

    mount: Annotated[str, Option(_ABSOLUTE, "Where the volume appears in paths of this file.")]
    claim: Annotated[
        str | None, Option(Nullable(CLAIM), "PersistentVolumeClaim of the volume; edl run does not use it.")
    ] = None
    host_path: Annotated[
        str | None,
        Option(
            Nullable(_ABSOLUTE), "Directory of every node, in place of a claim, where the namespace allows hostPath."
        ),
    ] = None
    local: Annotated[
        str | None,
        Option(Nullable(_PATH), "Folder that stands for the volume under edl run, relative to this file."),
    ] = None


@dataclass(frozen=True, slots=True)
class Storage:
    """Where journal, checkpoints and logs go."""

    claim: Annotated[
        str | None,
        Option(Nullable(CLAIM), "PersistentVolumeClaim; null is the first volume's. edl run does not use it."),
    ] = None
    path: Annotated[
        str | None,
        Option(
            Nullable(_PATH), "Directory of runs; null is .edl where edl run was called, on Kubernetes the first volume."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class SecretKey:
    """Where a variable's value is kept, so that it stands in no job file and in no run directory."""

    secret: Annotated[str, Option(SECRET, "Name of the Secret; an admin allows it by admission.allowedSecrets.")]
    key: Annotated[str, Option(_SECRET_KEY, "Key of the value in the Secret.")]


@dataclass(frozen=True, slots=True)
class Pod:
    """What every pod of the job gets; edl run has no pods and does not use it."""

    env: Annotated[
        Mapping[str, str | SecretKey],
        Option(
            Named(TextOr(_ANY_TEXT, Section(SecretKey))),
            "Environment variables of every container: text, or {secret: NAME, key: KEY} for a value that a Secret of "
            "the namespace keeps.",
        ),
    ] = field(default_factory=dict)
    node_selector: Annotated[
        Mapping[str, str], Option(Named(LABEL_VALUE, LABEL), "Labels of the nodes that pods may use.")
    ] = field(default_factory=dict)
    tolerations: Annotated[
        tuple[Mapping[str, Json], ...], Option(ListOf(Named(Anything())), "Tolerations, as Kubernetes has them.")
    ] = ()
    affinity: Annotated[Mapping[str, Json], Option(Named(Anything()), "Affinity, as Kubernetes has it.")] = field(
        default_factory=dict
    )
    labels: Annotated[Mapping[str, str], Option(Named(LABEL_VALUE, LABEL), "Labels that are added to pods.")] = field(
        default_factory=dict
    )
    annotations: Annotated[
        Mapping[str, str], Option(Named(_ANY_TEXT, LABEL), "Annotations that are added to pods.")
    ] = field(default_factory=dict)
    overrides: Annotated[
        Mapping[str, Json], Option(Named(Anything()), "Parts of a pod that are merged in last, as Kubernetes has them.")
    ] = field(default_factory=dict)
    image_pull_secrets: Annotated[
        tuple[str, ...], Option(ListOf(SECRET), "Names of the Secrets that the image is pulled with.")
    ] = ()


@dataclass(frozen=True, slots=True)
class RunAs:
    """The user that containers run as."""

    user: Annotated[int, Option(_COUNT, "Numeric user id.")] = 1000
    group: Annotated[int, Option(_COUNT, "Numeric group id, also of the volumes' files.")] = 1000


@dataclass(frozen=True, slots=True)
class Security:
    """Whom pods run as; edl run does not use it."""

    run_as: Annotated[RunAs, Option(Section(RunAs), "User and group of every container.")] = field(
        default_factory=RunAs
    )
    master_account: Annotated[
        str, Option(_ACCOUNT, "ServiceAccount of the master, which starts, watches and deletes the job's pods.")
    ] = "edl-job-master"
    pod_account: Annotated[
        str, Option(_ACCOUNT, "ServiceAccount of parameter servers and workers; they get no API token.")
    ] = "edl-none"
