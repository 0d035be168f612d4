"""Faults of nodes and of the API server: one small port, an implementation for kind and one for the local cluster.

Every fault undoes itself when its block ends, also when the test fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from e2e.programs import call, run_program

NODE_SECONDS = 60.0
KNOWN_SECONDS = 240.0
"""After the API server was away nodes were Unknown to it for 65 and 85 s here, until their kubelets wrote again."""
_PASSING = "node.kubernetes.io/"
"""Keys of the taints that Kubernetes sets and takes away by itself."""


class ClusterFaults(Protocol):
    """What can be done to a cluster from below."""

    def lose_node(self, node: str) -> None:
        """Power off: the node and every container on it are gone at once."""

    def restore_node(self, node: str) -> None:
        """Power on again."""

    def cut_node(self, node: str) -> None:
        """Take the node off the network; what runs on it goes on."""

    def mend_node(self, node: str) -> None:
        """Put it back on the network."""

    def stop_api(self) -> None:
        """Kill the API server."""

    def start_api(self) -> None:
        """Start it again; returns when it answers."""


@dataclass(frozen=True)
class KindFaults:
    """Each node of kind is a container of the Docker engine.

    Attributes:
        control_plane: name of the control plane's container.
    """

    control_plane: str

    def lose_node(self, node: str) -> None:
        run_program("docker", "kill", node)

    def restore_node(self, node: str) -> None:
        run_program("docker", "start", node)

    def cut_node(self, node: str) -> None:
        # Not `docker network disconnect`: the node would come back with another address.
        for rule in _CUT:
            run_program("docker", "exec", node, "iptables", "-t", rule[0], "-I", *rule[1:])

    def mend_node(self, node: str) -> None:
        for rule in _CUT:
            run_program("docker", "exec", node, "iptables", "-t", rule[0], "-D", *rule[1:])

    def stop_api(self) -> None:
        # A static pod: without its manifest the kubelet does not start it again.
        run_program(
            "docker", "exec", self.control_plane, "mv", _MANIFESTS + _API_SERVER, f"/etc/kubernetes{_API_SERVER}"
        )
        run_program("docker", "exec", self.control_plane, "pkill", "-KILL", "kube-apiserver")

    def start_api(self) -> None:
        run_program(
            "docker", "exec", self.control_plane, "mv", f"/etc/kubernetes{_API_SERVER}", _MANIFESTS + _API_SERVER
        )
        _api_answers()


_CUT = (("raw", "PREROUTING", "-i", "eth0", "-j", "DROP"), ("mangle", "POSTROUTING", "-o", "eth0", "-j", "DROP"))
_MANIFESTS, _API_SERVER = "/etc/kubernetes/manifests", "/kube-apiserver.yaml"


@dataclass(frozen=True)
class LocalClusterFaults:
    """The stand-in for kind on machines without privileged containers; it numbers its nodes ``node1, node2 ...``.

    Attributes:
        script: its command.
    """

    script: Path

    def lose_node(self, node: str) -> None:
        self._change_node("kill", node)

    def restore_node(self, node: str) -> None:
        self._change_node("start", node)

    def cut_node(self, node: str) -> None:
        self._change_node("cut", node)

    def mend_node(self, node: str) -> None:
        self._change_node("mend", node)

    def stop_api(self) -> None:
        run_program(self.script, "api", "kill")

    def start_api(self) -> None:
        run_program(self.script, "api", "start")

    def _change_node(self, what: str, node: str) -> None:
        run_program(self.script, "node", what, node.removeprefix("node"))


@dataclass(frozen=True)
class NoFaults:
    """A cluster of which only the API is known: tests that break nodes are skipped, and say so."""

    def _skip_test(self, *_: object) -> None:
        pytest.skip("nodes and API server can be broken on kind and on the local cluster only")

    lose_node = restore_node = cut_node = mend_node = stop_api = start_api = _skip_test


@contextmanager
def lose_node(faults: ClusterFaults, node: str) -> Iterator[None]:
    """The node is gone within the block, and Ready after it."""
    faults.lose_node(node)
    try:
        yield
    finally:
        faults.restore_node(node)
        wait_node_ready(node)


@contextmanager
def cut_off(faults: ClusterFaults, node: str) -> Iterator[None]:
    """The node has no network within the block, and is Ready after it."""
    faults.cut_node(node)
    try:
        yield
    finally:
        faults.mend_node(node)
        wait_node_ready(node)


@contextmanager
def no_api(faults: ClusterFaults) -> Iterator[None]:
    """The API server is away within the block. It takes longer until it believes again that all nodes live."""
    faults.stop_api()
    try:
        yield
    finally:
        faults.start_api()


def all_ready() -> None:
    """Wait until every node is Ready and takes pods."""
    for node in run_program("kubectl", "get", "nodes", "-o", "name").split():
        wait_node_ready(node.removeprefix("node/"), KNOWN_SECONDS)


def wait_node_ready(node: str, seconds: float = NODE_SECONDS) -> None:
    """Wait until the node is Ready and takes pods.

    Its taints go some time after what they are there for: a node that was cordoned, or of which an API server that was
    away has not heard yet, would look like one that is not for pods.
    """
    from e2e.waiting import wait_until

    run_program(
        "kubectl", "wait", "--for=condition=Ready", f"node/{node}", f"--timeout={seconds:.0f}s", seconds=seconds + 30
    )
    wait_until(f"{node} takes pods", lambda: not any(key.startswith(_PASSING) for key in _node_taints(node)), seconds)


def _node_taints(node: str) -> list[str]:
    return run_program("kubectl", "get", "node", node, "-o", "jsonpath={.spec.taints[*].key}").split()


def _api_answers() -> None:
    from e2e.waiting import wait_until

    wait_until(
        "the API server answers", lambda: call("kubectl", "get", "--raw", "/readyz").returncode == 0 or None, 120
    )
