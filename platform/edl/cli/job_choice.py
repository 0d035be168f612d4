"""Which job a command means: a run of this machine, or a job on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

import typer

from edl.api.errors import BadInputError, EdlError
from edl.cli.options import connect_api
from edl.cluster.kubernetes.api_errors import NoKubeconfigError
from edl.ops import job_view
from edl.ops.job_view import JobView, UnknownJobError
from edl.ops.local_runs import LocalRun, find_local_run, read_local_run

LocalOption = Annotated[bool, typer.Option("--local", help="Runs of edl run on this machine, below ./.edl.")]
JobLookup: TypeAlias = Callable[[], JobView]


def choose_local_run(job: str, *, local: bool, context: str | None, namespace: str | None) -> LocalRun | None:
    """The run of this machine that a command selects; None if it selects a job on a cluster.

    ``--local`` selects a run, and ``-n`` or ``--context`` a job. Without them a job on the cluster
    has precedence: a run is selected if there is no kubeconfig, or no job with the name.

    Raises:
        BadInputError: ``--local`` was given without a matching run, or together with options of a
            cluster; or there is neither a matching run nor a kubeconfig.
        RetryableError: the cluster did not answer whether the job exists. With ``--local`` no
            cluster is asked.
    """
    of_cluster = context is not None or namespace is not None
    if local and of_cluster:
        raise BadInputError("--local selects runs of this machine, but -n and --context select a cluster")
    if local:
        return find_local_run(job)
    if of_cluster:
        return None
    try:
        local_run = find_local_run(job)
    except UnknownJobError as error:
        if not (reason := _no_kubeconfig_reason()):
            return None
        raise UnknownJobError(error.message, hint=f"{error.hint}\n  No cluster was searched: {reason}.") from error
    return local_run if "/" in job or not has_kubeconfig() or not _is_cluster_job(job) else None


def job_lookup(job: str, *, local: bool, context: str | None, namespace: str | None) -> JobLookup:
    """A function that reads the current state of a job, on the cluster or of this machine.

    Raises:
        BadInputError: see ``choose_local_run``.
    """
    # Chosen once: a newer run of the job must not replace the one that is being watched.
    local_run = choose_local_run(job, local=local, context=context, namespace=namespace)
    if local_run is not None:
        run = local_run.run_dir
        return lambda: read_local_run(run)
    api = connect_api(context, namespace, job)
    return lambda: job_view.find_job(api, job)


def has_kubeconfig() -> bool:
    """Whether there is a kubeconfig. Asks no cluster."""
    return not _no_kubeconfig_reason()


def _no_kubeconfig_reason() -> str:
    """A message that there is no kubeconfig, with the searched places; empty if there is one."""
    from edl.cluster.kubernetes import kubeconfig

    try:
        kubeconfig.make_client(None, None)
    except NoKubeconfigError as error:
        return error.message.removeprefix("No cluster can be used: ")
    except EdlError:  # there is one; the command that uses it reports what is wrong with it
        return ""
    return ""


def _is_cluster_job(job: str) -> bool:
    try:
        job_view.find_job(connect_api(None, None), job)
    except UnknownJobError:
        return False
    return True
