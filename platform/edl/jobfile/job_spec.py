"""The JobSpec: one file says all about a job; every role reads it whole, as these frozen values.

Attribute names are the YAML names. Each field's annotation carries what may be written, its unit, one sentence, and
which values this version has built (edl.jobfile.section_type). Quantities are numbers in the field's unit: bytes,
cores, seconds. Paths are text as written; edl.jobfile.path_resolution gives them their meaning on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from edl.api.cluster_port import MOST_WORKERS
from edl.api.job import Strategy
from edl.jobfile.document_tree import JsonValue, normalize_spelling
from edl.jobfile.pod_spec import PodSpec, ResourceSpec, SecuritySpec, StorageSpec, VolumeSpec, WorkerResourceSpec
from edl.jobfile.quantities import DURATION_TYPE, SIZE_TYPE
from edl.jobfile.scalar_types import (
    IMAGE_NAME,
    AnyJsonType,
    ChoiceType,
    IntegerType,
    ListType,
    MappingType,
    NullableType,
    NumberType,
    PathListType,
    TextType,
)
from edl.jobfile.section_type import FieldOption, SectionType

# --------------------------------------------------------------------------------------------------
# Fields as people write them who come from elsewhere, mostly from ElasticDL's flags, and what they are called here.


FIELD_ALIASES: Mapping[str, str] = {
    "batch_size": "train.minibatch_size",
    "checkpoint_steps": "checkpoint.every_steps",
    "data_reader_params": "data.reader",
    "distribution_strategy": "strategy.name",
    "image_name": "image",
    "job_name": "name",
    "keep_checkpoint_max": "checkpoint.keep",
    "max_step": "train.max_steps",
    "model_def": "model.definition",
    "model_params": "model.params",
    "model_zoo": "model.zoo",
    "num_epochs": "train.epochs",
    "num_minibatches_per_task": "train.minibatches_per_task",
    "num_ps": "ps.count",
    "num_ps_pods": "ps.count",
    "num_workers": "workers.max",
    "output": "export.path",
    "parameter_servers": "ps.count",
    "prediction_data": "data.prediction",
    "ps_count": "ps.count",
    "training_data": "data.training",
    "use_async": "strategy.mode",
    "validation_data": "data.validation",
}
"""Where a job file says the same. Fields of the same name one level down need no line: they are found by themselves."""
FUNCTION_ALIASES: Mapping[str, str] = {
    "callbacks": "callbacks",
    "custom_data_reader": "custom_data_reader",
    "eval_metrics_fn": "eval_metrics_fn",
    "feed": "feed",
    "learning_rate": "optimizer",
    "loss": "loss",
    "metrics": "eval_metrics_fn",
    "optimizer": "optimizer",
}
"""What is code here: the function of the model module that says it."""

_NORMALIZED_FIELDS = {normalize_spelling(name): field for name, field in FIELD_ALIASES.items()}
_NORMALIZED_FUNCTIONS = {normalize_spelling(name): function for name, function in FUNCTION_ALIASES.items()}


def suggest_replacement(name: str) -> str | None:
    """What to write in place of a job's unknown field, to stand after a semicolon; None when nothing is known of it."""
    if field := _NORMALIZED_FIELDS.get(normalize_spelling(name)):
        return f"did you mean '{field}'?"
    if function := _NORMALIZED_FUNCTIONS.get(normalize_spelling(name)):
        return f"it belongs in the model module, as the function {function}() (see the model contract)"
    return None


API_VERSION = "edl.dev/v1"

