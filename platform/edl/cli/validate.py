"""``edl validate``: check a job file and show what it would run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.jobfile.command_rules import describe_program
from edl.jobfile.loader import load_job_file, locate_field
from edl.jobfile.path_resolution import find_relative_paths, resolve_local_paths
from edl.jobfile.strategy_choice import has_own_state, uses_all_reduce
from edl.jobfile.strategy_rules import describe_unused_fields
from edl.ops.job_checks import check_job, check_model, check_reader_options, missing_inputs
from edl.ops.local_run_start import check_storage, local_job_directory
from edl.reporting.unit_formats import pluralize

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def validate(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False)],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Override a field, such as train.epochs=3; repeatable."),
    ] = None,
    model: Annotated[
        bool, typer.Option("--model", help="Also try the model, feed and the first minibatch, in one process.")
    ] = False,
) -> None:
    """Check a job file and show what it would run.

    Paths of data must exist, and the model's module must define the functions of the contract; its code does not run,
    and records are not read. Missing data or a missing module is an error if a path of data or of the export is
    relative: such a job can run on this machine only. Otherwise it is a warning.

    With --model it is always an error, and the model's code runs up to the first minibatch. The command finds every
    error that would end a run before its first update, and trains nothing.

    Exit codes: 0 no error; otherwise the run's exit code: 2 for bad input or an error in the model's code.
    """
    spec = load_job_file(job, settings or ())
    local_spec = resolve_local_paths(spec, job.parent)
    try:
        check_reader_options(local_spec)
    except BadInputError as error:
        field = error.where or "data.reader"
        raise BadInputError(error.message, where=locate_field(field, job, settings or ()), hint=error.hint) from error
    model_lines: list[str] = []
    if model:
        predicts_only = local_spec.task == "train" and not local_spec.data.training
        check_job(replace(local_spec, task="predict") if predicts_only else local_spec)
        check_storage(local_job_directory(local_spec))
        if local_spec.command:
            model_lines.append("not checked: what the program does; it exists, and the records were counted")
        else:
            model_lines += _check_model_code(local_spec)
    else:
        model_lines.append(_NOT_CHECKED)
    problems = [
        f"{locate_field(field, job, settings or ())}: {problem}" for field, problem in missing_inputs(local_spec)
    ]
    # A pod has no directory to resolve a relative path against, so such a job can only run on a machine with this file.
    if problems and any(find_relative_paths(spec)):
        for problem in problems:
            typer.echo(problem, err=True)
        raise typer.Exit(BadInputError.exit_code)
    typer.echo(f"{job}: ok\n" + "\n".join(f"  {line}" for line in [*spec_outline(spec), *model_lines]))
    for problem in problems:
        typer.echo(f"warning: {problem}", err=True)


def _check_model_code(spec: JobSpec) -> Sequence[str]:
    """Lines about the model; ends the command if its code fails."""
    result = check_model(spec)
    if result.failure:
        typer.echo(f"{result.detail}{result.failure}", err=True)
        raise typer.Exit(result.exit_code)
    return result.report_lines


_NOT_CHECKED = "not checked: the model's code and the contents of the records; --model checks them"


def spec_outline(spec: JobSpec) -> list[str]:
    """A few lines about what the job would run, for people."""
    lines = [f"job {spec.name}: {describe_program(spec, spec.model.zoo)}"]
    if spec.task != "train":
        verb, paths = (
            ("evaluates", spec.data.validation) if spec.task == "evaluate" else ("predicts", spec.data.prediction)
        )
        weights = spec.model.weights or "the newest trained run"
        return [*lines, f"{verb} {_path_list(paths)} with {weights}", f"{_workers_text(spec)}, no parameter servers"]
    if spec.data.training:
        lines.append(f"trains on {_path_list(spec.data.training)}: {_training_text(spec)}")
    if spec.model.init_from:
        lines.append(f"begins with the weights of {spec.model.init_from}")
    if spec.data.validation:
        steps = spec.train.evaluation_steps
        often = f"every {pluralize(steps, 'step')} and at the end" if steps else "at the end"
        lines.append(f"evaluates on {_path_list(spec.data.validation)}, {often}")
    if spec.data.prediction:
        lines.append(f"predicts {_path_list(spec.data.prediction)} with edl predict")
    if spec.command:
        strategy = "" if has_own_state(spec) else "strategy AllReduce: "
        return [*lines, f"{strategy}{_workers_text(spec)}, no parameter servers"]
    return [*lines, _roles_text(spec), *describe_unused_fields(spec), *_output_lines(spec)]


def _training_text(spec: JobSpec) -> str:
    train = spec.train
    end = f", at most {pluralize(train.max_steps, 'step')}" if train.max_steps else ""
    if (records := spec.strategy.global_batch) is not None:
        return f"{pluralize(train.epochs, 'epoch')} in steps of {pluralize(records, 'record')}{end}"
    return f"{pluralize(train.epochs, 'epoch')} in minibatches of {train.minibatch_size}{end}"


def _roles_text(spec: JobSpec) -> str:
    if spec.strategy.name == "Local":
        return "strategy Local: one process"
    many, ps = _workers_text(spec), spec.ps
    if uses_all_reduce(spec):
        return f"strategy AllReduce: {many}"
    return f"strategy {spec.strategy.name}, {spec.strategy.mode}: {many}, {pluralize(ps.count, 'parameter server')}"


def _workers_text(spec: JobSpec) -> str:
    workers = spec.workers
    return f"{workers.min} to {workers.max} workers" if workers.min < workers.max else pluralize(workers.max, "worker")


def _output_lines(spec: JobSpec) -> list[str]:
    lines = []
    if spec.checkpoint:
        kept = f"keeps {pluralize(spec.checkpoint.keep, 'checkpoint')}"
        lines.append(f"{kept}, one every {pluralize(spec.checkpoint.every_steps, 'step')}")
    if spec.export:
        lines.append(f"exports to {spec.export.path or 'export/ in the run directory'}")
    return lines


def _path_list(paths: tuple[str, ...]) -> str:
    return ", ".join(paths)
