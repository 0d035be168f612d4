"""What is kept of a namespace when a test fails: logs, events, manifests, status, the runs' own logs."""

from __future__ import annotations

from pathlib import Path

from e2e.namespaces import Namespace
from e2e.programs import call
from e2e.volume import MOUNT, READER

_KINDS = "jobs,pods,services,configmaps,leases,deployments,replicasets,persistentvolumeclaims,resourcequotas"


def collect_evidence(namespace: Namespace) -> None:
    """Write everything that helps below the namespace's folder; what cannot be had is left out and says why."""
    folder = namespace.folder / "evidence"
    folder.mkdir(parents=True, exist_ok=True)
    _keep_output(folder / "nodes.txt", "kubectl", "get", "nodes", "-o", "wide")
    _keep_output(folder / "all.yaml", "kubectl", "-n", namespace.name, "get", _KINDS, "-o", "yaml")
    _keep_output(folder / "pods.txt", "kubectl", "-n", namespace.name, "get", "pods", "-o", "wide")
    _keep_output(
        folder / "events.txt", "kubectl", "-n", namespace.name, "get", "events", "--sort-by=.metadata.creationTimestamp"
    )
    (folder / "changes.txt").write_text(_changes_text(namespace))
    for pod in call("kubectl", "-n", namespace.name, "get", "pods", "-o", "name").stdout.split():
        name = pod.removeprefix("pod/")
        _keep_output(folder / "logs" / f"{name}.log", "kubectl", "-n", namespace.name, "logs", name, "--timestamps")
        _keep_output(
            folder / "logs" / f"{name}.previous.log",
            "kubectl",
            "-n",
            namespace.name,
            "logs",
            name,
            "--previous",
            "--timestamps",
        )
    runs = ("sh", "-c", f"cd {MOUNT}/edl && tail -n 400 */*/*/logs/*.log */*/*/events.jsonl")
    _keep_output(folder / "runs.txt", "kubectl", "-n", namespace.name, "exec", READER, "--", *runs)


def _keep_output(file: Path, *command: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    done = call(*command, seconds=60)
    if done.returncode == 0:
        file.write_text(done.stdout)
    elif not file.name.endswith(".previous.log"):
        file.write_text(f"$ {' '.join(command)}\n{done.stderr}")


def _changes_text(namespace: Namespace) -> str:
    from e2e.observer import pod_line

    return "\n".join(
        f"{change.happened_at:.3f} {change.type} {pod_line(change.object)}" for change in namespace.observer.changes()
    )
