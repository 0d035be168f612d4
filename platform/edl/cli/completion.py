"""Completion of names of jobs and of contexts.

What the cluster says within a second, or nothing: a shell that waits shows no errors.
"""

from __future__ import annotations

import threading
from typing import Any

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
    found: list[str] = []
    asking = threading.Thread(
        target=_collect_job_names, args=(ctx.params.get("context"), ctx.params.get("namespace"), found), daemon=True
    )
    asking.start()
    asking.join(COMPLETION_SECONDS)
    return [name for name in list(found) if name.startswith(incomplete)]


def _collect_job_names(context: str | None, namespace: str | None, found: list[str]) -> None:
    from edl.cluster.kubernetes.api_client import KubeClient
    from edl.cluster.kubernetes.kubeconfig import load_connection
    from edl.ops.job_view import list_job_names

    try:
        found += list_job_names(KubeClient(load_connection(context, namespace)))
    except Exception:  # noqa: BLE001  whatever it is: the command itself will say it
        return
