"""The evaluator of NetworkPolicies keeps the rules that Kubernetes documents."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from install.network_policy import AttemptedConnection, NetworkEndpoint, PolicyNetwork, in_block, matches
from support.examples import examples

_PATIENT = settings(max_examples=examples(100))
NAMESPACES = {"a": {"team": "x"}, "b": {"team": "y"}}
KEYS, VALUES = ["role", "job"], ["master", "worker"]

labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
ports = st.integers(1, 65535)
protocols = st.sampled_from(["TCP", "UDP"])
pods = st.builds(
    NetworkEndpoint,
    address=st.integers(0, 255).map("10.0.0.{}".format),
    namespace=st.sampled_from(sorted(NAMESPACES)),
    labels=labels,
    ports=st.just({("control", "TCP"): 7070, ("names", "UDP"): 53}),
)
outsiders = st.builds(NetworkEndpoint, address=st.ip_addresses().map(str))
connections = st.builds(
    AttemptedConnection, pods | outsiders, pods | outsiders, ports | st.sampled_from([53, 7070]), protocols
)
expressions = st.one_of(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(KEYS),
            "operator": st.sampled_from(["In", "NotIn"]),
            "values": st.lists(st.sampled_from(VALUES), min_size=1),
        }
    ),
    st.fixed_dictionaries(
        {"key": st.sampled_from(KEYS), "operator": st.sampled_from(["Exists", "DoesNotExist"])},
    ),
)
selectors = st.fixed_dictionaries({}, optional={"matchLabels": labels, "matchExpressions": st.lists(expressions)})
blocks = st.builds(
    lambda address, size, hole: {"cidr": str(ip_network((address, size), strict=False)), "except": [f"{hole}/32"]},
    st.ip_addresses(v=4).map(int),
    st.integers(0, 32),
    st.ip_addresses(v=4),
)
peers = st.one_of(
    st.fixed_dictionaries({"ipBlock": blocks}),
    st.fixed_dictionaries({"podSelector": selectors}),
    st.fixed_dictionaries({"namespaceSelector": st.sampled_from([{}, {"matchLabels": {"team": "y"}}])}),
    st.fixed_dictionaries({"namespaceSelector": st.just({}), "podSelector": selectors}),
)
asked_ports = st.fixed_dictionaries(
    {"port": ports | st.sampled_from([53, 7070, "control", "names"])}, optional={"protocol": protocols}
)


def rules(side: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(st.fixed_dictionaries({}, optional={side: st.lists(peers), "ports": st.lists(asked_ports)}))


policies = st.builds(
    lambda namespace, spec: {"metadata": {"name": "p", "namespace": namespace}, "spec": spec},
    st.sampled_from(sorted(NAMESPACES)),
    st.fixed_dictionaries(
        {"podSelector": selectors},
        optional={
            "policyTypes": st.lists(st.sampled_from(["Ingress", "Egress"]), min_size=1, unique=True),
            "ingress": rules("from"),
            "egress": rules("to"),
        },
    ),
)


def network(*found: dict[str, Any]) -> PolicyNetwork:
    return PolicyNetwork(NAMESPACES, found)


def policy(namespace: str = "a", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "namespace": namespace}, "spec": {"podSelector": {}, **spec}}


def allowed(tried: AttemptedConnection, *found: dict[str, Any]) -> bool:
    return network(*found).verdict(tried).allowed


@_PATIENT
@given(connections)
def test_without_policies_all_is_allowed(tried: AttemptedConnection) -> None:
    assert allowed(tried)


@_PATIENT
@given(connections, policies)
def test_a_policy_alone_says_nothing_about_pods_of_another_namespace(
    tried: AttemptedConnection, found: dict[str, Any]
) -> None:
    namespace = found["metadata"]["namespace"]
    if namespace not in (tried.source.namespace, tried.target.namespace):
        assert allowed(tried, found)


@_PATIENT
@given(connections, st.lists(policies, min_size=1, max_size=4))
def test_what_an_isolated_pod_may_do_only_grows_with_more_policies(
    tried: AttemptedConnection, found: list[dict[str, Any]]
) -> None:
    deny = [policy(name, policyTypes=["Ingress", "Egress"]) for name in NAMESPACES]
    if allowed(tried, *deny, *found[:-1]):
        assert allowed(tried, *deny, *found)


@_PATIENT
@given(connections, st.lists(policies, max_size=4))
def test_the_order_of_policies_does_not_matter(tried: AttemptedConnection, found: list[dict[str, Any]]) -> None:
    assert allowed(tried, *found) == allowed(tried, *reversed(found))


@_PATIENT
@given(connections)
def test_default_deny_denies_all_that_touches_the_namespace_but_a_pod_to_itself(tried: AttemptedConnection) -> None:
    touched = "a" in (tried.source.namespace, tried.target.namespace)
    deny = policy(policyTypes=["Ingress", "Egress"])
    assert allowed(tried, deny) == (not touched or tried.source == tried.target)


@_PATIENT
@given(connections, st.sampled_from(["Ingress", "Egress"]))
def test_an_empty_rule_allows_everything_in_its_direction(tried: AttemptedConnection, direction: str) -> None:
    assert allowed(tried, policy(policyTypes=[direction], **{direction.lower(): [{}]}))


@_PATIENT
@given(connections, policies)
def test_policy_types_that_are_left_out_are_ingress_and_egress_where_there_are_rules(
    tried: AttemptedConnection, found: dict[str, Any]
) -> None:
    spec = {key: value for key, value in found["spec"].items() if key != "policyTypes"}
    implied = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    explicit = {**found, "spec": {**spec, "policyTypes": implied}}
    assert allowed(tried, {**found, "spec": spec}) == allowed(tried, explicit)


@_PATIENT
@given(blocks, st.ip_addresses())
def test_a_block_is_its_range_without_its_exceptions(block: dict[str, Any], address: Any) -> None:
    inside = address.version == 4 and address in ip_network(block["cidr"])
    assert in_block(block, str(address)) == (inside and f"{address}/32" not in block["except"])
    assert not in_block(block, block["except"][0].removesuffix("/32"))


@_PATIENT
@given(selectors, selectors, labels)
def test_requirements_of_a_selector_are_all_met_together(
    one: dict[str, Any], other: dict[str, Any], found: dict[str, str]
) -> None:
    both = {
        "matchExpressions": [
            *({"key": k, "operator": "In", "values": [v]} for each in (one, other) for k, v in matched(each)),
            *one.get("matchExpressions", []),
            *other.get("matchExpressions", []),
        ]
    }
    assert matches(both, found) == (matches(one, found) and matches(other, found))


def matched(selector: dict[str, Any]) -> list[tuple[str, str]]:
    return list(selector.get("matchLabels", {}).items())


@_PATIENT
@given(expressions, labels)
def test_operators_come_in_opposites(requirement: dict[str, Any], found: dict[str, str]) -> None:
    opposites = {"In": "NotIn", "NotIn": "In", "Exists": "DoesNotExist", "DoesNotExist": "Exists"}
    opposite = {**requirement, "operator": opposites[requirement["operator"]]}
    assert matches({"matchExpressions": [requirement]}, found) != matches({"matchExpressions": [opposite]}, found)


MASTER = NetworkEndpoint("10.0.0.1", "a", {"role": "master"}, {("control", "TCP"): 7070})
WORKER = NetworkEndpoint("10.0.0.2", "a", {"role": "worker"})
STRANGER = NetworkEndpoint("10.0.1.2", "b", {"role": "worker"})
OUTSIDE = NetworkEndpoint("192.0.2.7")


def admits(peer: dict[str, Any], source: NetworkEndpoint) -> bool:
    return allowed(AttemptedConnection(source, MASTER, 7070), policy(ingress=[{"from": [peer]}]))


def test_a_pod_selector_alone_is_of_the_policys_namespace() -> None:
    worker = {"podSelector": {"matchLabels": {"role": "worker"}}}
    assert admits(worker, WORKER)
    assert not admits(worker, STRANGER)
    assert not admits(worker, OUTSIDE)


def test_both_selectors_in_one_peer_must_match_and_two_peers_are_alternatives() -> None:
    y = {"namespaceSelector": {"matchLabels": {"team": "y"}}}
    master = {"podSelector": {"matchLabels": {"role": "master"}}}
    assert admits(y, STRANGER)
    assert not admits({**y, **master}, STRANGER)
    tried = AttemptedConnection(STRANGER, MASTER, 7070)
    assert allowed(tried, policy(ingress=[{"from": [y, master]}]))


def test_an_empty_namespace_selector_is_every_pod_and_nothing_outside() -> None:
    assert admits({"namespaceSelector": {}}, STRANGER)
    assert not admits({"namespaceSelector": {}}, OUTSIDE)
    assert admits({"ipBlock": {"cidr": "192.0.2.0/24"}}, OUTSIDE)


def test_a_named_port_is_the_targets() -> None:
    def reaches(number: int, **asked: Any) -> bool:
        return allowed(AttemptedConnection(WORKER, MASTER, number), policy(ingress=[{"ports": [asked]}]))

    assert reaches(7070, port="control")
    assert not reaches(7071, port="control")
    assert not reaches(7070, port="control", protocol="UDP")
    assert not reaches(7070, port="bulk")
    egress = policy(policyTypes=["Egress"], egress=[{"ports": [{"port": "control"}]}])
    assert allowed(AttemptedConnection(WORKER, MASTER, 7070), egress)
    assert not allowed(AttemptedConnection(WORKER, OUTSIDE, 7070), egress)


@_PATIENT
@given(ports, ports, ports)
def test_a_range_of_ports_has_both_its_ends(one: int, other: int, port: int) -> None:
    first, last = sorted((one, other))
    ranged = policy(ingress=[{"ports": [{"port": first, "endPort": last}]}])
    assert allowed(AttemptedConnection(WORKER, MASTER, port), ranged) == (first <= port <= last)
    assert allowed(AttemptedConnection(WORKER, MASTER, first), ranged)
    assert allowed(AttemptedConnection(WORKER, MASTER, last), ranged)


def test_a_refusal_says_which_end_refuses() -> None:
    deny = policy(policyTypes=["Ingress"])
    verdict = network(deny).verdict(AttemptedConnection(WORKER, MASTER, 7070))
    assert (verdict.allowed, verdict.reason) == (False, "no Ingress in p")
