"""The JobSpec: one file says all about a job; every role reads it whole, as these frozen values.

Attribute names are the YAML names. Each field's annotation carries what may be written, its unit, one sentence, and
which values this version has built (edl.api.fields). Quantities are numbers in the field's unit: bytes, cores, seconds.
Paths are text as written; edl.jobfile.path_resolution gives them their meaning on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from edl.api.cluster_port import MOST_WORKERS
from edl.api.fields import PATH, Field, JsonValue, Quantity, TextForm
from edl.api.pod_spec import PodSpec, ResourceSpec, SecuritySpec, StorageSpec, VolumeSpec, WorkerResourceSpec
from edl.api.strategy import Strategy

API_VERSION = "edl.dev/v1"

_JOB_NAME = TextForm(
    "a job name: 1 to 40 of a-z, 0-9 and -, beginning with a letter and not ending with -",
    r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$",
)
_MODEL_DEFINITION = TextForm(
    "a module below the zoo and a function in it, such as mnist.model.custom_model",
    r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$",
)
_PRIORITY = TextForm("the name of a PriorityClass, such as high or low", r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
_SPLIT_PRIORITY = TextForm(
    "the name of a PriorityClass, or one with the share of workers (above 0, below 1) that get it, such as high=0.5",
    r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?(=0\.[0-9]*[1-9][0-9]*)?$",
)
_MAX_EVICTION_STEPS = 100_000_000  # each takes 4 bytes of a table's memory

# the grammar of image references: https://pkg.go.dev/github.com/distribution/reference
_HOST_PATTERN = r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?)(:[0-9]+)?"
_PATH_COMPONENT_PATTERN = r"[a-z0-9]+([._-]+[a-z0-9]+)*"
_IMAGE_NAME = TextForm(
    "the name of an image, such as registry.example/mnist:1",
    rf"^({_HOST_PATTERN}/)?{_PATH_COMPONENT_PATTERN}(/{_PATH_COMPONENT_PATTERN})*(:[A-Za-z0-9_][-A-Za-z0-9_.]{{0,127}})?(@[a-z0-9]+:[0-9a-f]{{32,128}})?$",
)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The user's model code."""

    definition: Annotated[
        str, Field("The module below the zoo and the function that makes the model.", text=_MODEL_DEFINITION)
    ]
    zoo: Annotated[str, Field("The directory of model code; relative to this file under edl run.", text=PATH)] = (
        "model_zoo"
    )
    params: Annotated[Mapping[str, JsonValue], Field("Keyword arguments of the function that makes the model.")] = (
        field(default_factory=dict)
    )


@dataclass(frozen=True, slots=True)
class DataSpec:
    """Where records come from; each set is a tuple of paths, empty when there is none."""

    training: Annotated[tuple[str, ...], Field("Files or directories of records to train on.", paths=True)] = ()
    validation: Annotated[tuple[str, ...], Field("Files or directories of records to evaluate on.", paths=True)] = ()
    prediction: Annotated[tuple[str, ...], Field("Files or directories of records to predict.", paths=True)] = ()
    reader: Annotated[
        Mapping[str, JsonValue],
        Field("Arguments of the reader, such as format (recordio or csv); the reader checks them."),
    ] = field(default_factory=dict)
    max_corrupt_records: Annotated[
        int, Field("Corrupt records that are skipped and counted before the job fails.", unit="records")
    ] = 0


