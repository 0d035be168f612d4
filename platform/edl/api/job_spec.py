"""The JobSpec: the content of a job file as frozen dataclasses. Every role loads the whole spec.

Attribute names are the YAML names. The annotation of a field (edl.api.fields) has its description, unit and valid
values, and says which values this version supports. Quantities are numbers in the field's unit: bytes, cores, seconds.
Paths are kept as written; edl.jobfile.path_resolution resolves them for this machine or for a pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from edl.api.cluster_port import MOST_WORKERS
from edl.api.fields import ANY_TEXT, PATH, Field, JsonValue, Quantity, TextForm
from edl.api.pod_spec import PodSpec, ResourceSpec, SecuritySpec, StorageSpec, VolumeSpec, WorkerResourceSpec
from edl.api.strategy import Strategy

API_VERSION = "edl.dev/v1"

# 40 characters: names of objects and labels add a prefix and a suffix, such as edl-<job>-worker-<i>, to the job's name,
# and Kubernetes allows 63 characters in a label's value
_JOB_NAME = TextForm(
    "a job name: 1 to 40 of a-z, 0-9 and -, beginning with a letter and not ending with -",
    r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$",
)
_MODEL_DEFINITION = TextForm(
    "a module below the zoo and a function in it, such as mnist.model.custom_model",
    r"^([A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+)?$",
)
_COMMAND_WORD = TextForm("a word of a command line, without NUL and line breaks", r"^[^\x00\r\n]+$")
_CONTRACT_FUNCTION = TextForm(
    "a name of the model contract: loss, optimizer, eval_metrics_fn, weighted_metrics_fn, feed, callbacks, "
    "custom_data_reader or PredictionOutputsProcessor",
    "^(loss|optimizer|eval_metrics_fn|weighted_metrics_fn|feed|callbacks|custom_data_reader|PredictionOutputsProcessor)$",
)
_FUNCTION_NAME = TextForm(
    "a name in the model's module, or module.name for another module of the zoo",
    r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$",
)
_PRIORITY = TextForm("the name of a PriorityClass, such as high or low", r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
_SPLIT_PRIORITY = TextForm(
    "the name of a PriorityClass, or one with the share of workers (above 0, below 1) that get it, such as high=0.5",
    r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?(=0\.[0-9]*[1-9][0-9]*)?$",
)
_MAX_EVICTION_STEPS = 100_000_000  # a table keeps one 4-byte counter for each step of this age

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
        str, Field("Module below the zoo, and the function in it that returns the model.", text=_MODEL_DEFINITION)
    ] = ""
    zoo: Annotated[
        str,
        Field(
            "Directory of model code; edl run takes it relative to this file. The job's command runs in it.", text=PATH
        ),
    ] = "model_zoo"
    params: Annotated[Mapping[str, JsonValue], Field("Keyword arguments of that function.")] = field(
        default_factory=dict
    )
    keras: Annotated[
        int,
        Field(
            "Version of Keras that the model is written for: 2 needs tf_keras, and tf.keras is then tf_keras. "
            "TF_USE_LEGACY_KERAS=1 in the environment means 2, too.",
            minimum=2,
            maximum=3,
        ),
    ] = 3
    functions: Annotated[
        Mapping[str, str],
        Field(
            "Functions of the model contract that have other names in the module, such as loss: my_loss.",
            text=_FUNCTION_NAME,
            keys=_CONTRACT_FUNCTION,
        ),
    ] = field(default_factory=dict)
    weights: Annotated[
        str | None,
        Field(
            "Trained weights that a job evaluates or predicts with: a run, JOB/RUN or its directory (its newest intact "
            "checkpoint), a checkpoint's directory, DIRECTORY/version-N (the checkpoint at step N of the newest run in "
            "DIRECTORY that has one), or a .keras file. A job that trains ignores it.",
        ),
    ] = None
    init_from: Annotated[
        str | None,
        Field(
            "Weights that a job begins to train with, instead of the initial values of its layers; named like "
            "model.weights, and of a model with the same layers. The optimizer and the records begin anew. A run that "
            "continues, and a job that evaluates or predicts, ignore it.",
        ),
    ] = None


_FEATURE_TYPE = TextForm(
    "bool, int32, int64, float32, float64 or string", r"^(bool|int32|int64|float32|float64|string)$"
)


@dataclass(frozen=True, slots=True)
class SchemaSpec:
    """What the default feed makes of a record: features and the label. Modules that define feed have no use for it."""

    label: Annotated[
        str | None, Field("Column of the label. Folders of images have theirs: the class of the folder.")
    ] = None
    features: Annotated[
        Mapping[str, str],
        Field(
            "Columns that the model gets, each with its type; by default all but the label. The type is that of the "
            "column, or for CSV that of its text.",
            text=_FEATURE_TYPE,
        ),
    ] = field(default_factory=dict)
    classes: Annotated[
        tuple[str, ...],
        Field("Values of the label's column, in the order of the numbers that they become.", text=ANY_TEXT),
    ] = ()
    label_mode: Annotated[
        str | None,
        Field(
            "What a label becomes: int, the number of its class; categorical, a one-hot vector; binary, 0 or 1 as "
            "float32 of the shape (1,). null: int with classes, else a number as float32 of the shape (1,).",
            choices=("int", "categorical", "binary"),
        ),
    ] = None
    image_size: Annotated[
        tuple[int, ...],
        Field(
            "Height and width to which images are resized; by default those of the model's input, else 256 x 256.",
            unit="pixels",
            minimum=1,
        ),
    ] = ()
    color_mode: Annotated[
        str | None,
        Field(
            "Channels of an image: 1, 3 or 4. null: as many as the model's input has, else rgb.",
            choices=("grayscale", "rgb", "rgba"),
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class SplitSpec:
    """How the records of the same files are divided into training and validation."""

    key: Annotated[
        str, Field("Column whose values decide: records with the same value are in the same set.", required=True)
    ] = ""
    validation: Annotated[
        float, Field("Share of the values whose records are for validation, above 0 and below 1.")
    ] = 0.1


@dataclass(frozen=True, slots=True)
class DataSpec:
    """The data sets. Each is a tuple of paths, which is empty if the job file does not name the set."""

    training: Annotated[
        tuple[str, ...],
        Field("Files or directories of records to train on, for edl run relative to this file.", paths=True),
    ] = ()
    validation: Annotated[
        tuple[str, ...],
        Field("Files or directories of records to evaluate on, for edl run relative to this file.", paths=True),
    ] = ()
    prediction: Annotated[
        tuple[str, ...],
        Field("Files or directories of records to predict, for edl run relative to this file.", paths=True),
    ] = ()
    reader: Annotated[
        Mapping[str, JsonValue],
        Field("Arguments of the reader, such as format (csv, parquet, tfrecord ...). The reader checks them."),
    ] = field(default_factory=dict)
    schema: Annotated[
        SchemaSpec | None,
        Field(
            "Features and label of a table, or size and labels of images, for a module without feed; edl data schema "
            "prints that of a table. null: the module defines feed."
        ),
    ] = None
    weights: Annotated[
        tuple[int, ...],
        Field(
            "For each path of data.training, how many of its records come for those of the others. It sets the order "
            "only: each record of an epoch is still trained once. By default all files are shuffled with each other.",
            minimum=1,
            maximum=1000,
        ),
    ] = ()
    repeat: Annotated[
        tuple[int, ...],
        Field(
            "For each path of data.training, how often its records are in an epoch; by default once.",
            minimum=1,
            maximum=1000,
        ),
    ] = ()
    split: Annotated[
        SplitSpec | None,
        Field(
            "Divide the same records into training and validation by a key; data.training and data.validation name the "
            "same files then."
        ),
    ] = None
    max_corrupt_records: Annotated[
        int, Field("Number of corrupt records that are skipped and counted; one more fails the job.", unit="records")
    ] = 0


@dataclass(frozen=True, slots=True)
class ShuffleSpec:
    """How training records are shuffled."""

    window: Annotated[
        int | None,
        Field(
            "Number of training records that are shuffled with each other. The blocks of all files (a "
            "chunk of RecordIO, 256 rows of CSV) come in random order, and a worker keeps the records "
            "of one window and of up to two more blocks in memory. null: as many as take about 64 "
            "MiB, at most 65536; no window if a custom reader has no blocks(). 0: records are not "
            "shuffled; only ranges of train.minibatches_per_task minibatches come in random order.",
            unit="records",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """What a minibatch is made of."""

    bucket_by: Annotated[
        str | None,
        Field(
            "Column whose lengths (items of a list, bytes of a text) put similar records into a minibatch, among those "
            "of a lease; record: the whole record, if it is bytes. null: no buckets."
        ),
    ] = None
    pad: Annotated[
        bool,
        Field(
            "Pad what feed returns with zeros or empty text to the longest record of the minibatch, also in "
            "evaluations and predictions."
        ),
    ] = False
    drop_remainder: Annotated[
        bool,
        Field(
            "Do not train minibatches with fewer records than train.minibatch_size; their records are done and counted "
            "as records_not_trained."
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """How long to train, and how records are divided into minibatches and leases."""

    epochs: Annotated[int, Field("Number of passes over the training records.", unit="epochs", minimum=1)] = 1
    minibatch_size: Annotated[int, Field("Records per step of one worker.", unit="records", minimum=1)] = 64
    minibatches_per_task: Annotated[int, Field("Minibatches per lease.", unit="minibatches", minimum=1)] = 64
    evaluation_steps: Annotated[
        int | None,
        Field(
            "Steps between two evaluations; one that is due while another runs is skipped. null: "
            "evaluate only at the end.",
            unit="steps",
            minimum=1,
        ),
    ] = None
    max_steps: Annotated[
        int | None, Field("Steps after which training ends; null: after all epochs.", unit="steps", minimum=1)
    ] = None
    shuffle: Annotated[ShuffleSpec, Field("How training records are shuffled.")] = field(default_factory=ShuffleSpec)
    batches: Annotated[BatchSpec, Field("What a minibatch is made of.")] = field(default_factory=BatchSpec)
    seed: Annotated[int, Field("Seed of the initial weights and of the order of records.")] = 0
    on_nan: Annotated[
        str,
        Field(
            "If a loss or gradient is not finite: fail the job and name the records, or skip the minibatch's update "
            "(under AllReduce that of all workers) and count it as updates_skipped.",
            choices=("stop", "skip"),
        ),
    ] = "stop"
    on_crashing_range: Annotated[
        str,
        Field(
            "If a range of records crashes workers repeatedly: fail the job, or skip the range and report it.",
            choices=("fail", "skip"),
        ),
    ] = "fail"


@dataclass(frozen=True, slots=True)
class EvaluationSpec:
    """How evaluations during training are distributed."""

    max_workers: Annotated[
        int | None,
        Field(
            "With AllReduce: number of workers that evaluate a copy of the variables while the others train. 0: "
            "training pauses, and all workers share the evaluation. null: 1, or 0 if callbacks decide by evaluations "
            "(EarlyStopping, ReduceLROnPlateau). A world of one worker pauses in any case.",
            unit="workers",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class CheckpointSpec:
    """When checkpoints are written, and how many are kept."""

    every_steps: Annotated[int, Field("Steps between two checkpoints.", unit="steps", minimum=1)] = 1000
    keep: Annotated[
        int,
        Field(
            "Number of newest checkpoints to keep. The disk needs room for one more, which is written "
            "before the oldest is removed.",
            unit="checkpoints",
            minimum=1,
        ),
    ] = 3
    full_timeout: Annotated[
        float,
        Field(
            "If a checkpoint cannot be written, training pauses one interval after it was due. After "
            "this time the job fails; it can be resumed.",
            unit="seconds",
            quantity=Quantity.DURATION,
        ),
    ] = 1800.0


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """Where the trained model is written."""

    path: Annotated[
        str | None,
        Field(
            "Directory of the exported model, for edl run relative to this file; null: export/ in the run's directory.",
            text=PATH,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class MasterSpec:
    """The master: it coordinates the job."""

    priority: Annotated[str, Field("PriorityClass of the pod; edl run ignores it.", text=_PRIORITY)] = "high"
    resources: Annotated[ResourceSpec, Field("Resource requests of the pod.")] = field(default_factory=ResourceSpec)
    overrides: Annotated[
        Mapping[str, JsonValue],
        Field("Parts of its pod, in the syntax of Kubernetes, merged in after pod.overrides; edl run ignores them."),
    ] = field(default_factory=dict)
    log_pod: Annotated[
        bool,
        Field(
            "A light pod PREFIX-JOB-master prints the master's log and ends with the job, for kubectl logs by a fixed "
            "name; PREFIX is pod.name_prefix. It needs a volume. edl run ignores it."
        ),
    ] = False
    service_overrides: Annotated[
        Mapping[str, JsonValue],
        Field("Parts of the master's Service, in the syntax of Kubernetes, merged in last; edl run ignores them."),
    ] = field(default_factory=dict)
    lost_timeout: Annotated[
        float,
        Field(
            "How long workers and parameter servers wait for a lost master before they exit.",
            unit="seconds",
            quantity=Quantity.DURATION,
        ),
    ] = 1800.0
    prepare: Annotated[
        tuple[str, ...],
        Field(
            "A command that the master runs once, before it counts the records: its name and its arguments, one by "
            "one. It may write data and model, and change spec.json in the directory EDL_RUN_DIR. If it fails, so does "
            "the job.",
            text=_COMMAND_WORD,
        ),
    ] = ()
    finish: Annotated[
        tuple[str, ...],
        Field(
            "A command that the master runs when all records are done, before it reports the end. It gets the summary "
            "as JSON on standard input, and is repeated if the master is lost meanwhile. If it fails, so does the job.",
            text=_COMMAND_WORD,
        ),
    ] = ()


@dataclass(frozen=True, slots=True)
class ParameterServerSpec:
    """The parameter servers: they hold the parameters."""

    count: Annotated[int, Field("Number of parameter servers.", unit="processes or pods", minimum=1)] = 1
    priority: Annotated[str, Field("PriorityClass of the pods; edl run ignores it.", text=_PRIORITY)] = "high"
    replicas: Annotated[int, Field("Replicas of each slot on other parameter servers.", built=(0,))] = 0
    embedding_threshold: Annotated[
        int,
        Field(
            "Embedding layers of at least this size are kept on the parameter servers; workers pull rows.",
            unit="bytes",
            quantity=Quantity.SIZE,
        ),
    ] = 2 << 20
    resources: Annotated[ResourceSpec, Field("Resource requests of each pod.")] = field(default_factory=ResourceSpec)
    overrides: Annotated[
        Mapping[str, JsonValue],
        Field("Parts of these pods, in the syntax of Kubernetes, merged in after pod.overrides; edl run ignores them."),
    ] = field(default_factory=dict)
    store: Annotated[
        str,
        Field(
            "Implementation of embedding tables: native code, or numpy, which is slower. auto: native "
            "if it is installed.",
            choices=("auto", "native", "numpy"),
        ),
    ] = "auto"
    max_rows: Annotated[
        int | None,
        Field(
            "Maximum rows of an embedding table on all parameter servers together; a push that "
            "exceeds it fails the job.",
            unit="rows",
            minimum=1,
        ),
    ] = None
    evict_after_steps: Annotated[
        int | None,
        Field(
            "Steps after which a row that no push has named is dropped; null: keep all rows.",
            unit="steps",
            minimum=1,
            maximum=_MAX_EVICTION_STEPS,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The workers: their number may change at any time."""

    min: Annotated[
        int,
        Field(
            "With fewer running workers the status calls the job starved; it continues (AllReduce: it waits, also "
            "before the first step; with 1 the first worker begins alone).",
            unit="workers",
        ),
    ] = 1
    max: Annotated[
        int,
        Field(
            "Number of workers that the job requests; edl run starts this many.",
            unit="workers",
            minimum=1,
            maximum=MOST_WORKERS,
        ),
    ] = 2
    priority: Annotated[
        str,
        Field(
            "PriorityClass of the pods; high=0.5 gives high to half of them, low to the others. edl run ignores it.",
            text=_SPLIT_PRIORITY,
        ),
    ] = "low"
    resources: Annotated[WorkerResourceSpec, Field("Resource requests of each pod.")] = field(
        default_factory=WorkerResourceSpec
    )
    overrides: Annotated[
        Mapping[str, JsonValue],
        Field("Parts of these pods, in the syntax of Kubernetes, merged in after pod.overrides; edl run ignores them."),
    ] = field(default_factory=dict)
    oom_memory_factor: Annotated[
        float,
        Field(
            "Factor by which memory grows for the successors of a worker that ran out of memory; 1: "
            "the job fails instead.",
            minimum=1,
        ),
    ] = 1.0


