"""Makes a JobSpec of the flags of ``train``, ``evaluate`` and ``predict``.

The flags become a tree like that of a job file, in which each value is marked with the flag that it comes from. So the
rules of job files apply, and their messages name flags.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError
from edl.api.fields import JsonValue
from edl.api.job_spec import API_VERSION, JobSpec
from edl.cli.elasticdl.flags import (
    EVALUATE,
    PREDICT,
    TRAIN,
    BecomesFields,
    DirectsCommand,
    Flag,
    NoEffect,
    RefusedFlag,
    flags_of,
)
from edl.cli.elasticdl.job_command import find_shell_word, find_training_data, program_name, read_command
from edl.cli.elasticdl.parser import CommandLine, UsageError
from edl.cli.elasticdl.values import (
    STRATEGIES,
    find_broken_literals,
    find_repeated_variables,
    has_several_parameters,
    read_parameters,
    read_priority,
    read_resources,
    read_variables,
    read_volumes,
    select_variables,
)
from edl.jobfile.document_tree import DocumentNode, build_tree, closest_match
from edl.jobfile.keras_version import LEGACY_VARIABLE, uses_keras2
from edl.jobfile.loader import ExtraRules, read_job_tree
from edl.jobfile.zoo_lookup import (
    STAR_IMPORT,
    find_missing_module,
    find_model_function,
    find_undefined_model,
    find_unknown_params,
)
from edl.reporting.unit_formats import join_words, pluralize

DATASETS = {TRAIN: "training", EVALUATE: "validation", PREDICT: "prediction"}
"""The data set that a command needs."""
OOM_MEMORY_FACTOR = 1.5
"""``workers.oom_memory_factor`` that ``--enable_automate_memory`` stands for."""
NAME_PREFIX = "elasticdl"
IDENTITY_LABELS: Mapping[str, JsonValue] = {
    "job": "elasticdl-job-name",
    "role": "elasticdl-replica-type",
    "index": "elasticdl-replica-index",
    "status": "status",
}
"""Labels by which ElasticDL's tutorials and scripts find pods."""
_SYNC_FLAGS = {"grads_to_wait": "grads_to_wait", "sync_version_tolerance": "version_tolerance"}
_ASYNC_FLAGS = {"lr_staleness_modulation": "staleness_aware", "get_model_steps": "get_model_steps"}
_PROGRAM_DOES = (
    ("its functions are the program's", ("feed", "loss", "optimizer", "callbacks", "eval_metrics_fn")),
    ("the program has its own arguments, and reads its own data", ("model_params", "custom_data_reader")),
    ("the program evaluates itself", ("validation_data", "evaluation_steps")),
    (
        "the program combines gradients itself, if it has any",
        ("distribution_strategy", "use_async", *_SYNC_FLAGS, *_ASYNC_FLAGS),
    ),
    (
        "a job with a program has no parameter servers",
        ("num_ps_pods", "ps_resource_request", "ps_resource_limit", "ps_pod_priority"),
    ),
    ("the program writes its own checkpoints", ("checkpoint_steps", "keep_checkpoint_max")),
    ("the program reads its weights itself", ("checkpoint_dir_for_init",)),
    ("the program writes its own model", ("output",)),
    ("the program logs its own loss", ("log_loss_steps",)),
    ("it is always so with --job_command", ("need_elasticdl_job_service",)),
)
"""Flags without effect on a job with ``--job_command``, and why."""
_DATA_FIELDS = ("training_data", "validation_data", "prediction_data")
_VERSION_OF_MODEL = re.compile(r"(^|/)version-[0-9]+/?$")
_ODPS_VARIABLES = ("ODPS_", "MAXCOMPUTE_")
_READER_TYPES = {"recordio": "RecordIO", "csv": "CSV", "text": "Text"}
"""Formats of EDL that are readers of ElasticDL, in its spelling."""
_READER_PARAMETERS = ("label_col", "reader_type", "columns", "records_per_task", "label", "format")
_MISSPELT_RATIO = 0.8
"""Likeness from which a parameter is taken for a misspelt one: ``label_co`` and ``label_column`` for ``label_col``."""
_FILES_ONLY = (
    "MaxCompute (ODPS) tables cannot be read: export the table to CSV or RecordIO files, or write a custom_data_reader "
    "in the module, which gets a path such as odps://TABLE"
)