_JOB_NAME_TYPE = TextType(
    r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$",
    "a job name: 1 to 40 of a-z, 0-9 and -, beginning with a letter and not ending with -",
)
_DEFINITION_TYPE = TextType(
    r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$",
    "a module below the zoo and a function in it, such as mnist.model.custom_model",
)
_PRIORITY_TYPE = TextType(r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", "the name of a PriorityClass, such as high or low")
_SPLIT_PRIORITY_TYPE = TextType(
    r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?(=0\.[0-9]*[1-9][0-9]*)?$",
    "the name of a PriorityClass, or one with the share of workers (above 0, below 1) that get it, such as high=0.5",
)
_PATH_TYPE = TextType(description="a path")
_TEXT_TYPE = TextType()
_COUNT_TYPE = IntegerType(0)
_POSITIVE_TYPE = IntegerType(1)
_EVICTION_STEPS_TYPE = IntegerType(1, 100_000_000)  # each takes 4 bytes of a table's memory


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The user's model code."""

    definition: Annotated[
        str, FieldOption(_DEFINITION_TYPE, "The module below the zoo and the function that makes the model.")
    ]
    zoo: Annotated[
        str, FieldOption(_PATH_TYPE, "The directory of model code; relative to this file under edl run.")
    ] = "model_zoo"
    params: Annotated[
        Mapping[str, JsonValue],
        FieldOption(MappingType(AnyJsonType()), "Keyword arguments of the function that makes the model."),
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DataSpec:
    """Where records come from; each set is a tuple of paths, empty when there is none."""

    training: Annotated[
        tuple[str, ...], FieldOption(PathListType(), "Files or directories of records to train on.")
    ] = ()
    validation: Annotated[
        tuple[str, ...], FieldOption(PathListType(), "Files or directories of records to evaluate on.")
    ] = ()
    prediction: Annotated[
        tuple[str, ...], FieldOption(PathListType(), "Files or directories of records to predict.")
    ] = ()
    reader: Annotated[
        Mapping[str, JsonValue],
        FieldOption(
            MappingType(AnyJsonType()),
            "Arguments of the reader, such as format (recordio or csv); the reader checks them.",
        ),
    ] = field(default_factory=dict)
    max_corrupt_records: Annotated[
        int, FieldOption(_COUNT_TYPE, "Corrupt records that are skipped and counted before the job fails.", "records")
    ] = 0


@dataclass(frozen=True, slots=True)
class ShuffleSpec:
    """How training records are mixed."""

    window: Annotated[
        int | None,
        FieldOption(
            NullableType(_COUNT_TYPE),
            "Training records that are mixed with each other. The blocks of all files come in random order, and a "
            "worker holds the records of one window and of up to two blocks more (a chunk of RecordIO, 256 rows of "
            "CSV) in memory. null: as many as take about 64 MiB, 65536 at most; none where a custom reader has no "
            "blocks(). 0: no record is mixed, only ranges of train.minibatches_per_task minibatches come in random "
            "order.",
            "records",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """How long and in which portions to train."""

    epochs: Annotated[
        int, FieldOption(_POSITIVE_TYPE, "How often the training records are gone through.", "epochs")
    ] = 1
    minibatch_size: Annotated[int, FieldOption(_POSITIVE_TYPE, "Records of one step of one worker.", "records")] = 64
    minibatches_per_task: Annotated[
        int, FieldOption(_POSITIVE_TYPE, "Minibatches that a worker leases at once.", "minibatches")
    ] = 64
    evaluation_steps: Annotated[
        int | None,
        FieldOption(
            NullableType(_POSITIVE_TYPE),
            "Steps from one evaluation to the next; those that fall due while one runs are left out. null evaluates "
            "at the end only.",
            "steps",
        ),
    ] = None
    max_steps: Annotated[
        int | None,
        FieldOption(
            NullableType(_POSITIVE_TYPE), "Steps after which the job ends; null ends with the epochs.", "steps"
        ),
    ] = None
    shuffle: Annotated[ShuffleSpec, FieldOption(SectionType(ShuffleSpec), "How training records are mixed.")] = field(
        default_factory=ShuffleSpec
    )
    seed: Annotated[int, FieldOption(_COUNT_TYPE, "Seed of the initial weights and of the order of the records.")] = 0
    on_nan: Annotated[
        str,
        FieldOption(
            ChoiceType(("stop", "skip")),
            "When a loss or gradient is not finite: stop the job naming the records, or skip the minibatch's update.",
        ),
    ] = "stop"
    on_crashing_range: Annotated[
        str,
        FieldOption(
            ChoiceType(("fail", "skip")),
            "When a range of records makes workers crash again and again: fail the job, or skip the range and say so.",
        ),
    ] = "fail"


@dataclass(frozen=True, slots=True)
class CheckpointSpec:
    """When cuts of the parameters and the ledger are kept."""

    every_steps: Annotated[int, FieldOption(_POSITIVE_TYPE, "Steps from one checkpoint to the next.", "steps")] = 1000
    keep: Annotated[
        int,
        FieldOption(
            _POSITIVE_TYPE,
            "Newest checkpoints that are kept; there must be room for one more, which is written before the oldest is "
            "removed.",
            "checkpoints",
        ),
    ] = 3
    full_timeout: Annotated[
        float,
        FieldOption(
            DURATION_TYPE,
            "How long training waits when a checkpoint cannot be written, one interval after it was due; then the job "
            "fails and can be resumed.",
            "seconds",
        ),
    ] = 1800.0


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """Where the trained model goes."""

    path: Annotated[
        str | None,
        FieldOption(
            NullableType(_PATH_TYPE), "Directory of the exported model; null is export/ in the run's directory."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class MasterSpec:
    """The coordinator's pod."""

    priority: Annotated[str, FieldOption(_PRIORITY_TYPE, "PriorityClass of the pod; edl run does not use it.")] = "high"
    resources: Annotated[ResourceSpec, FieldOption(SectionType(ResourceSpec), "What the pod asks for.")] = field(
        default_factory=ResourceSpec
    )
    lost_timeout: Annotated[
        float, FieldOption(DURATION_TYPE, "How long workers and parameter servers wait for a lost master.", "seconds")
    ] = 1800.0


@dataclass(frozen=True, slots=True)
class ParameterServerSpec:
    """The roles that hold the parameters."""

    count: Annotated[int, FieldOption(_POSITIVE_TYPE, "Number of parameter servers.", "processes or pods")] = 1
    priority: Annotated[str, FieldOption(_PRIORITY_TYPE, "PriorityClass of the pods; edl run does not use it.")] = (
        "high"
    )
    replicas: Annotated[
        int, FieldOption(_COUNT_TYPE, "Copies of each slot on other parameter servers.", built=(0,))
    ] = 0
    embedding_threshold: Annotated[
        int, FieldOption(SIZE_TYPE, "Embedding layers of at least this size are served as rows.", "bytes")
    ] = 2 << 20
    resources: Annotated[ResourceSpec, FieldOption(SectionType(ResourceSpec), "What each pod asks for.")] = field(
        default_factory=ResourceSpec
    )
    store: Annotated[
        str,
        FieldOption(
            ChoiceType(("auto", "native", "numpy")),
            "What holds embedding rows: native code, or numpy, which is slower; auto is native where that is there.",
        ),
    ] = "auto"
    max_rows: Annotated[
        int | None,
        FieldOption(
            NullableType(_POSITIVE_TYPE),
            "Rows that an embedding table may hold on all parameter servers together; a push beyond that fails the "
            "job.",
            "rows",
        ),
    ] = None
    evict_after_steps: Annotated[
        int | None,
        FieldOption(
            NullableType(_EVICTION_STEPS_TYPE),
            "Steps after which a row that no push named is dropped; null keeps all.",
            "steps",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The elastic part of the job."""

    min: Annotated[
        int, FieldOption(_COUNT_TYPE, "Below this many workers the job is called starved; it goes on.", "workers")
    ] = 1
    max: Annotated[
        int,
        FieldOption(
            IntegerType(1, MOST_WORKERS), "As many workers are asked for; edl run starts this many.", "workers"
        ),
    ] = 2
    priority: Annotated[
        str,
        FieldOption(
            _SPLIT_PRIORITY_TYPE,
            "PriorityClass of the pods; high=0.5 gives high to half of them, low to the rest. edl run does not use it.",
        ),
    ] = "low"
    resources: Annotated[
        WorkerResourceSpec, FieldOption(SectionType(WorkerResourceSpec), "What each pod asks for.")
    ] = field(default_factory=WorkerResourceSpec)
    oom_memory_factor: Annotated[
        float,
        FieldOption(
            NumberType(1.0),
            "Memory of a worker's successor after it ran out of memory, as a factor; 1 ends the job instead.",
        ),
    ] = 1.0


@dataclass(frozen=True, slots=True)
class JobSpec:
    """All about one job."""

    name: Annotated[str, FieldOption(_JOB_NAME_TYPE, "Names the job, its runs and its pods.")]
    model: Annotated[ModelSpec, FieldOption(SectionType(ModelSpec), "The user's model code.")]
    image: Annotated[
        str | None, FieldOption(NullableType(IMAGE_NAME), "Container image of every role; edl run does not use it.")
    ] = None
    data: Annotated[DataSpec, FieldOption(SectionType(DataSpec), "Where records come from.")] = field(
        default_factory=DataSpec
    )
    train: Annotated[TrainSpec, FieldOption(SectionType(TrainSpec), "How long and in which portions to train.")] = (
        field(default_factory=TrainSpec)
    )
    strategy: Annotated[Strategy, FieldOption(SectionType(Strategy), "How workers combine what they learn.")] = field(
        default_factory=Strategy
    )
    checkpoint: Annotated[
        CheckpointSpec | None,
        FieldOption(
            NullableType(SectionType(CheckpointSpec)),
            "When checkpoints are kept; null keeps those of step 0 and of the end only (Local: none): a job that is "
            "resumed, or loses its only parameter server, begins at step 0.",
        ),
    ] = field(default_factory=CheckpointSpec)
    export: Annotated[
        ExportSpec | None,
        FieldOption(NullableType(SectionType(ExportSpec)), "Where the trained model goes; null exports nothing."),
    ] = field(default_factory=ExportSpec)
    master: Annotated[MasterSpec, FieldOption(SectionType(MasterSpec), "The coordinator's pod.")] = field(
        default_factory=MasterSpec
    )
    ps: Annotated[
        ParameterServerSpec, FieldOption(SectionType(ParameterServerSpec), "The roles that hold the parameters.")
    ] = field(default_factory=ParameterServerSpec)
    workers: Annotated[WorkerSpec, FieldOption(SectionType(WorkerSpec), "The elastic part of the job.")] = field(
        default_factory=WorkerSpec
    )
    ttl_after_finished: Annotated[
        float | None,
        FieldOption(
            NullableType(DURATION_TYPE),
            "How long the ended job's objects stay on the cluster, where edl list, status and logs find them: its Job, "
            "and with it the ConfigMaps, Service, Secret and Lease; null keeps them. What is on volumes stays; edl run "
            "does not use it.",
            "seconds",
        ),
    ] = None
    volumes: Annotated[
        tuple[VolumeSpec, ...], FieldOption(ListType(SectionType(VolumeSpec)), "Directories that all roles share.")
    ] = ()
    storage: Annotated[
        StorageSpec, FieldOption(SectionType(StorageSpec), "Where journal, checkpoints and logs go.")
    ] = field(default_factory=StorageSpec)
    pod: Annotated[
        PodSpec,
        FieldOption(SectionType(PodSpec), "What every pod of the job gets; edl run has no pods and does not use it."),
    ] = field(default_factory=PodSpec)
    security: Annotated[
        SecuritySpec, FieldOption(SectionType(SecuritySpec), "Whom pods run as; edl run does not use it.")
    ] = field(default_factory=SecuritySpec)


JOB_SECTION = SectionType(JobSpec, constants=(("apiVersion", API_VERSION),), suggest_replacement=suggest_replacement)
