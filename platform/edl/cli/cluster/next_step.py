"""The command to call next, with the cluster and namespace of the one that names it."""

from __future__ import annotations


def called(job: str, context: str | None, namespace: str | None) -> str:
    """A job as the next command names it: ``mnist -n team``."""
    where = f" --context {context}" if context else ""
    return job + where + (f" -n {namespace}" if namespace else "")