@dataclass(frozen=True, slots=True)
class ShuffleSpec:
    """How training records are mixed."""

    window: Annotated[
        int | None,
        Field(
            "Training records that are mixed with each other. The blocks of all files come in random order, and a "
            "worker holds the records of one window and of up to two blocks more (a chunk of RecordIO, 256 rows of "
            "CSV) in memory. null: as many as take about 64 MiB, 65536 at most; none where a custom reader has no "
            "blocks(). 0: no record is mixed, only ranges of train.minibatches_per_task minibatches come in random "
            "order.",
            unit="records",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """How long and in which portions to train."""

    epochs: Annotated[int, Field("How often the training records are gone through.", unit="epochs", minimum=1)] = 1
    minibatch_size: Annotated[int, Field("Records of one step of one worker.", unit="records", minimum=1)] = 64
    minibatches_per_task: Annotated[
        int, Field("Minibatches that a worker leases at once.", unit="minibatches", minimum=1)
    ] = 64
    evaluation_steps: Annotated[
        int | None,
        Field(
            "Steps from one evaluation to the next; those that fall due while one runs are left out. null evaluates "
            "at the end only.",
            unit="steps",
            minimum=1,
        ),
    ] = None
    max_steps: Annotated[
        int | None, Field("Steps after which the job ends; null ends with the epochs.", unit="steps", minimum=1)
    ] = None
    shuffle: Annotated[ShuffleSpec, Field("How training records are mixed.")] = field(default_factory=ShuffleSpec)
    seed: Annotated[int, Field("Seed of the initial weights and of the order of the records.")] = 0
    on_nan: Annotated[
        str,
        Field(
            "When a loss or gradient is not finite: stop the job naming the records, or skip the minibatch's update.",
            choices=("stop", "skip"),
        ),
    ] = "stop"
    on_crashing_range: Annotated[
        str,
        Field(
            "When a range of records makes workers crash again and again: fail the job, or skip the range and say so.",
            choices=("fail", "skip"),
        ),
    ] = "fail"


@dataclass(frozen=True, slots=True)
class CheckpointSpec:
    """When cuts of the parameters and the ledger are kept."""

    every_steps: Annotated[int, Field("Steps from one checkpoint to the next.", unit="steps", minimum=1)] = 1000
    keep: Annotated[
        int,
        Field(
            "Newest checkpoints that are kept; there must be room for one more, which is written before the oldest is "
            "removed.",
            unit="checkpoints",
            minimum=1,
        ),
    ] = 3
    full_timeout: Annotated[
        float,
        Field(
            "How long training waits when a checkpoint cannot be written, one interval after it was due; then the job "
            "fails and can be resumed.",
            unit="seconds",
            quantity=Quantity.DURATION,
        ),
    ] = 1800.0


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """Where the trained model goes."""

    path: Annotated[
        str | None, Field("Directory of the exported model; null is export/ in the run's directory.", text=PATH)
    ] = None


@dataclass(frozen=True, slots=True)
class MasterSpec:
    """The coordinator's pod."""

    priority: Annotated[str, Field("PriorityClass of the pod; edl run does not use it.", text=_PRIORITY)] = "high"
    resources: Annotated[ResourceSpec, Field("What the pod asks for.")] = field(default_factory=ResourceSpec)
    lost_timeout: Annotated[
        float,
        Field(
            "How long workers and parameter servers wait for a lost master.", unit="seconds", quantity=Quantity.DURATION
        ),
    ] = 1800.0


@dataclass(frozen=True, slots=True)
class ParameterServerSpec:
    """The roles that hold the parameters."""

    count: Annotated[int, Field("Number of parameter servers.", unit="processes or pods", minimum=1)] = 1
    priority: Annotated[str, Field("PriorityClass of the pods; edl run does not use it.", text=_PRIORITY)] = "high"
    replicas: Annotated[int, Field("Copies of each slot on other parameter servers.", built=(0,))] = 0
    embedding_threshold: Annotated[
        int, Field("Embedding layers of at least this size are served as rows.", unit="bytes", quantity=Quantity.SIZE)
    ] = 2 << 20
    resources: Annotated[ResourceSpec, Field("What each pod asks for.")] = field(default_factory=ResourceSpec)
    store: Annotated[
        str,
        Field(
            "What holds embedding rows: native code, or numpy, which is slower; auto is native where that is there.",
            choices=("auto", "native", "numpy"),
        ),
    ] = "auto"
    max_rows: Annotated[
        int | None,
        Field(
            "Rows that an embedding table may hold on all parameter servers together; a push beyond that fails the "
            "job.",
            unit="rows",
            minimum=1,
        ),
    ] = None
    evict_after_steps: Annotated[
        int | None,
        Field(
            "Steps after which a row that no push named is dropped; null keeps all.",
            unit="steps",
            minimum=1,
            maximum=_MAX_EVICTION_STEPS,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The elastic part of the job."""

    min: Annotated[int, Field("Below this many workers the job is called starved; it goes on.", unit="workers")] = 1
    max: Annotated[
        int,
        Field(
            "As many workers are asked for; edl run starts this many.", unit="workers", minimum=1, maximum=MOST_WORKERS
        ),
    ] = 2
    priority: Annotated[
        str,
        Field(
            "PriorityClass of the pods; high=0.5 gives high to half of them, low to the rest. edl run does not use it.",
            text=_SPLIT_PRIORITY,
        ),
    ] = "low"
    resources: Annotated[WorkerResourceSpec, Field("What each pod asks for.")] = field(
        default_factory=WorkerResourceSpec
    )
    oom_memory_factor: Annotated[
        float,
        Field(
            "Memory of a worker's successor after it ran out of memory, as a factor; 1 ends the job instead.", minimum=1
        ),
    ] = 1.0


@dataclass(frozen=True, slots=True)
class JobSpec:
    """All about one job."""

    name: Annotated[str, Field("Names the job, its runs and its pods.", text=_JOB_NAME)]
    model: Annotated[ModelSpec, Field("The user's model code.")]
    image: Annotated[str | None, Field("Container image of every role; edl run does not use it.", text=_IMAGE_NAME)] = (
        None
    )
    data: Annotated[DataSpec, Field("Where records come from.")] = field(default_factory=DataSpec)
    train: Annotated[TrainSpec, Field("How long and in which portions to train.")] = field(default_factory=TrainSpec)
    strategy: Annotated[Strategy, Field("How workers combine what they learn.")] = field(default_factory=Strategy)
    checkpoint: Annotated[
        CheckpointSpec | None,
        Field(
            "When checkpoints are kept; null keeps those of step 0 and of the end only (Local: none): a job that is "
            "resumed, or loses its only parameter server, begins at step 0."
        ),
    ] = field(default_factory=CheckpointSpec)
    export: Annotated[ExportSpec | None, Field("Where the trained model goes; null exports nothing.")] = field(
        default_factory=ExportSpec
    )
    master: Annotated[MasterSpec, Field("The coordinator's pod.")] = field(default_factory=MasterSpec)
    ps: Annotated[ParameterServerSpec, Field("The roles that hold the parameters.")] = field(
        default_factory=ParameterServerSpec
    )
    workers: Annotated[WorkerSpec, Field("The elastic part of the job.")] = field(default_factory=WorkerSpec)
    ttl_after_finished: Annotated[
        float | None,
        Field(
            "How long the ended job's objects stay on the cluster, where edl list, status and logs find them: its Job, "
            "and with it the ConfigMaps, Service, Secret and Lease; null keeps them. What is on volumes stays; edl run "
            "does not use it.",
            unit="seconds",
            quantity=Quantity.DURATION,
        ),
    ] = None
    volumes: Annotated[tuple[VolumeSpec, ...], Field("Directories that all roles share.")] = ()
    storage: Annotated[StorageSpec, Field("Where journal, checkpoints and logs go.")] = field(
        default_factory=StorageSpec
    )
    pod: Annotated[PodSpec, Field("What every pod of the job gets; edl run has no pods and does not use it.")] = field(
        default_factory=PodSpec
    )
    security: Annotated[SecuritySpec, Field("Whom pods run as; edl run does not use it.")] = field(
        default_factory=SecuritySpec
    )
