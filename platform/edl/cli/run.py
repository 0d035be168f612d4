"""``edl run``: train a job on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.cli.resume_option import FromCheckpointOption, OptionalRunCommand, check_from_checkpoint
from edl.cluster.local.desired_state_file import DesiredStateFile
from edl.jobfile.loader import NumberOption, load_job_file
from edl.jobfile.path_resolution import resolve_local_paths
from edl.ops import local_run_resumption
from edl.ops.job_checks import check_job
from edl.ops.local_run_plan import LocalRunPlan, RunArguments
from edl.ops.local_run_start import create_storage, exec_local_worker, local_job_directory, run_supervised
from edl.storage import run_resumption
from edl.storage.journal_reader import JournalDamagedError
from edl.storage.journal_truncation import CheckpointRestart
from edl.storage.run_directory import NEWEST_RUN, JobLock, RunDirectory, create_run
from edl.storage.run_resumption import FieldChange
from edl.storage.run_weights import RunWeights
from edl.storage.weights_lookup import find_weights

app = typer.Typer(rich_markup_mode=None, add_completion=False)

JobFileArgument = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False)]
WorkersOption = Annotated[int | None, typer.Option(metavar="N", min=1, help="Start this many workers.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Override a field, such as train.epochs=3; repeatable."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line, the summary last.")]


@app.command(cls=OptionalRunCommand)
def run(
    job: JobFileArgument,
    workers: WorkersOption = None,
    ps: Annotated[int | None, typer.Option(metavar="N", min=1, help="Start this many parameter servers.")] = None,
    settings: SetOption = None,
    resume: Annotated[
        str | None, typer.Option(metavar="[RUN]", help="Continue a run, such as r3; the newest by default.")
    ] = None,
    from_checkpoint: FromCheckpointOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a job on this machine.

    Roles are processes. A run keeps its files in .edl/local/JOB/RUN, and --resume continues it.

    Exit codes: 0 done, 1 the job failed, 2 bad input or an error in the model's code, 130 interrupted, 141 closed pipe.
    """
    spec = read_job_file(job, settings or [], workers, ps)
    if spec.task != "train":
        raise BadInputError(
            f"the job's task is {spec.task}; edl run trains",
            where=str(job),
            hint=f"Use edl {spec.task}, or --set task=train.",
        )
    counts = check_job(spec, resumed=resume is not None)
    folder = local_job_directory(spec)
    check_from_checkpoint(resume, from_checkpoint=from_checkpoint)
    if resume is not None:
        local_run_resumption.find_resumable_run(
            folder, _resumed_run_id(resume)
        )  # before the lock, for which the folder is made
    wanted = None if resume is not None else spec.model.init_from
    initial = None if wanted is None else find_weights(folder, wanted)
    for line in initial.skipped_lines() if initial else ():
        print(line, file=sys.stderr)
    create_storage(folder)
    order = RunArguments(job, settings or (), workers, ps)
    with JobLock(folder) as lock, _explain_damaged_journal(folder, resume, order):
        directory, changes, restart = _open_run_directory(folder, resume, spec, from_checkpoint=from_checkpoint)
        lock.describe_run(directory.run_id)
        plan = LocalRunPlan(
            spec,
            order,
            counts,
            directory,
            is_resumed=resume is not None,
            field_changes=changes,
            checkpoint_restart=restart,
            initial_weights=initial,
        )
        if initial is not None:
            RunWeights(initial.path, initial.step).hold(directory).write(directory, spec.task)
        if spec.strategy.name == "Local":
            exec_local_worker(plan, as_json=as_json)
        code = run_supervised(plan, as_json=as_json)
    raise typer.Exit(code)


def read_job_file(
    job: Path, settings: list[str], workers: int | None, ps: int | None, required: str = "training"
) -> JobSpec:
    """The job file with the overrides of the command line and the paths of this machine.

    Raises:
        BadInputError: the file or an option is wrong.
    """
    spec = load_job_file(
        job, settings, number_options=list(_count_overrides(workers, ps)), required_datasets=(required,)
    )
    if required == "training" and spec.strategy.name == "Local" and (workers or ps):
        option = "--workers" if workers else "--ps"
        raise BadInputError(f"{option} cannot be used with strategy Local, which runs one process", where=str(job))
    if required == "training" and spec.strategy.name == "AllReduce" and ps:
        raise BadInputError(
            "--ps cannot be used with strategy AllReduce, which has no parameter servers", where=str(job)
        )
    return resolve_local_paths(spec, job.parent)


def _count_overrides(workers: int | None, ps: int | None) -> Iterator[NumberOption]:
    if workers is not None:
        yield NumberOption(f"--workers {workers}", "workers.max", workers, limited_field="workers.min")
    if ps is not None:
        yield NumberOption(f"--ps {ps}", "ps.count", ps)


def _open_run_directory(
    folder: Path, resume: str | None, spec: JobSpec, *, from_checkpoint: bool
) -> tuple[RunDirectory, tuple[FieldChange, ...], CheckpointRestart | None]:
    if resume is None:
        return create_run(folder), (), None
    directory = local_run_resumption.find_resumable_run(folder, _resumed_run_id(resume))
    changes = tuple(run_resumption.check_resume_changes(directory, spec))
    from edl.storage.strategy_change import plan_resumption  # imported here: only a resumed run needs it

    restart = plan_resumption(directory, spec, from_checkpoint=from_checkpoint)
    if restart is None:
        if spec.strategy.name == "AllReduce":
            local_run_resumption.check_checkpoints(directory)
        local_run_resumption.reopen_run(directory)
    # A run that is continued has the numbers of its job file. Before the lock names the run: from then on edl scale
    # may request others.
    DesiredStateFile(directory.desired_state).remove()
    return directory, changes, restart


@contextmanager
def _explain_damaged_journal(folder: Path, resume: str | None, order: RunArguments) -> Iterator[None]:
    """Add the command that resumes from a checkpoint to the hint of a damaged journal."""
    try:
        yield
    except JournalDamagedError as error:
        if resume is None:
            raise
        back = order.resume_from_checkpoint_command(
            local_run_resumption.find_resumable_run(folder, _resumed_run_id(resume)).run_id
        )
        raise JournalDamagedError(error.message, where=error.where, hint=f"{error.hint}\n  {back}") from error


def _resumed_run_id(resume: str) -> str | None:
    return None if resume == NEWEST_RUN else resume
