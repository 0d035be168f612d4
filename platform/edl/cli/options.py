"""The options of all commands that use a cluster, and the connection that they select."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edl.api.errors import BadInputError
from edl.reporting.text_table import SlowResponseNotice

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import KubeClient


# --------------------------------------------------------------------------------------------------
# Completion of names of jobs and of contexts.
#
# What the cluster says within a second, or nothing: a shell that waits shows no errors.


COMPLETION_SECONDS = 1.5


def complete_contexts(incomplete: str) -> list[str]:
    """Names of the kubeconfig's contexts that begin with ``incomplete``; no cluster is asked."""
    from edl.cluster.kubernetes.kubeconfig import list_contexts

    return [name for name in list_contexts() if name.startswith(incomplete)]


def complete_jobs(ctx: Any, incomplete: str) -> list[str]:
    """Names of jobs that begin with ``incomplete``, of the namespace that the line names; empty when in doubt.

    Args:
        ctx: typer's context of the command so far; its parameters choose cluster and namespace.
        incomplete: what has been typed of the name.
    """
    names: list[str] = []
    request = threading.Thread(
        target=_collect_job_names, args=(ctx.params.get("context"), ctx.params.get("namespace"), names), daemon=True
    )
    request.start()
    request.join(COMPLETION_SECONDS)
    return [name for name in list(names) if name.startswith(incomplete)]


def _collect_job_names(context: str | None, namespace: str | None, names: list[str]) -> None:
    from edl.cluster.kubernetes.api_client import KubeClient
    from edl.cluster.kubernetes.kubeconfig import load_connection
    from edl.ops.job_view import list_job_names

    try:
        names += list_job_names(KubeClient(load_connection(context, namespace)))
    except Exception:  # noqa: BLE001  whatever it is: the command itself will say it
        return


ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="Context of the kubeconfig; its current one by default.",
        autocompletion=complete_contexts,
    ),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", "-n", metavar="NAME", help="Namespace; the context's by default."),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="The job's name.", show_default=False, autocompletion=complete_jobs)
]


def connect_api(context: str | None, namespace: str | None, job: str | None = None) -> KubeClient:
    """The cluster that the options choose, which tells when it is silent.

    The Kubernetes client is imported here, never before.

    Args:
        context: of the kubeconfig; its current one by default.
        namespace: the context's by default.
        job: that the user asks about; without a kubeconfig a run of that name on this machine may be meant.

    Raises:
        ClusterConfigError: there is no such cluster in the kubeconfig, or no kubeconfig.
    """
    from edl.cluster.kubernetes import kubeconfig
    from edl.cluster.kubernetes.api_errors import NoKubeconfigError

    try:
        return kubeconfig.make_client(context, namespace, request_hook=SlowResponseNotice())
    except NoKubeconfigError as error:
        from edl.ops.local_run_files import local_run_hint

        hint = f"This command needs a cluster. {error.hint}\n  {local_run_hint(job)}"
        raise NoKubeconfigError(error.message, hint=hint) from error


def confirm_action(question: str, *, yes: bool, command: str) -> bool:
    """Whether the user wants it: Enter means yes, and so does ``--yes``.

    Raises:
        BadInputError: nobody can be asked, and ``--yes`` was not given.
    """
    if yes:
        return True
    if not is_interactive():
        raise BadInputError(
            "cannot ask for confirmation: this is not a terminal", where=command, hint="Use --yes to confirm."
        )
    return typer.confirm(question, default=True, prompt_suffix=" ")


def is_interactive() -> bool:
    """Whether input and output are a terminal, so that a person can answer a question."""
    return sys.stdin.isatty() and sys.stdout.isatty()