@dataclass(frozen=True, slots=True)
class TranslatedJob:
    """A job file that stands for a command line.

    Attributes:
        spec: the job.
        document: the content of the job file, without fields that have EDL's defaults anyway.
        notes: lines about flags that have no effect or another one than in ElasticDL.
        variables: environment variables for a run on this machine, where ``pod.env`` is ignored.
    """

    spec: JobSpec
    document: Mapping[str, JsonValue]
    notes: tuple[str, ...]
    variables: Mapping[str, str]

    @property
    def runs_on_cluster(self) -> bool:
        """Whether the job has an image; else it runs on this machine."""
        return self.spec.image is not None


def translate_job(line: CommandLine, folder: Path, extra_rules: ExtraRules = lambda _: ()) -> TranslatedJob:
    """The job file of a command line.

    Args:
        line: of ``train``, ``evaluate`` or ``predict``.
        folder: where the job file will be: relative paths of a run on this machine are made absolute if that is not
            the current folder.
        extra_rules: such as those of a cluster, for a job with an image.

    Raises:
        UsageError: flags are refused, contradict each other, or have values that cannot be read.
        SpecError: the job file would be invalid; the message names flags.
    """
    translator = _Translator(line, folder)
    translator.translate()
    if translator.problems:
        raise UsageError("\n".join(translator.problems))
    rules = extra_rules if translator.is_on_cluster else lambda _: ()

    def read(root: DocumentNode) -> JobSpec:
        return read_job_tree(root, required_datasets=(DATASETS[line.command],), extra_rules=rules)

    root = translator.tree()
    spec = read(root)
    if translator.apply_cluster_spec(spec):
        root = translator.tree()
        spec = read(root)
    document: Any = root.to_plain_value()
    notes = (*line.notes, *translator.notes, *translator.ignored_locally())
    return TranslatedJob(spec, document, notes, translator.variables)


