"""``elasticdl train``, ``evaluate`` and ``predict``: the job file of a command line, and what runs it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import typer

from edl.api.errors import StorageError
from edl.api.fields import JsonValue
from edl.cli.elasticdl.flags import EVALUATE, PREDICT, DirectsCommand, flags_of
from edl.cli.elasticdl.job_translation import TranslatedJob, translate_job
from edl.cli.elasticdl.parser import CommandLine
from edl.cluster.kubernetes.spec_validation import find_submission_problems
from edl.jobfile.path_resolution import DEFAULT_STORAGE_DIR
from edl.jobfile.zoo_lookup import find_missing_module

JOB_FILES = Path(DEFAULT_STORAGE_DIR, "elasticdl")
"""Where the job files of command lines are: a run or a submission is continued with its file."""
DEFAULT_PREDICTIONS = "predictions"


def run_command(line: CommandLine) -> int:
    """Write, show or run the job of a command line; returns the exit code."""
    yaml_file, is_dry_run = line.values["yaml"], line.is_dry_run
    folder = Path(yaml_file).parent if yaml_file else Path() if is_dry_run else JOB_FILES
    job = translate_job(line, folder, find_submission_problems)
    for note in (*job.notes, *(_notes_on_job_file(line, job) if yaml_file or is_dry_run else ())):
        print(note, file=sys.stderr)
    if is_dry_run:
        print(job_file_text(job.document), end="")
        return 0
    if yaml_file:
        _write_job_file(Path(yaml_file), job)
        print(f"ElasticDL job {job.spec.name} YAML has been dumped into file {yaml_file}.")
        return 0
    job_file = JOB_FILES / f"{job.spec.name}.yaml"
    _write_job_file(job_file, job)
    print(f"The job file is {job_file}.", file=sys.stderr)
    if job.runs_on_cluster:
        return _submit(job_file, line, job)
    os.environ.update(job.variables)
    return _run_here(job_file, line)


def _notes_on_job_file(line: CommandLine, job: TranslatedJob) -> Iterator[str]:
    """Lines about flags that a job file cannot hold, because they are options of the command that reads it."""
    options = {
        "namespace": "edl submit -n",
        **({} if job.runs_on_cluster else {"output": "edl predict --output"}),
        "checkpoint_dir_for_init": "edl predict --from",
    }
    for name, flag in flags_of(line.command).items():
        if name in line.given and isinstance(flag.effect, DirectsCommand) and name in options:
            yield f"{line.given[name]}: not in the job file; give it to {options[name]}"
    if line.values["model_def"] and not job.runs_on_cluster:
        error = find_missing_module(Path(line.values["model_zoo"] or "."), line.values["model_def"])
        if error is not None:
            yield f"{line.given['model_def']}: {error.where}: {error.message}; {error.hint}"
    for name in ("envs", "populate_env_names"):
        if name in line.given and job.variables and not job.runs_on_cluster:
            yield f"{line.given[name]}: edl run sets no variables of pod.env; export them before it"
    if line.is_dry_run and line.values["yaml"]:
        yield f"{line.given['yaml']}: no effect with --dry-run, which writes nothing"


def job_file_text(document: Mapping[str, JsonValue]) -> str:
    """The job file in YAML."""
    from ruamel.yaml import YAML  # costs 40 ms, which --help saves

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 2**16
    out = io.StringIO()
    yaml.dump(dict(document), out)
    return out.getvalue()


def _write_job_file(path: Path, job: TranslatedJob) -> None:
    try:
        # flags may have secrets (--envs), and job files of command lines are nobody else's
        path.parent.mkdir(mode=0o700 if path.parent == JOB_FILES else 0o777, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(job_file_text(job.document), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"the job file cannot be written: {error.strerror}", where=str(path)) from error


def _run_here(job_file: Path, line: CommandLine) -> int:
    if line.command == PREDICT:
        from edl.cli.predict import predict

        return _exit_code(lambda: predict(job_file, Path(line.values["output"] or DEFAULT_PREDICTIONS)))
    if line.command == EVALUATE:
        from edl.cli.evaluate import evaluate

        return _exit_code(lambda: evaluate(job_file))
    from edl.cli.run import run

    return _exit_code(lambda: run(job_file))


def _submit(job_file: Path, line: CommandLine, job: TranslatedJob) -> int:
    from edl.cli.submit import submit
    from edl.cluster.kubernetes.names import log_pod_name, master_name

    namespace = line.values["namespace"] if "namespace" in line.given else None
    code = _exit_code(lambda: submit(job_file, yes=True, namespace=namespace))
    if code == 0:
        spec = job.spec
        pod = log_pod_name(spec.name, spec.pod.name_prefix) if spec.master.log_pod else master_name(spec.name)
        print(f"ElasticDL job {spec.name} was successfully submitted. The master pod is: {pod}.")
    return code


def _exit_code(command: Callable[[], None]) -> int:
    """The exit code of a command of ``edl``, which ends by an exception of typer's."""
    try:
        command()
    except typer.Exit as ended:
        return ended.exit_code
    return 0
