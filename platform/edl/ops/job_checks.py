"""Checks a job's model module and its data before a process starts, without running either."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from edl.api.errors import BadInputError, EdlError
from edl.api.exit_codes import DONE_EXIT, FAILED_EXIT
from edl.api.job_spec import JobSpec
from edl.core.shuffle import training_size_error
from edl.jobfile.command_rules import find_program, program_path
from edl.jobfile.database_address import path_of_data
from edl.jobfile.document_tree import closest_match
from edl.jobfile.elasticdl_imports import find_missing_imports
from edl.jobfile.keras_version import check_backend
from edl.jobfile.loader import dump_job_spec
from edl.jobfile.schema_rules import find_schema
from edl.jobfile.zoo_lookup import (
    METRICS_FUNCTION,
    REPLACED_BY_COMPILE,
    STAR_IMPORT,
    calls_compile,
    check_misnamed,
    find_model_function,
    find_unknown_params,
    may_return_compiled_model,
)
from edl.ops.local_run_plan import RecordCounts

REQUIRED_FUNCTIONS = ("loss", "optimizer", "feed")
"""Functions that every model module defines, in addition to the model."""
_READER_FUNCTION = "custom_data_reader"
_TRAINING_PACKAGES = ("tensorflow", "keras", "numpy", "grpc", "safetensors")
"""Packages of the extra ``train`` that every job with a model needs."""
_LEASE_PACKAGES = ("numpy", "grpc", "safetensors")
"""Packages of the extra ``program``, for a job with a command: it may use any framework."""


def check_job(spec: JobSpec, *, resumed: bool = False) -> RecordCounts:
    """Check a job's model module and data, and count its records.

    Args:
        spec: the job, with the paths of this machine. Its task says which data sets are needed.
        resumed: whether a run is resumed. Its minibatches were decided when it began.

    Raises:
        BadInputError: a module, function, file, record or native code is missing, an epoch has
            fewer records than a minibatch, or this is the light client.
    """
    if spec.master.prepare and not resumed:
        require_packages()
        return _UNKNOWN_COUNTS  # the command may write all that is checked here; the master checks it then
    if spec.command:
        require_packages(_LEASE_PACKAGES, "program")
        find_program(spec, program_path(os.environ))
        return _count_all_records(spec, resumed=resumed)
    require_packages()
    check_backend(os.environ)
    for problem in _missing_native_code(spec):
        raise problem
    defined_names = _defined_names(spec, evaluates=bool(spec.data.validation) and spec.task != "predict")
    if _READER_FUNCTION in defined_names:
        return _UNKNOWN_COUNTS
    try:
        return _count_all_records(spec, resumed=resumed)
    except BadInputError:
        if STAR_IMPORT in defined_names:  # may import a reader; running the module will tell
            return _UNKNOWN_COUNTS
        raise


def require_packages(names: Sequence[str] = _TRAINING_PACKAGES, extra: str = "train") -> None:
    """Refuse to start processes from the light client, where each of them would die of an
    ImportError.

    Raises:
        BadInputError: a package of the extra is not installed.
    """
    # Finding a package does not import it: TensorFlow alone would take seconds.
    absent = [name for name in names if find_spec(name) is None]
    if absent:
        raise BadInputError(
            f"running a job here needs the packages of edl-platform[{extra}]; not installed: {', '.join(absent)}",
            hint=f"install the wheel with its extra [{extra}]; `edl submit` does not need these packages",
        )


def _count_all_records(spec: JobSpec, *, resumed: bool) -> RecordCounts:
    data = spec.data
    if spec.task == "predict":
        return RecordCounts(prediction=_count_records("prediction", spec))
    if spec.task == "evaluate":
        return RecordCounts(validation=_count_records("validation", spec))
    training = _count_records("training", spec)
    train, records, global_batch = spec.train, sum(training), spec.strategy.global_batch
    if not resumed and (problem := training_size_error(train.minibatch_size, records, train.epochs, global_batch)):
        raise BadInputError(problem)
    return RecordCounts(
        training=training,
        validation=_count_records("validation", spec) if data.validation else (),
    )


def missing_inputs(spec: JobSpec) -> list[tuple[str, BadInputError]]:
    """The parts of a job's module and data that are missing on this machine, by field of the job
    file.

    Records are not counted.

    Args:
        spec: the job, with the paths of this machine. Paths below a volume that is not mounted here
            are not checked.
    """
    problems = [("ps.store", problem) for problem in _missing_native_code(spec)]
    defined_names: Sequence[str] = ()
    if spec.command:
        if _is_local_path(spec.model.zoo, spec):
            try:
                find_program(spec, program_path(os.environ))
            except BadInputError as error:
                problems.append(("command", error))
    elif _is_local_path(spec.model.zoo, spec):
        try:
            defined_names = _defined_names(spec, evaluates=bool(spec.data.validation))
        except BadInputError as error:
            problems.append(("model.definition", error))
        else:
            zoo, definition = Path(spec.model.zoo), spec.model.definition
            unknown = find_unknown_params(zoo, definition, spec.model.params)
            problems += [("model.params", problem) for problem in unknown]
            problems += [("model.definition", problem) for problem in find_missing_imports(zoo, definition)]
    if spec.export and spec.export.path and _is_local_path(spec.export.path, spec) and Path(spec.export.path).is_file():
        where, hint = f"export.path: {spec.export.path}", "give a directory"
        problems.append(("export.path", BadInputError("is a file", where=where, hint=hint)))
    if _READER_FUNCTION in defined_names:
        return problems
    data = spec.data
    for name, paths in (("training", data.training), ("validation", data.validation), ("prediction", data.prediction)):
        for path in paths:
            file = path_of_data(path)
            problems += _missing_data(f"data.{name}", file) if file and _is_local_path(file, spec) else ()
    return problems


def check_reader_options(spec: JobSpec) -> None:
    """Refuse a ``data.reader`` that a run would refuse, if names or files show the data's format.

    Args:
        spec: the job, with the paths of this machine.

    Raises:
        BadInputError: the format has no such option, or the option does not accept the value.
    """
    from edl.data import reader_factory

    defined_names: Sequence[str] = ()
    with suppress(BadInputError):  # a missing module may have a reader with other options
        defined_names = (
            ()
            if spec.command
            else find_model_function(Path(spec.model.zoo), spec.model.definition, spec.model.functions).names
        )
    if not spec.command and (not defined_names or _READER_FUNCTION in defined_names or STAR_IMPORT in defined_names):
        return
    for paths in (spec.data.training, spec.data.validation, spec.data.prediction):
        if paths:
            reader_factory.check_reader_options(paths, spec.data.reader)


_UNKNOWN_COUNTS = RecordCounts(training=None, validation=None, prediction=None)


def _missing_native_code(spec: JobSpec) -> Iterator[BadInputError]:
    """An error if the job requires native code and this installation has none."""
    if (
        spec.ps.store == "native"
        and spec.strategy.name == "ParameterServer"
        and not spec.command
        and find_spec("edl.numerics._native") is None
    ):
        yield BadInputError(
            "found 'native', but EDL was installed here without its native extension",
            where="ps.store",
            hint="remove the field to use NumPy, or install a C++20 compiler and then EDL again",
        )


def _is_local_path(path: str, spec: JobSpec) -> bool:
    unmounted = [Path(v.mount) for v in spec.volumes if v.local is None and not Path(v.mount).exists()]
    return "://" not in path and not any(Path(path).is_relative_to(mount) for mount in unmounted)


def _missing_data(field: str, path: str) -> list[tuple[str, BadInputError]]:
    from edl.data.data_files import find_data

    try:
        find_data(path)
    except EdlError as error:
        return [(field, BadInputError(f"{error.where}: {error.message}", where=field, hint=error.hint))]
    return []


_OLD_FEED_NAME = "dataset_fn"
"""What ElasticDL called ``feed`` until 0.2."""


def _defined_names(spec: JobSpec, *, evaluates: bool) -> Sequence[str]:
    module = find_model_function(Path(spec.model.zoo), spec.model.definition, spec.model.functions)
    names = module.names
    needed: Sequence[str] = [*REQUIRED_FUNCTIONS, METRICS_FUNCTION] if evaluates else REQUIRED_FUNCTIONS
    if find_schema(spec.data):  # edl.keras.default_feed stands in for it
        if spec.data.schema and "feed" in names:
            raise BadInputError(
                "has no effect: the model module defines feed", where="data.schema", hint="remove one of the two"
            )
        needed = [name for name in needed if name != "feed"]
    if may_return_compiled_model(module):
        needed = [name for name in needed if name not in REPLACED_BY_COMPILE]
    missing = [name for name in needed if name not in names]
    if missing and STAR_IMPORT not in names:
        public = [name for name in names if not name.startswith("_")]
        close = closest_match(missing[0], [name for name in public if name not in REQUIRED_FUNCTIONS], cutoff=0.7)
        is_old_name = "feed" in missing and _OLD_FEED_NAME in names
        replaced = any(name in REPLACED_BY_COMPILE for name in missing) and calls_compile(module)
        beside_compile = [name for name in REPLACED_BY_COMPILE if name in names] if replaced else []
        raise BadInputError(
            f"the model module does not define {', '.join(f'{name!r}' for name in missing)}",
            where=str(module.path),
            hint=(f"did you mean {close}? " if close and not is_old_name else "")
            + (
                f"{_OLD_FEED_NAME} is the old name of feed: set model.functions: {{feed: {_OLD_FEED_NAME}}}, or rename "
                "it. "
                if is_old_name
                else ""
            )
            + f"it defines {', '.join(public) or 'nothing'}. "
            + (
                f"compile() replaces them only in a module without {' and '.join(beside_compile)}"
                if beside_compile
                else "loss, optimizer and eval_metrics_fn are optional if the module's own file calls compile()"
            )
            + (
                "; tables and folders of images need no feed with data.schema (see `edl data schema`), nor do tables "
                "with data.reader: {label: COLUMN}"
                if "feed" in missing
                else ""
            ),
        )
    check_misnamed(module)
    return names


def _count_records(data_set: str, spec: JobSpec) -> tuple[int, ...]:
    from edl.data.job_data import data_set_paths, open_job_data

    field, paths = f"data.{data_set}", data_set_paths(spec.data, data_set)
    if not paths:
        raise BadInputError("is missing", where=field, hint="give a file or a directory of records")
    try:
        counts = tuple(source.records for source in open_job_data(spec.data, data_set).sources())
    except BadInputError as error:
        raise BadInputError(f"{error.where}: {error.message}", where=field, hint=error.hint) from error
    if not sum(counts):
        raise BadInputError("there are no records", where=f"{field}: {', '.join(paths)}")
    return counts


# --------------------------------------------------------------------------------------------------
# Checks a job's model in another process: the command line imports neither TensorFlow nor user
# code.


_CHECK_PROGRAM = ("-P", "-m", "edl.worker.model_check")
_LAST_LINES = 12
"""Lines of output that are shown of a process that ended without a result."""


@dataclass(frozen=True, slots=True)
class ModelCheckResult:
    """The result of a model check.

    Attributes:
        report_lines: description of the model and its first minibatch.
        failure: why a run would fail before its first update; empty if it would not.
        detail: the traceback, or the last lines of output; may be empty.
        exit_code: exit code that the run would have.
    """

    report_lines: tuple[str, ...]
    failure: str = ""
    detail: str = ""
    exit_code: int = DONE_EXIT


def check_model(spec: JobSpec) -> ModelCheckResult:
    """Import the model's module, make the model and feed it the first minibatch, as a run does.

    Args:
        spec: the job, with the paths of this machine.
    """
    with tempfile.TemporaryDirectory(prefix="edl-check-") as folder:
        spec_file, result_file = Path(folder, "spec.json"), Path(folder, "result.json")
        spec_file.write_text(json.dumps(dump_job_spec(spec)), encoding="utf-8")
        process = subprocess.run(
            [sys.executable, *_CHECK_PROGRAM, str(spec_file), str(result_file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"TF_CPP_MIN_LOG_LEVEL": "1", **os.environ},
            text=True,
            errors="replace",
            check=False,
        )
        if not result_file.exists():
            return _result_of_crash(process.returncode, process.stdout)
        result = json.loads(result_file.read_text(encoding="utf-8"))
    return ModelCheckResult(tuple(result["lines"]), result["failure"], result["detail"], result["exit_code"])


def _result_of_crash(code: int, output: str) -> ModelCheckResult:
    """The result if the user's code or the kernel ended the process."""
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    failure = f"the process that checked the model ended early: {how}"
    hint = (
        "the model's code must not end its process" if code >= 0 else "the usual reason of SIGKILL is too little memory"
    )
    last = "".join(f"{line}\n" for line in output.splitlines()[-_LAST_LINES:])
    return ModelCheckResult((), f"{failure}\n  {hint}", last, exit_code=FAILED_EXIT)