class _Translator:
    def __init__(self, line: CommandLine, folder: Path) -> None:
        self._line, self._values, self._given = line, line.values, line.given
        self._flags = flags_of(line.command)
        self._is_elsewhere = folder.resolve() != Path.cwd().resolve()
        self._fields: dict[str, DocumentNode] = {}
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.variables: dict[str, str] = {}
        self.is_on_cluster = bool(line.values["image_name"])
        self._program = self._read_program()
        self._strategy = self._choose_strategy()

    # ---------------------------------------------------------------- the tree

    def tree(self) -> DocumentNode:
        """The job file as a tree, its sections in the order of job files."""
        root: dict[str, Any] = {"apiVersion": DocumentNode(API_VERSION, "apiVersion")}
        order = {field.name: index for index, field in enumerate(fields(JobSpec))}
        for path in sorted(self._fields, key=lambda each: order[each.partition(".")[0]]):
            *sections, last = path.split(".")
            members = root
            for name in sections:
                members = members.setdefault(name, DocumentNode({}, self._fields[path].source_location)).value
            members[last] = self._fields[path]
        return DocumentNode(root, f"elasticdl {self._line.command}")

    def _put(self, path: str, value: JsonValue, flag: str) -> None:
        self._fields[path] = build_tree(value, self._source(flag))

    def _source(self, flag: str) -> str:
        return self._given.get(flag) or f"--{flag}={self._values[flag]} (ElasticDL's default)"

    def _refuse(self, flag: str, message: str) -> None:
        self.problems.append(f"{self._source(flag)}: {message}")

    def _note(self, flag: str, message: str) -> None:
        self.notes.append(f"{self._source(flag)}: {message}")

    def _read(self, flag: str, read: Callable[[str], Any]) -> Any:
        """The value of a flag that is a small language; None if it is empty or cannot be read."""
        text = self._values.get(flag)
        if not text:
            return None
        try:
            return read(text)
        except ValueError as error:
            self._refuse(flag, str(error))
            return None

    # ---------------------------------------------------------------- the flags

    def translate(self) -> None:
        """Go through the sections of the job file."""
        self._report_effects()
        if self._program is None:
            self._translate_name_and_model()
        else:
            self._translate_name_and_program(self._program)
        self._translate_data()
        if self._program is not None:
            self._translate_epochs()
        elif self._line.command == TRAIN:
            self._translate_training()
            self._translate_strategy()
            self._translate_checkpoints()
            self._translate_export()
        else:
            self._translate_task()
        self._translate_roles()
        self._translate_logs()
        self._translate_storage()
        self._translate_pods()

    def _report_effects(self) -> None:
        """Flags without effect get a line, and refused ones a problem; a refused flag with its default gets a line."""
        for name, flag in self._flags.items():
            if name not in self._given:
                continue
            match flag.effect:
                case NoEffect(reason):
                    self._note(name, f"no effect: {reason}")
                case _ if self._program is not None and name in _reasons_of_programs():
                    self._note(name, f"no effect: {_reasons_of_programs()[name]}")
                case RefusedFlag(reason, _) if self._is_harmless(name):
                    self._note(name, f"no effect: {reason}")
                case RefusedFlag(reason, instead):
                    self._refuse(name, f"{reason}; {instead}")
                case BecomesFields() | DirectsCommand():
                    pass

    def _is_harmless(self, name: str) -> bool:
        value, flag = self._values[name], self._flags[name]
        if name in ("worker_image", "ps_image"):
            return value in ("", self._values["image_name"])
        return bool(value == flag.default or value == "")

    def _translate_name_and_model(self) -> None:
        values = self._values
        self._translate_name(values["model_def"].rpartition(".")[0].rpartition(".")[2], "the model's module")
        if values["model_def"]:
            self._put("model.definition", values["model_def"], "model_def")
            self._check_definition()
        else:
            self.problems.append(f"{self._line.command}: --model_def is missing")
        self._translate_zoo()
        if uses_keras2(None):  # ElasticDL's models are, and a pod does not have this machine's environment
            self._fields["model.keras"] = build_tree(2, f"{LEGACY_VARIABLE} in the environment")
            self.notes.append(f"{LEGACY_VARIABLE} in the environment: model.keras is 2")
        for flag, entry in self._flags.items():
            if isinstance(entry.effect, BecomesFields) and entry.effect.fields[0].startswith("model.functions."):
                self._translate_function(flag, entry)
        params = self._read("model_params", read_parameters)
        if params:
            self._put("model.params", params, "model_params")
            self._check_params(params)

    def _check_definition(self) -> None:
        """Whether a module that is on this machine defines the model; one that is not may be in the image."""
        flag, zoo = "model_def", Path(self._values["model_zoo"] or ".")
        error = find_undefined_model(zoo, self._values[flag])
        if error is not None:
            self._refuse(flag, f"{error.where}: {error.message}; {error.hint}")
        elif self.is_on_cluster and "model_zoo" in self._given and zoo.is_dir():
            error = find_missing_module(zoo, self._values[flag])
            if error is not None:
                self._note(flag, f"{error.where}: {error.message}; {error.hint}; or the image has it")

    def _check_params(self, params: Mapping[str, JsonValue]) -> None:
        """Parameters that the model's function does not accept, if its module is on this machine; broken literals."""
        flag = "model_params"
        self._note_broken_literals(flag)
        zoo = Path(self._values["model_zoo"] or ".")
        try:
            errors = list(find_unknown_params(zoo, self._values["model_def"], params))
        except BadInputError:  # no such module here: a run says it, and an image may have it
            return
        for error in errors:
            self._refuse(flag, f"{error.where}: {error.message}; {error.hint}")

    def _note_broken_literals(self, flag: str) -> None:
        for name, value in find_broken_literals(self._values[flag]).items():
            several = "; several parameters are separated by ;" if has_several_parameters(value) else ""
            self._note(flag, f"{name} is no literal of Python and is taken as text: {value}{several}")

    def _translate_name(self, default: str, owner: str) -> None:
        """The job's name and image."""
        values = self._values
        if values["job_name"]:
            self._put("name", values["job_name"], "job_name")
        elif self.is_on_cluster:
            self.problems.append(f"{self._line.command}: --job_name is missing")
        else:
            name = _job_name(default)
            self._put("name", name, "job_name")
            self.notes.append(f"--job_name is missing: the job is called {name}, like {owner}")
        if self.is_on_cluster:
            self._put("image", values["image_name"], "image_name")

    def _translate_zoo(self) -> None:
        zoo = self._values["model_zoo"] or ("/model_zoo" if self.is_on_cluster else ".")
        self._put("model.zoo", zoo if self.is_on_cluster else self._local_path(zoo), "model_zoo")

    def _read_program(self) -> tuple[str, ...] | None:
        """The words of ``--job_command``; None without one. An unreadable one is a problem, and has no words."""
        text, flag = self._values.get("job_command"), "job_command"
        if not text:
            return None
        try:
            return read_command(text)
        except ValueError as error:
            self._refuse(flag, str(error))
            return ()

    def _translate_name_and_program(self, command: tuple[str, ...]) -> None:
        flag = "job_command"
        if self._values["model_def"]:
            self._refuse("model_def", "a job runs a model, or a program (--job_command); leave one of them out")
        if not command:
            return
        self._translate_name(program_name(command), "its program")
        self._translate_zoo()
        self._put("command", list(command), flag)
        folder = self._fields["model.zoo"].value
        self._note(flag, f"workers run it in the folder {folder}; it takes its records with edl.sharding, which "
                   "replaces elasticai_api")  # fmt: skip
        if word := find_shell_word(command):
            self._note(flag, f"no shell runs it, so the program gets {word} as it is; write sh -c '...' to replace it")
        if not self.is_on_cluster:
            count = pluralize(self._values["num_workers"], "worker")
            self.notes.append(f"--image_name is missing: {count} run as processes on this machine")
        self._put("workers.max", self._values["num_workers"], "num_workers")

    def _translate_function(self, flag: str, entry: Flag) -> None:
        """Another name of a function of the model's module; the contract's own name needs no field."""
        assert isinstance(entry.effect, BecomesFields)
        name = self._values[flag]
        if name in (entry.default, ""):
            return
        self._put(entry.effect.fields[0], name, flag)
        defined = self._defined_names({})
        if defined is not None and "." not in name and name not in defined:
            near = closest_match(name, defined)
            hint = f"did you mean {near}?" if near else f"it defines {', '.join(defined)}"
            self._refuse(flag, f"the model's module does not define {name}; {hint}")

    def _translate_data(self) -> None:
        for flag in _DATA_FIELDS:
            path = self._values.get(flag)
            if not path and flag.removesuffix("_data") == DATASETS[self._line.command] and not self.problems:
                self.problems.append(f"{self._line.command}: --{flag} is missing{self._records_hint()}")
            if path and not (self._program is not None and flag == "validation_data"):
                self._put(f"data.{flag.removesuffix('_data')}", self._data_path(flag, path), flag)
        reader = self._read("data_reader_params", read_parameters)
        if reader:
            self._translate_reader(reader)
        self._put("train.minibatch_size", self._values["minibatch_size"], "minibatch_size")
        self._put("train.minibatches_per_task", self._values["num_minibatches_per_task"], "num_minibatches_per_task")

    def _records_hint(self) -> str:
        """What the records of a program are: ElasticDL's programs tell their master how many they have."""
        if self._program is None:
            return ""
        files = find_training_data(self._values["job_command"]) or "FILES"
        return f"; name the files whose records the program takes with edl.sharding: --training_data={files}"

    def _data_path(self, flag: str, path: str) -> str:
        if self.is_on_cluster:
            if "/" not in path:
                self._refuse(flag, f"is no path. Name files of a volume, such as /data/train. {_FILES_ONLY}")
            return path
        return self._local_path(path)

    def _translate_reader(self, reader: dict[str, JsonValue]) -> None:
        flag = "data_reader_params"
        self._note_broken_literals(flag)
        kind = str(reader.get("reader_type", "")).lower()
        if kind == "odps":
            self._refuse(flag, f"reader_type: {_FILES_ONLY}")
            return
        names = None if self._program is not None else self._module_names()
        if names is not None and "custom_data_reader" in names:  # its own arguments, of any name
            self._put("data.reader", reader, flag)
            return
        for name in reader:
            close = closest_match(name, _READER_PARAMETERS, cutoff=_MISSPELT_RATIO)
            if close not in (None, name):
                report = self._note if names is None else self._refuse  # a module of the image may have a reader
                report(flag, f"found {name}; did you mean {close}?")
        doubled = [pair for pair in (("label", "label_col"), ("format", "reader_type")) if set(pair) <= set(reader)]
        for ours, theirs in doubled:
            self._refuse(flag, f"has both {theirs} and {ours}, which mean the same; give one of them")
        if doubled:
            return
        if "label_col" in reader:
            reader["label"] = reader.pop("label_col")
        if "reader_type" in reader:
            if kind not in _READER_TYPES:
                accepted = ", ".join(_READER_TYPES.values())
                close = closest_match(kind, _READER_TYPES)
                known = f"did you mean {_READER_TYPES[close]}?" if close else f"known are {accepted}"
                self._refuse(flag, f"found reader_type {reader['reader_type']}; {known}")
                return
            del reader["reader_type"]
            reader["format"] = kind
        if reader:
            self._put("data.reader", reader, flag)

    def _module_names(self) -> tuple[str, ...] | None:
        """What the model's module defines, by the names of the contract, if it is on this machine too."""
        functions = {
            path.rpartition(".")[2]: str(node.value)
            for path, node in self._fields.items()
            if path.startswith("model.functions.")
        }
        return self._defined_names(functions)

    def _defined_names(self, functions: Mapping[str, str]) -> tuple[str, ...] | None:
        zoo = Path(self._values["model_zoo"] or ".")
        try:
            names = find_model_function(zoo, self._values["model_def"], functions).names
        except BadInputError:
            return None
        return None if STAR_IMPORT in names else tuple(names)

    def _translate_training(self) -> None:
        values = self._values
        self._translate_epochs()
        if values["evaluation_steps"]:
            if values["validation_data"]:
                self._put("train.evaluation_steps", values["evaluation_steps"], "evaluation_steps")
            else:
                self._note("evaluation_steps", "no effect without --validation_data")
        elif values["validation_data"]:
            self.notes.append("--evaluation_steps is 0: the job evaluates once, at the end")
        self._translate_weights("model.init_from")

    def _translate_epochs(self) -> None:
        values = self._values
        self._put("train.epochs", values["num_epochs"], "num_epochs")
        if values["max_step"]:
            self._put("train.max_steps", values["max_step"], "max_step")
        elif "max_step" in self._given:
            self._note("max_step", "training has no limit of steps")

    def _translate_task(self) -> None:
        """A job that evaluates or predicts with a trained model."""
        self._fields["task"] = build_tree(self._line.command, f"elasticdl {self._line.command}")
        self._translate_weights("model.weights")
        if self._line.command == PREDICT and self.is_on_cluster and "output" in self._given:
            self._note("output", "no effect on a cluster: predictions are in predictions/ of the run's directory")

    def _translate_weights(self, field: str) -> None:
        flag = "checkpoint_dir_for_init"
        model = self._values[flag]
        is_version = _VERSION_OF_MODEL.search(model) is not None
        if is_version and self.is_on_cluster:
            model = self._written_path(flag, model, "checkpoints are looked for in") or model
        is_here = not self.is_on_cluster and (os.path.exists(model) or is_version)
        is_path = is_here or (not self.is_on_cluster and (model.startswith(("/", ".")) or model.endswith(".keras")))
        if _is_elasticdl_checkpoint(model) if is_here else is_version and not self._is_on_volume(model):
            what = "looks like" if is_here else "is on no volume (--volume), and in an image it can only be"
            self._refuse(
                flag,
                f"{what} a checkpoint of ElasticDL, which EDL cannot read; name a run of EDL or its job, such as "
                "mnist, version-N in the --checkpoint_dir of a job of EDL, or a .keras file that --output exported",
            )
        elif is_path:
            self._put(field, os.path.abspath(model), flag)
        elif model:
            self._put(field, model, flag)
        elif flag in self._given:
            what = "begins with new weights" if field == "model.init_from" else "takes its own newest trained run"
            self._note(flag, f"is empty: the job {what}")

    def _choose_strategy(self) -> str | None:
        if self._line.command != TRAIN:
            return "ParameterServer"
        if self._program is not None:
            return None
        flag = "distribution_strategy"
        name = self._values[flag]
        if not self.is_on_cluster and flag not in self._given:
            return "Local"
        if name == "CustomStrategy":
            self._refuse(flag, "is not in this version; use ParameterServerStrategy or AllreduceStrategy")
            return None
        if self.is_on_cluster and STRATEGIES.get(name) == "Local":
            self._refuse(flag, "is one process on this machine; leave --image_name out, or use ParameterServerStrategy")
            return None
        return STRATEGIES.get(name)

    def _translate_strategy(self) -> None:
        if self._strategy is None:
            return
        self._put("strategy.name", self._strategy, "distribution_strategy")
        if not self.is_on_cluster and "distribution_strategy" not in self._given:
            self.notes.append(
                "--image_name is missing: the job is one process on this machine (strategy Local); with "
                "--distribution_strategy its roles are processes"
            )
        if self._strategy != "ParameterServer":
            for flag in (each for each in ("use_async", *_SYNC_FLAGS, *_ASYNC_FLAGS) if each in self._given):
                self._note(flag, f"no effect with strategy {self._strategy}, which has no parameter servers")
            return
        is_async = self._values["use_async"]
        self._put("strategy.mode", "async" if is_async else "sync", "use_async")
        used, unused = (_ASYNC_FLAGS, _SYNC_FLAGS) if is_async else (_SYNC_FLAGS, _ASYNC_FLAGS)
        for flag, name in used.items():
            if flag in self._given:
                self._put(f"strategy.{name}", self._values[flag], flag)
        for flag in (each for each in unused if each in self._given):
            self._note(flag, f"no effect {'with' if is_async else 'without'} --use_async")

    def _translate_checkpoints(self) -> None:
        steps, keep = self._values["checkpoint_steps"], self._values["keep_checkpoint_max"]
        if "checkpoint_steps" in self._given and steps == 0:
            self._put("checkpoint", None, "checkpoint_steps")
            if "keep_checkpoint_max" in self._given:
                self._note("keep_checkpoint_max", "no effect with --checkpoint_steps=0, which takes no checkpoints")
            return
        if "checkpoint_steps" in self._given:
            self._put("checkpoint.every_steps", steps, "checkpoint_steps")
        if keep:
            self._put("checkpoint.keep", keep, "keep_checkpoint_max")
        elif "keep_checkpoint_max" in self._given:
            self._note("keep_checkpoint_max", "EDL cannot keep all checkpoints, and keeps the newest 3; give a number")

    def _translate_export(self) -> None:
        path = self._values["output"]
        if not path:
            self._put("export", None, "output")
            return
        place = self._written_path("output", path, "the model is written to")
        if place is None:
            self._put("export", None, "output")
        else:
            self._put("export.path", place, "output")

    def _translate_storage(self) -> None:
        path = self._values["checkpoint_dir"]
        place = self._written_path("checkpoint_dir", path, "checkpoints, journal and logs are in") if path else None
        if place is not None:
            self._put("storage.path", place, "checkpoint_dir")

    def _written_path(self, flag: str, path: str, what: str) -> str | None:
        """A path that pods can write to: a relative one is below the first volume; None if there is no volume."""
        if not self.is_on_cluster:
            return self._local_path(path)
        if path.startswith("/"):
            return path
        mounts = [volume.get("mount") for volume in self._volumes()]
        if not mounts:
            self._note(flag, "no effect: a relative path is lost with its pod; give --volume")
            return None
        place = os.path.normpath(os.path.join(str(mounts[0]), path))
        self._note(flag, f"is relative: {what} {place}, on the first volume")
        return place

    def _is_on_volume(self, path: str) -> bool:
        mounts = [PurePosixPath(str(volume.get("mount"))) for volume in self._volumes()]
        return any(PurePosixPath(path).is_relative_to(mount) for mount in mounts)

    def _volumes(self) -> list[dict[str, JsonValue]]:
        try:
            return read_volumes(self._values["volume"])
        except ValueError:
            return []  # reported by the flag's own translation

    def _translate_roles(self) -> None:
        values = self._values
        if self._program is None and self._is_used("num_workers"):
            self._put("workers.max", values["num_workers"], "num_workers")
            if self._strategy == "Local" and "num_workers" in self._given:
                self._note("num_workers", "no effect: strategy Local is one process")
        roles = {"master": "master", "worker": "workers"}
        if self._strategy == "ParameterServer" and self._line.command == TRAIN:
            roles["ps"] = "ps"
            self._put("ps.count", values["num_ps_pods"] or 1, "num_ps_pods")
            if not values["num_ps_pods"]:
                self.notes.append("--num_ps_pods is 0: EDL has at least one parameter server with this strategy")
        elif self._program is None:
            reason = "nothing is trained" if self._line.command != TRAIN else f"strategy {self._strategy} has none"
            ps_flags = ["num_ps_pods", "ps_resource_request", "ps_resource_limit", "ps_pod_priority"]
            for flag in (each for each in ps_flags if each in self._given):
                self._note(flag, f"no effect: no parameter servers, because {reason}")
        for flag_prefix, section in roles.items():
            self._translate_resources(flag_prefix, section)
            priority = self._read(f"{flag_prefix}_pod_priority", read_priority)
            if priority:
                self._put(f"{section}.priority", priority, f"{flag_prefix}_pod_priority")
        if self._line.command == TRAIN and (self.is_on_cluster or "enable_automate_memory" in self._given):
            factor = OOM_MEMORY_FACTOR if values["enable_automate_memory"] else 1
            self._put("workers.oom_memory_factor", factor, "enable_automate_memory")

    def _translate_resources(self, flag_prefix: str, section: str) -> None:
        request, limit = f"{flag_prefix}_resource_request", f"{flag_prefix}_resource_limit"
        resources: dict[str, JsonValue] = {}
        if self._is_used(request):
            resources = self._read(request, read_resources) or {}
            for name, value in resources.items():
                self._put(f"{section}.resources.{name}", value, request)
            if not self._values[request]:
                self._note(request, f"is empty: {section}.resources has EDL's defaults")
        limits = self._read(limit, read_resources) or {}
        for name, value in limits.items():
            if name in ("cpu", "memory"):
                self._put(f"{section}.resources.limits.{name}", value, limit)
                continue
            # of a node's disk and of devices, EDL's fields are the limits
            requested = resources.get(name, value)
            if name == "gpu" and requested != value:  # Kubernetes does not share devices
                self._refuse(limit, f"--{request} has gpu={requested}; requests and limits of GPUs must be the same")
            elif requested != value:
                self._note(request, f"disk is {value}, the limit: EDL has one amount for both")
            self._put(f"{section}.resources.{name}", value, limit)

    def _translate_logs(self) -> None:
        level = self._values["log_level"].lower()
        if level == "critical":
            self._note("log_level", "taken as ERROR, the highest level of EDL")
            level = "error"
        self._put("log.level", level, "log_level")
        steps = self._values.get("log_loss_steps")
        if self._program is not None:
            return
        if steps:
            self._put("log.loss_every_steps", steps, "log_loss_steps")
        elif "log_loss_steps" in self._given:
            self._note("log_loss_steps", "workers do not log the loss; the master does")

    def _translate_pods(self) -> None:
        if self.is_on_cluster:
            for path, value in (
                ("pod.name_prefix", NAME_PREFIX),
                ("pod.identity_labels", dict(IDENTITY_LABELS)),
                ("pod.labels", {"app": NAME_PREFIX}),
            ):
                self._fields[path] = build_tree(value, "ElasticDL's names and labels of pods")
        volumes = self._read("volume", read_volumes)
        if volumes:
            self._put("volumes", volumes, "volume")
            if self.is_on_cluster:
                self._fields["master.log_pod"] = build_tree(True, "kubectl logs elasticdl-JOB-master")
        self._translate_variables()
        if self._is_used("image_pull_policy"):
            self._put("pod.image_pull_policy", self._values["image_pull_policy"], "image_pull_policy")

    def _translate_variables(self) -> None:
        copied = self._read("populate_env_names", select_variables)
        if copied is not None:
            names = join_words(list(copied)) if copied else "no variable"
            self._note("populate_env_names", f"copies {names} of this machine into pod.env")
        typed = self._read("envs", read_variables) or {}
        for name in find_repeated_variables(self._values["envs"]):
            self._note("envs", f"names {name} twice; the last value counts")
        self.variables = {**self._keras2_variable(), **(copied or {}), **typed}
        if self.variables:
            flag = "envs" if typed else "populate_env_names" if copied else "job_command"
            self._put("pod.env", dict(self.variables), flag)
        odps = sorted(name for name in typed if name.startswith(_ODPS_VARIABLES))
        if odps:
            self._note("envs", f"{join_words(odps)}: EDL itself reads no tables; only code of the module sees them")

    def _keras2_variable(self) -> dict[str, str]:
        """What ``model.keras`` does for a model, for a program: a pod does not have this machine's environment."""
        if self._program is None or not uses_keras2(None):
            return {}
        self.notes.append(f"{LEGACY_VARIABLE} in the environment: pod.env has it, too")
        return {LEGACY_VARIABLE: "1"}

    def apply_cluster_spec(self, spec: JobSpec) -> bool:
        """Add what a cluster spec does to the pods of the job; whether there is one."""
        flags = [flag for flag in ("cluster_spec", "cluster_spec_json") if self._values[flag]]
        if not flags or not self.is_on_cluster:
            return False
        from edl.cli.elasticdl import cluster_spec  # renders pods

        if len(flags) > 1:
            self.notes.append("--cluster_spec_json: no effect on pods with --cluster_spec, as in ElasticDL")
        flag = flags[0]
        cluster = (
            cluster_spec.load_cluster_spec(Path(self._values[flag]), f"--{flag}")
            if flag == "cluster_spec"
            else cluster_spec.read_cluster_json(self._values[flag], f"--{flag}")
        )
        has_servers = self._strategy == "ParameterServer" and self._line.command == TRAIN
        roles = (Role.MASTER, *((Role.PS,) if has_servers else ()), Role.WORKER)
        overrides = cluster_spec.find_overrides(spec, cluster, roles)
        if not overrides:
            self._note(flag, "changes nothing of EDL's pods")
        for path, patch in overrides.items():
            self._put(path, patch, flag)
        return True

    # ---------------------------------------------------------------- runs on this machine

    def _is_used(self, flag: str) -> bool:
        """Whether a flag counts for this job: its default only on a cluster."""
        return self.is_on_cluster or flag in self._given

    def _local_path(self, path: str) -> str:
        """A path of this machine, as the job file may have it."""
        return os.path.abspath(path) if self._is_elsewhere and "://" not in path else path

    def ignored_locally(self) -> Iterable[str]:
        """A line about the flags that a run on this machine does not use."""
        if self.is_on_cluster:
            return
        sections = ("volumes", "pod.image", "master.", "ps.resources", "ps.priority", "ps.overrides")
        workers = ("workers.resources", "workers.priority", "workers.overrides", "workers.oom_memory_factor")
        ignored = [
            self._given[name]
            for name, flag in self._flags.items()
            if name in self._given
            and isinstance(flag.effect, BecomesFields)
            and all(field.startswith((*sections, *workers)) for field in flag.effect.fields)
        ]
        if "namespace" in self._given:
            ignored.append(self._given["namespace"])
        if ignored:
            yield f"{', '.join(ignored)}: no effect on this machine; they are for pods (--image_name)"


def _is_elasticdl_checkpoint(folder: str) -> bool:
    return any(Path(folder).glob("variables-*-of-*.ckpt"))


def _reasons_of_programs() -> dict[str, str]:
    return {flag: reason for reason, flags in _PROGRAM_DOES for flag in flags}


def _job_name(text: str) -> str:
    """A valid name of a job, after a module or a program."""
    name = re.sub(r"[^a-z0-9]+", "-", (text or "job").lower()).strip("-")[:40].rstrip("-")
    return name if name[:1].isalpha() else f"job-{name}"[:40].rstrip("-")