@dataclass(frozen=True, slots=True)
class LogSpec:
    """What the logs of the job's processes contain."""

    level: Annotated[
        str,
        Field(
            "Least severity of what master, parameter servers and workers log. Strategy Local prints warnings at most, "
            "beside its own report.",
            choices=("debug", "info", "warning", "error"),
        ),
    ] = "info"
    loss_every_steps: Annotated[
        int | None,
        Field(
            "Steps between two lines with the loss in the log of each worker, Loss = 0.31, steps = 200; null: only the "
            "master logs the loss, every 5 seconds.",
            unit="steps",
            minimum=1,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job file, with all defaults."""

    name: Annotated[str, Field("Name of the job, its runs and its pods.", text=_JOB_NAME)]
    model: Annotated[ModelSpec, Field("The user's model code.")] = field(default_factory=ModelSpec)
    command: Annotated[
        tuple[str, ...],
        Field(
            "A program that every worker runs in the directory model.zoo, instead of a Keras model: its name and its "
            "arguments, one by one. It takes its records with edl.sharding, in any framework.",
            text=_COMMAND_WORD,
        ),
    ] = ()
    image: Annotated[str | None, Field("Container image of all roles; edl run ignores it.", text=_IMAGE_NAME)] = None
    task: Annotated[
        str,
        Field(
            "What the job does: train, or only evaluate data.validation or predict data.prediction with model.weights, "
            "without parameter servers.",
            choices=("train", "evaluate", "predict"),
        ),
    ] = "train"
    data: Annotated[DataSpec, Field("The data sets.")] = field(default_factory=DataSpec)
    train: Annotated[TrainSpec, Field("How long to train, and in which portions.")] = field(default_factory=TrainSpec)
    strategy: Annotated[Strategy, Field("How the gradients of workers are combined.")] = field(default_factory=Strategy)
    evaluation: Annotated[EvaluationSpec, Field("How evaluations during training are distributed.")] = field(
        default_factory=EvaluationSpec
    )
    checkpoint: Annotated[
        CheckpointSpec | None,
        Field(
            "When to take checkpoints. null: only at step 0, at the end and when the job is stopped "
            "(Local: none); a job that is killed, or loses its only parameter server, then starts "
            "again at step 0."
        ),
    ] = field(default_factory=CheckpointSpec)
    export: Annotated[ExportSpec | None, Field("Where to write the trained model; null: no export.")] = field(
        default_factory=ExportSpec
    )
    master: Annotated[MasterSpec, Field("The master: it coordinates the job.")] = field(default_factory=MasterSpec)
    ps: Annotated[ParameterServerSpec, Field("The parameter servers: they hold the parameters.")] = field(
        default_factory=ParameterServerSpec
    )
    workers: Annotated[WorkerSpec, Field("The workers: their number may change at any time.")] = field(
        default_factory=WorkerSpec
    )
    log: Annotated[LogSpec, Field("What the logs contain.")] = field(default_factory=LogSpec)
    ttl_after_finished: Annotated[
        float | None,
        Field(
            "How long the objects of an ended job stay on the cluster for edl list, status and logs: "
            "the Job, and with it ConfigMaps, Service, Secret and Lease. null: until you delete the "
            "job. Files on volumes are kept; edl run ignores it.",
            unit="seconds",
            quantity=Quantity.DURATION,
        ),
    ] = None
    volumes: Annotated[tuple[VolumeSpec, ...], Field("Directories that all roles can access.")] = ()
    storage: Annotated[StorageSpec, Field("Where to write journal, checkpoints and logs.")] = field(
        default_factory=StorageSpec
    )
    pod: Annotated[PodSpec, Field("Settings of every pod of the job; edl run ignores them.")] = field(
        default_factory=PodSpec
    )
    security: Annotated[SecuritySpec, Field("User and ServiceAccounts of the pods; edl run ignores them.")] = field(
        default_factory=SecuritySpec
    )
