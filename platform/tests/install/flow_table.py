"""Tables of flows as text: endpoints, ports, and who may connect to whom. ``network/*.txt`` are what it reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from install.network_policy import AttemptedConnection, NetworkEndpoint, PolicyNetwork
from ruamel.yaml import YAML

_VERDICTS = {"allowed": True, "denied": False}
_SECTIONS = ("values", "endpoints", "ports", "flows")


@dataclass(frozen=True)
class NetworkFlow:
    """A line of the table, for one pair and one port.

    Attributes:
        port: as the table has it, ``7070`` or ``53/UDP``.
    """

    source: str
    target: str
    port: str

    def __str__(self) -> str:
        return f"{self.source} -> {self.target} {self.port}"


@dataclass(frozen=True)
class FlowTable:
    """What a file says.

    Attributes:
        values: for ``networkPolicies`` of the team; none: the chart's own.
        verdicts: by flow, what the lines say.
    """

    values: dict[str, Any]
    endpoints: dict[str, NetworkEndpoint]
    ports: tuple[str, ...]
    verdicts: dict[NetworkFlow, bool]

    def all_flows(self, namespace: str) -> Iterator[NetworkFlow]:
        """Every pair, of which one is in the namespace, at every port."""
        for source, target, port in product(self.endpoints, self.endpoints, self.ports):
            pair = (self.endpoints[source].namespace, self.endpoints[target].namespace)
            if source != target and namespace in pair:
                yield NetworkFlow(source, target, port)

    def network(self, policies: list[dict[str, Any]]) -> PolicyNetwork:
        """The policies among the table's namespaces, which carry the label that Kubernetes gives to each."""
        named = {endpoint.namespace for endpoint in self.endpoints.values() if endpoint.namespace is not None}
        return PolicyNetwork({name: {"kubernetes.io/metadata.name": name} for name in named}, tuple(policies))

    def connection(self, flow: NetworkFlow) -> AttemptedConnection:
        """What the flow tries."""
        number, _, protocol = flow.port.partition("/")
        return AttemptedConnection(
            self.endpoints[flow.source], self.endpoints[flow.target], int(number), protocol or "TCP"
        )


def read(text: str) -> FlowTable:
    """The table of a text; a line that is not understood is an error."""
    lines: dict[str, list[str]] = {section: [] for section in _SECTIONS}
    section = ""
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            section = line.strip()
        else:
            lines[section].append(line)
    values = YAML(typ="safe").load("\n".join(lines["values"])) or {}
    endpoints = dict(map(_endpoint, lines["endpoints"]))
    verdicts: dict[NetworkFlow, bool] = {}
    for line in lines["flows"]:
        for flow, verdict in _flows(line):
            assert flow not in verdicts, f"{flow} is there twice"
            verdicts[flow] = verdict
    return FlowTable(values, endpoints, tuple(" ".join(lines["ports"]).split()), verdicts)


def _endpoint(line: str) -> tuple[str, NetworkEndpoint]:
    name, namespace, address, *labels = line.split()
    pairs = (label.partition("=") for label in labels)
    endpoint = NetworkEndpoint(
        address, None if namespace == "-" else namespace, {key: value for key, _, value in pairs}
    )
    return name, endpoint


def _flows(line: str) -> Iterator[tuple[NetworkFlow, bool]]:
    sources, arrow, targets, ports, verdict = line.split()
    assert arrow == "->", line
    for source, target, port in product(sources.split(","), targets.split(","), ports.split(",")):
        yield NetworkFlow(source, target, port), _VERDICTS[verdict]
