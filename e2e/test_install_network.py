"""NetworkPolicies on real pods: connections that the table of flows allows are made, those that it denies are not.

Whether policies are enforced is the cluster's network's business. Where they are not, this says so and is skipped; on
kind, which enforces them, that is a failure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e import namespaces
from e2e.images import JobImages
from e2e.namespaces import Namespace
from e2e.observer import phase
from e2e.pods import pod
from e2e.programs import ROOT, apply, kubectl
from e2e.site import ImageDelivery, TargetSite
from install.flow_table import NetworkFlow, read

TABLE = read((ROOT / "platform" / "tests" / "install" / "network" / "defaults.txt").read_text())
POLICIES = ROOT / "kustomize" / "base" / "team" / "network-policies.yaml"
WHOLE_NAMESPACE = '[{"op": "replace", "path": "/spec/podSelector", "value": {}}]'
"""The patch of ``kustomize/components/network-policy``: every pod of the namespace is isolated, not EDL's alone."""
TEAM, OTHER = "team-a", "team-b"
PODS = ("master", "ps", "worker", "submitter", "notebook", "stranger")
PORTS = ("7070", "7071")
SERVICES = {"dns": ("kube-system", "kube-dns", "53"), "api-server": ("default", "kubernetes", "443")}
SECONDS = 30.0
"""Within which policies must have come to every node."""

SERVER = f"""
import socket, threading

def serve(port):
    server, taken = socket.create_server(("", port)), []
    while True:
        taken.append(server.accept())

for port in {", ".join(PORTS)}:
    threading.Thread(target=serve, args=(port,)).start()
"""
"""Takes connections at the ports of jobs and says nothing."""

PROBE = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor

def reached(where):
    try:
        socket.create_connection(where, 3).close()
        return True
    except OSError:
        return False

tried = json.loads(sys.argv[1])
with ThreadPoolExecutor(32) as pool:
    print(json.dumps(list(pool.map(reached, [(host, int(port)) for host, port in tried]))))
"""
"""Which of the given addresses can be connected to, all tried at once."""


def namespace_of(name: str, team: Namespace, other: Namespace) -> Namespace:
    return {TEAM: team, OTHER: other}[str(TABLE.endpoints[name].namespace)]


def start_endpoint(namespace: Namespace, name: str) -> None:
    labels = dict(TABLE.endpoints[name].labels)
    apply(pod(name, namespace.images.submitter, "python3", "-c", SERVER, labels=labels), "-n", namespace.name)


def address(namespace: Namespace, name: str) -> str:
    """Of the pod, which runs then."""

    def find_address() -> str | None:
        pod = namespace.observer.pod(name)
        return pod["status"].get("podIP") if pod is not None and phase(pod) == "Running" else None

    return str(namespace.observer.wait_for(f"{name} runs", find_address))


def tried_flows() -> list[NetworkFlow]:
    """Those of the table that are tried: among the pods, and from them to the Services."""
    ports = dict.fromkeys(PODS, PORTS) | {name: (service[2],) for name, service in SERVICES.items()}
    return [
        flow
        for flow in TABLE.all_flows(TEAM)
        if flow.source in PODS and flow.target in ports and flow.port in ports[flow.target]
    ]


def reachable_flows(
    tried: list[NetworkFlow], addresses: dict[str, str], team: Namespace, other: Namespace
) -> set[NetworkFlow]:
    """The flows that come through now."""
    reached: set[NetworkFlow] = set()
    for source in PODS:
        own = [flow for flow in tried if flow.source == source]
        questions = json.dumps([(addresses[flow.target], flow.port) for flow in own])
        namespace = namespace_of(source, team, other)
        answers = json.loads(namespace.kubectl("exec", source, "--", "python3", "-c", PROBE, questions))
        reached |= {flow for flow, answer in zip(own, answers, strict=True) if answer}
    return reached


@pytest.fixture
def namespace_pair(
    target_site: TargetSite, job_images: JobImages, folder: Path
) -> Iterator[tuple[Namespace, Namespace]]:
    """The team's namespace and a stranger's; nothing of EDL is needed in either."""
    with (
        namespaces.new_namespace(target_site, job_images, folder, volume=False, base=False) as team,
        namespaces.new_namespace(
            target_site, job_images, folder.with_name(f"{folder.name}-other"), volume=False, base=False
        ) as other,
    ):
        yield team, other


@pytest.mark.in_turn(2)
def test_pods_reach_what_the_table_says(namespace_pair: tuple[Namespace, Namespace], target_site: TargetSite) -> None:
    team, other = namespace_pair
    for name in PODS:
        start_endpoint(namespace_of(name, team, other), name)
    addresses = {name: address(namespace_of(name, team, other), name) for name in PODS}
    for name, (namespace, service, _) in SERVICES.items():
        addresses[name] = kubectl("-n", namespace, "get", "service", service, "-o", "jsonpath={.spec.clusterIP}")
    tried = tried_flows()
    team.observer.wait_for(
        "every pod reaches every other", lambda: reachable_flows(tried, addresses, team, other) == set(tried)
    )

    team.kubectl("apply", "-f", str(POLICIES))
    team.kubectl("patch", "networkpolicy", "edl-default-deny", "--type=json", "--patch", WHOLE_NAMESPACE)
    expected = {flow for flow in tried if TABLE.verdicts.get(flow, False)}
    deadline, reached = time.monotonic() + SECONDS, set(tried)
    while reached != expected and time.monotonic() < deadline:
        reached = reachable_flows(tried, addresses, team, other)
    if reached == set(tried) and target_site.delivery is not ImageDelivery.KIND:
        pytest.skip("not enforced: this cluster's network does not enforce NetworkPolicies")
    assert {str(flow) for flow in reached} == {str(flow) for flow in expected}
