"""The options of every command that talks to a cluster, and the connection that they choose."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from edl.api.errors import BadInputError
from edl.cli.completion import complete_contexts, complete_jobs
from edl.reporting.slow_response import SlowResponseNotice

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import KubeClient

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
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
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
        return kubeconfig.make_client(context, namespace, meanwhile=SlowResponseNotice())
    except NoKubeconfigError as error:
        from edl.ops.local_run_files import local_run_hint

        hint = f"This command is about jobs on a cluster. {error.hint}\n  {local_run_hint(job)}"
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
            "Nobody can be asked: this is not a terminal", where=command, hint="Say so beforehand: --yes."
        )
    return typer.confirm(question, default=True, prompt_suffix=" ")


def is_interactive() -> bool:
    """Whether a person reads and types."""
    return sys.stdin.isatty() and sys.stdout.isatty()
