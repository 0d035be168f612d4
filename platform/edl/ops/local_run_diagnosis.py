"""Finds why a run of this machine waits, is slow or has failed, from the files in its directory."""

from __future__ import annotations

from collections.abc import Iterator

from edl.api.errors import BadInputError, StorageError
from edl.ops.diagnosis import diagnose_pushes, diagnose_slowdown, find_stall, find_starvation, find_stragglers
from edl.ops.job_findings import JobFinding
from edl.ops.job_view import JobView
from edl.ops.local_run_plan import resume_point_text
from edl.ops.local_run_resumption import resume_checkpoint
from edl.storage.journal_reader import JournalDamagedError
from edl.storage.run_directory import RunDirectory


def diagnose_local_run(job: JobView, run: RunDirectory, command_target: str) -> list[JobFinding]:
    """The problems of a run, the most important first.

    Args:
        job: the run's state.
        run: its directory.
        command_target: the run's name in commands: ``mnist/r2``.
    """
    if job.has_ended:
        findings = [*_find_end(job, run), *_find_slowdowns(job, command_target)]
    else:
        findings = [
            *find_stall(job),
            *find_stragglers(job),
            *find_starvation(job, _bound_hint(command_target)),
            *_find_slowdowns(job, command_target),
        ]
        findings += _find_waiting_workers(job, command_target)
    return [each for index, each in enumerate(findings) if each not in findings[:index]]


def _bound_hint(command_target: str) -> str:
    return f"EDL restarts workers that ended. `edl scale {command_target} --min N` changes workers.min."


def _find_slowdowns(job: JobView, command_target: str) -> Iterator[JobFinding]:
    yield from diagnose_pushes(job, command_target)
    yield from diagnose_slowdown(job, command_target)


def _find_end(job: JobView, run: RunDirectory) -> Iterator[JobFinding]:
    """Why the run failed or was interrupted, and how it is continued."""
    if job.phase == "Done":
        return
    failure = job.published_status.failure
    reason = (failure.reason if failure else "") or (job.status.reason if job.status else "")
    verb = "failed" if job.phase == "Failed" else "was interrupted"
    yield JobFinding(
        job.name,
        f"it {verb}: {reason or 'the reason is unknown'}",
        _how_to_continue(job, run),
        job.published_status.failure_detail,
    )


def _how_to_continue(job: JobView, run: RunDirectory) -> str:
    if job.task != "train":
        what = "A prediction" if job.task == "predict" else "An evaluation"
        return f"{what} cannot be resumed: run edl {job.task} again."
    again = f"Continue with: edl run JOB.yaml --resume {run.run_id}"
    try:
        return f"{resume_point_text(run, resume_checkpoint(run))} {again}"
    except JournalDamagedError as error:
        return f"{error.message}. {again} --from-checkpoint"
    except (StorageError, BadInputError) as error:
        return f"{again}, after you have fixed this: {error}"


def _find_waiting_workers(job: JobView, command_target: str) -> Iterator[JobFinding]:
    """Workers that do not train, with their reasons."""
    for worker in job.status.workers if job.status else ():
        if worker.reason and worker.state in ("waiting", "starting", "joining", "pending"):
            yield JobFinding(
                f"worker-{worker.index}",
                worker.reason,
                f"`edl logs {command_target} -r worker -i {worker.index}` shows what it does.",
            )
