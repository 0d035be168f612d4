"""Every flag of ElasticDL's client, and what it becomes: a field of the job file, a line that says why it has no
effect, or a refusal with what to write instead.

Names, types, defaults and required flags are those of elasticdl-client 1.0.0; a test compares them. Flags that only
other versions have are ``EXTRA_FLAGS`` and ``RETIRED_FLAGS``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from edl.api.fields import ScalarValue


@dataclass(frozen=True, slots=True)
class BecomesFields:
    """The flag becomes fields of the job file. ``edl.cli.elasticdl.job_translation`` has the translation.

    Attributes:
        fields: paths of the fields.
        remark: what differs from ElasticDL, for the help and the migration page.
    """

    fields: tuple[str, ...]
    remark: str = ""


@dataclass(frozen=True, slots=True)
class DirectsCommand:
    """The flag says what this command does; nothing of it is in the job file."""

    purpose: str


@dataclass(frozen=True, slots=True)
class NoEffect:
    """The flag is accepted, and a line says why it changes nothing."""

    reason: str


@dataclass(frozen=True, slots=True)
class RefusedFlag:
    """Any value but the default ends the command. The default is accepted with a line.

    Attributes:
        reason: why EDL cannot do it.
        instead: what to write.
    """

    reason: str
    instead: str


Effect: TypeAlias = BecomesFields | DirectsCommand | NoEffect | RefusedFlag


class Kind(StrEnum):
    """How a value is read."""

    TEXT = "str"
    UPPER_TEXT = "str.upper"
    WHOLE_NUMBER = "int"
    BOOLEAN = "bool"


PUBLIC_INDEX = ""
"""The default of ``--extra_pypi_index``: in ElasticDL the address of pip's own index, which pip uses anyway."""
TRAIN, EVALUATE, PREDICT = "train", "evaluate", "predict"
ZOO_INIT, ZOO_BUILD, ZOO_PUSH = "zoo init", "zoo build", "zoo push"
JOB_COMMANDS = (TRAIN, EVALUATE, PREDICT)
COMMANDS = (*JOB_COMMANDS, ZOO_INIT, ZOO_BUILD, ZOO_PUSH)


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Attributes:
        name: without dashes; that of a positional argument stands alone on the command line.
        effect: what it becomes.
        commands: the commands that have it.
        required: the commands that need it.
        is_positional: whether it is an argument without a name.
    """

    name: str
    effect: Effect
    default: ScalarValue = ""
    kind: Kind = Kind.TEXT
    choices: tuple[str, ...] = ()
    commands: tuple[str, ...] = JOB_COMMANDS
    required: tuple[str, ...] = ()
    is_positional: bool = False

    @property
    def option(self) -> str:
        """As it is typed: ``--num_workers``."""
        return self.name if self.is_positional else f"--{self.name}"


_PODS_ARE_REPLACED = "EDL replaces lost workers and parameter servers, without a limit and without a flag"
_NO_CHIEF = "EDL has no chief: all workers are equal"
_NO_EVALUATORS = "EDL has no evaluators: workers evaluate between their training tasks"
_WRITE_A_MODULE = (
    "name a Keras model with --model_def (docs/model-contract.md), or a program with a loop of its own with "
    "--job_command"
)
_STRATEGIES = ("", "Local", "ParameterServerStrategy", "AllreduceStrategy", "CustomStrategy")
_OVERRIDES = ("master.overrides", "ps.overrides", "workers.overrides", "master.service_overrides")
_TRAINS_NOTHING = NoEffect("nothing is trained, so there is nothing to keep")
_NO_PULLS = NoEffect("nothing is trained: workers read the trained model once")
_INT, _BOOL = Kind.WHOLE_NUMBER, Kind.BOOLEAN


def _resources(role: str, default: str) -> tuple[Flag, Flag]:
    fields = tuple(f"{role}.resources.{name}" for name in ("cpu", "memory", "ephemeral_storage"))
    name = {"workers": "worker"}.get(role, role)
    limits = (f"{role}.resources.limits.cpu", f"{role}.resources.limits.memory", f"{role}.resources.ephemeral_storage")
    gpu = ("workers.resources.gpu",) if role == "workers" else ()
    return (
        Flag(f"{name}_resource_request", BecomesFields((*fields, *gpu)), default),
        Flag(
            f"{name}_resource_limit",
            BecomesFields((*limits, *gpu), "without it, memory's limit is the request, and CPU has none"),
        ),
    )


def _unused_role(role: str, reason: str) -> tuple[Flag, ...]:
    return (
        Flag(f"{role}_resource_request", NoEffect(reason), "cpu=1,memory=4096Mi"),
        Flag(f"{role}_resource_limit", NoEffect(reason)),
        Flag(f"{role}_pod_priority", NoEffect(reason)),
    )


def _function(name: str, default: str | None = None, commands: tuple[str, ...] = JOB_COMMANDS) -> Flag:
    return Flag(name, BecomesFields((f"model.functions.{default or name}",)), default or name, commands=commands)


JOB_FLAGS: tuple[Flag, ...] = (
    # the job, its image and its data
    Flag("job_name", BecomesFields(("name",)), None, required=JOB_COMMANDS),
    Flag("image_name", BecomesFields(("image",), "without it, the job runs on this machine")),
    Flag("worker_image", RefusedFlag("all roles of a job run one image", "give --image_name alone")),
    Flag("ps_image", RefusedFlag("all roles of a job run one image", "give --image_name alone")),
    Flag(
        "namespace",
        DirectsCommand("the namespace to submit to; without it, that of the kubeconfig's context"),
        "default",
    ),
    Flag("training_data", BecomesFields(("data.training",)), commands=(TRAIN,)),
    Flag("validation_data", BecomesFields(("data.validation",)), commands=(TRAIN,)),
    Flag("validation_data", BecomesFields(("data.validation",)), None, commands=(EVALUATE,), required=(EVALUATE,)),
    Flag("prediction_data", BecomesFields(("data.prediction",)), None, commands=(PREDICT,), required=(PREDICT,)),
    Flag("data_reader_params", BecomesFields(("data.reader",), "label_col is label, reader_type is format")),
    Flag("minibatch_size", BecomesFields(("train.minibatch_size",)), 64, _INT),
    Flag("num_minibatches_per_task", BecomesFields(("train.minibatches_per_task",)), 8, _INT),
    Flag("num_epochs", BecomesFields(("train.epochs",)), 1, _INT, commands=(TRAIN,)),
    Flag("max_step", BecomesFields(("train.max_steps",)), 0, _INT, commands=(TRAIN,)),
    Flag(
        "evaluation_steps",
        BecomesFields(("train.evaluation_steps",), "with validation data, EDL also evaluates at the end"),
        0,
        _INT,
        commands=(TRAIN,),
    ),
    Flag("log_loss_steps", BecomesFields(("log.loss_every_steps",)), 100, _INT, commands=(TRAIN,)),
    Flag(
        "output",
        BecomesFields(("export.path",), "a relative path on a cluster is below the first volume"),
        commands=(TRAIN,),
    ),
    Flag("output", NoEffect("an evaluation writes no model"), commands=(EVALUATE,)),
    Flag(
        "output",
        DirectsCommand("the folder for predictions on this machine; without it: predictions"),
        commands=(PREDICT,),
    ),
    # the model
    Flag("model_zoo", BecomesFields(("model.zoo",), "a relative folder is /model_zoo in the image")),
    Flag("model_def", BecomesFields(("model.definition",))),
    _function("feed"),
    _function("loss"),
    _function("optimizer"),
    _function("callbacks"),
    _function("eval_metrics_fn"),
    _function("custom_data_reader"),
    _function("prediction_outputs_processor", "PredictionOutputsProcessor", (PREDICT,)),
    # strategy
    Flag(
        "distribution_strategy",
        BecomesFields(("strategy.name",), "without an image, a job is Local unless the flag is given"),
        "ParameterServerStrategy",
        choices=_STRATEGIES,
        commands=(TRAIN,),
    ),
    Flag(
        "distribution_strategy",
        NoEffect("nothing is trained: workers read the trained model, whatever trained it"),
        "ParameterServerStrategy",
        choices=_STRATEGIES,
        commands=(EVALUATE, PREDICT),
    ),
    Flag("use_async", BecomesFields(("strategy.mode",)), False, _BOOL, commands=(TRAIN,)),
    Flag("grads_to_wait", BecomesFields(("strategy.grads_to_wait",)), 1, _INT, commands=(TRAIN,)),
    Flag("sync_version_tolerance", BecomesFields(("strategy.version_tolerance",)), 0, _INT, commands=(TRAIN,)),
    Flag("lr_staleness_modulation", BecomesFields(("strategy.staleness_aware",)), False, _BOOL, commands=(TRAIN,)),
    Flag("get_model_steps", BecomesFields(("strategy.get_model_steps",)), 1, _INT, commands=(TRAIN,)),
    Flag("get_model_steps", _NO_PULLS, 1, _INT, commands=(EVALUATE, PREDICT)),
    # roles and their pods
    Flag("num_workers", BecomesFields(("workers.max",)), 2, _INT),
    Flag("num_ps_pods", BecomesFields(("ps.count",), "EDL has at least one parameter server"), 0, _INT),
    *_resources("master", "cpu=0.1,memory=1024Mi"),
    *_resources("workers", "cpu=1,memory=4096Mi"),
    *_resources("ps", "cpu=1,memory=4096Mi"),
    Flag("master_pod_priority", BecomesFields(("master.priority",), "without it: high")),
    Flag("worker_pod_priority", BecomesFields(("workers.priority",), "without it: low")),
    Flag("ps_pod_priority", BecomesFields(("ps.priority",), "without it: high")),
    *_unused_role("chief", _NO_CHIEF),
    *_unused_role("evaluator", _NO_EVALUATORS),
    Flag("num_evaluators", NoEffect(_NO_EVALUATORS), 0, _INT),
    Flag("volume", BecomesFields(("volumes",))),
    Flag("envs", BecomesFields(("pod.env",))),
    Flag("populate_env_names", BecomesFields(("pod.env",), "secrets belong in a Secret, which pod.env can name")),
    Flag(
        "image_pull_policy",
        BecomesFields(("pod.image_pull_policy",)),
        "Always",
        choices=("Never", "IfNotPresent", "Always"),
    ),
    Flag(
        "restart_policy",
        NoEffect("EDL's master replaces lost pods, and Kubernetes replaces the master"),
        "Never",
        choices=("Never", "OnFailure", "Always"),
    ),
    Flag("cluster_spec", BecomesFields(_OVERRIDES, "its functions are called here, on the pods that EDL makes")),
    Flag("cluster_spec_json", BecomesFields(_OVERRIDES)),
    # faults
    Flag("relaunch_on_worker_failure", NoEffect(_PODS_ARE_REPLACED), 1, _INT, commands=(TRAIN,)),
    Flag("ps_relaunch_max_num", NoEffect(_PODS_ARE_REPLACED), 1, _INT, commands=(TRAIN,)),
    Flag(
        "ps_is_critical",
        NoEffect("a lost parameter server is replaced, and the job goes back to the last checkpoint"),
        True,
        _BOOL,
        commands=(TRAIN,),
    ),
    Flag("critical_worker_index", NoEffect("no worker of EDL is critical"), "default", commands=(TRAIN,)),
    Flag(
        "launch_worker_after_ps_running",
        NoEffect("workers of EDL wait for the parameter servers"),
        "default",
        commands=(TRAIN,),
    ),
    Flag(
        "relaunch_timeout_worker",
        NoEffect("always on: a worker without progress loses its lease to another one"),
        False,
        _BOOL,
        commands=(TRAIN,),
    ),
    Flag(
        "task_fault_tolerance",
        NoEffect("always on: the records of a lost worker are trained by others"),
        True,
        _BOOL,
        commands=(TRAIN,),
    ),
    Flag("enable_automate_memory", BecomesFields(("workers.oom_memory_factor",)), True, _BOOL, commands=(TRAIN,)),
    Flag(
        "aux_params",
        NoEffect(
            "disable_relaunch was for debugging: EDL always replaces lost pods; use --distribution_strategy=Local"
        ),
    ),
    # checkpoints
    Flag(
        "checkpoint_steps",
        BecomesFields(
            ("checkpoint.every_steps",), "without it: 1000, so that a lost parameter server costs little; 0: none"
        ),
        0,
        _INT,
        commands=(TRAIN,),
    ),
    Flag("checkpoint_steps", _TRAINS_NOTHING, 0, _INT, commands=(EVALUATE, PREDICT)),
    Flag(
        "keep_checkpoint_max",
        BecomesFields(("checkpoint.keep",), "0, which keeps all, is not possible: 3"),
        0,
        _INT,
        commands=(TRAIN,),
    ),
    Flag("keep_checkpoint_max", _TRAINS_NOTHING, 0, _INT, commands=(EVALUATE, PREDICT)),
    Flag("checkpoint_dir", BecomesFields(("storage.path",), "it also holds journal and logs")),
    Flag(
        "checkpoint_dir_for_init",
        BecomesFields(
            ("model.init_from",),
            "the weights of a run, a checkpoint or an export of EDL, a .keras file, or the newest ones of a job; to go "
            "on with the same job, use edl submit JOB.yaml --resume",
        ),
        commands=(TRAIN,),
    ),
    Flag(
        "checkpoint_dir_for_init",
        BecomesFields(
            ("model.weights",),
            "the directory of a run, a checkpoint or an export of EDL, a .keras file, or the name of a job or run",
        ),
        None,
        commands=(EVALUATE, PREDICT),
        required=(EVALUATE, PREDICT),
    ),
    # the client
    Flag("yaml", DirectsCommand("write EDL's job file here instead of running the job")),
    Flag(
        "force_use_kube_config_file",
        NoEffect("EDL uses KUBECONFIG or ~/.kube/config if there is one, else the pod's account"),
        False,
        _BOOL,
    ),
    Flag(
        "log_level",
        BecomesFields(("log.level",), "CRITICAL is error"),
        "INFO",
        Kind.UPPER_TEXT,
        ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
    ),
    Flag("log_file_path", NoEffect("the run's directory has the logs of all roles: edl logs JOB --stored")),
    Flag(
        "extra_pypi_index",
        NoEffect("a job installs nothing: packages come with the image; see elasticdl zoo init --extra_pypi_index"),
        PUBLIC_INDEX,
    ),
    # programs of other frameworks
    Flag(
        "job_command",
        BecomesFields(("command",), "a program instead of --model_def, which takes its records with edl.sharding"),
        commands=(TRAIN,),
    ),
    Flag(
        "need_elasticdl_job_service",
        RefusedFlag("it is for programs with a loop of their own", "give --job_command, where it is always so"),
        False,
        _BOOL,
        commands=(TRAIN,),
    ),
    Flag(
        "need_tf_config",
        RefusedFlag(
            "EDL sets no TF_CONFIG: workers come and go, and it would be wrong at once",
            "leave it out, and let the program take its records with edl.sharding",
        ),
        False,
        _BOOL,
        commands=(TRAIN,),
    ),
    Flag(
        "need_task_manager",
        RefusedFlag("a job of EDL has no other way to get its records than its master", "leave it out"),
        True,
        _BOOL,
        commands=(TRAIN,),
    ),
    Flag(
        "need_pod_manager",
        RefusedFlag("a job of EDL has no other way to get its pods than its master", "leave it out"),
        True,
        _BOOL,
        commands=(TRAIN,),
    ),
)

ZOO_FLAGS: tuple[Flag, ...] = (
    Flag(
        "base_image",
        DirectsCommand("the image to start from, which must contain EDL; images of Python and ElasticDL are replaced"),
        "python:3.6",
        commands=(ZOO_INIT,),
    ),
    Flag(
        "extra_pypi_index",
        DirectsCommand("a package index besides pip's own, for the zoo's requirements.txt"),
        PUBLIC_INDEX,
        commands=(ZOO_INIT,),
    ),
    Flag(
        "cluster_spec",
        NoEffect("a cluster spec is read where the job is submitted; the image does not need it"),
        commands=(ZOO_INIT,),
    ),
    Flag(
        "local_pkg_dir",
        DirectsCommand("a folder with wheels that the image installs"),
        commands=(ZOO_INIT,),
    ),
    Flag(
        "model_zoo", DirectsCommand("the folder of models that the image has at /model_zoo"), ".", commands=(ZOO_INIT,)
    ),
    Flag(
        "path",
        DirectsCommand("the folder with the Dockerfile and the models"),
        None,
        commands=(ZOO_BUILD,),
        required=(ZOO_BUILD,),
        is_positional=True,
    ),
    Flag("image", DirectsCommand("the name of the image"), None, commands=(ZOO_BUILD,), required=(ZOO_BUILD,)),
    Flag(
        "image",
        DirectsCommand("the name of the image"),
        None,
        commands=(ZOO_PUSH,),
        required=(ZOO_PUSH,),
        is_positional=True,
    ),
)

EXTRA_FLAGS: tuple[Flag, ...] = (
    Flag("model_params", BecomesFields(("model.params",))),
    Flag("custom_training_loop", RefusedFlag("the training loop is EDL's own", _WRITE_A_MODULE), False, _BOOL),
    Flag(
        "tensorboard_log_dir",
        NoEffect("EDL writes no summaries by itself: return a Keras TensorBoard callback from callbacks()"),
    ),
)
"""Flags of other versions than 1.0.0 that mean something here."""

FLAGS = (*JOB_FLAGS, *ZOO_FLAGS)


# --------------------------------------------------------------------------------------------------
# Spellings of older versions, which tutorials and scripts still have.


@dataclass(frozen=True, slots=True)
class Renamed:
    """The flag is taken as another one, and a line says so."""

    name: str


@dataclass(frozen=True, slots=True)
class RetiredFlag:
    """A flag that 1.0.0 no longer has; its value is read as text."""

    name: str
    effect: Renamed | NoEffect | RefusedFlag
    commands: tuple[str, ...] = JOB_COMMANDS
    divides_by: str = field(default="")
    """The flag whose value the number is divided by, rounded down to at least 1."""


_ROLES_ONLY = "it is a flag of ElasticDL's own processes; those of EDL get it from their master"
_BUILD_FIRST = RefusedFlag(
    "building an image and submitting a job are two commands",
    "elasticdl zoo build --image=NAME PATH, then elasticdl zoo push NAME, then --image_name=NAME",
)
_DOCKER = NoEffect("the Docker engine is found as docker finds it: DOCKER_HOST, DOCKER_CERT_PATH")
_IN_STEPS = NoEffect("EDL evaluates by steps, because seconds depend on the number of workers: --evaluation_steps")
_IN_MODULE = RefusedFlag(
    "EDL finds a model by its module", "--model_def=MODULE.FUNCTION, such as mnist.model.custom_model"
)

RETIRED_FLAGS: tuple[RetiredFlag, ...] = (
    RetiredFlag("dataset_fn", Renamed("feed")),
    RetiredFlag("input_fn", Renamed("feed")),
    RetiredFlag("records_per_task", Renamed("num_minibatches_per_task"), divides_by="minibatch_size"),
    RetiredFlag("training_data_dir", Renamed("training_data")),
    RetiredFlag("evaluation_data_dir", Renamed("validation_data")),
    RetiredFlag("prediction_data_dir", Renamed("prediction_data")),
    RetiredFlag("checkpoint_filename_for_init", Renamed("checkpoint_dir_for_init")),
    RetiredFlag("model_class", _IN_MODULE),
    RetiredFlag("model_file", _IN_MODULE),
    RetiredFlag("evaluation_start_delay_secs", _IN_STEPS),
    RetiredFlag("evaluation_throttle_secs", _IN_STEPS),
    RetiredFlag(
        "learning_rate_scheduler",
        RefusedFlag("no function of this name is called", "give the optimizer a Keras schedule as its learning rate"),
    ),
    RetiredFlag("image_base", _BUILD_FIRST),
    RetiredFlag("docker_image_prefix", _BUILD_FIRST),
    RetiredFlag("docker_image_repository", _BUILD_FIRST),
    RetiredFlag("docker_base_url", _DOCKER, COMMANDS),
    RetiredFlag("docker_tlscert", _DOCKER, COMMANDS),
    RetiredFlag("docker_tlskey", _DOCKER, COMMANDS),
    RetiredFlag("use_go_ps", NoEffect("EDL has one parameter server, with tables in native code")),
    RetiredFlag("embedding_service_endpoint", NoEffect("embedding tables are on the parameter servers")),
    RetiredFlag("codec_type", NoEffect("feed decodes records")),
    RetiredFlag("codec_file", NoEffect("feed decodes records")),
    RetiredFlag(
        "all", RefusedFlag("it is an option of elasticdl clean", "remove images with the Docker engine"), COMMANDS
    ),
    *(
        RetiredFlag(name, RefusedFlag(_ROLES_ONLY, "leave it out"))
        for name in (
            "collective_communicator_service_name",
            "job_type",
            "master_addr",
            "opt_args",
            "opt_type",
            "port",
            "ps_addrs",
            "ps_id",
            "worker_id",
        )
    ),
)


def flags_of(command: str) -> dict[str, Flag]:
    """The flags of a command by name, in the order of the table; with those of other versions."""
    return {flag.name: flag for flag in (*FLAGS, *EXTRA_FLAGS) if command in flag.commands}


def retired_flags_of(command: str) -> dict[str, RetiredFlag]:
    """The older spellings that a command takes."""
    return {flag.name: flag for flag in RETIRED_FLAGS if command in flag.commands}
