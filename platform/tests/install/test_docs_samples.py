"""What pages show as printed is what the code prints of the same."""

from __future__ import annotations

import re

from ruamel.yaml import YAML
from support.doc_commands import DOCS
from support.text_keys import missing_keys

from edl.ops.pod_problems import parse_scheduler_message

SAMPLE = re.compile(
    r"^worker-\d+, worker-\d+: (?P<text>.+)\n  -> (?P<remedy>.+)\n     (?P<said>0/(?P<nodes>\d+) .+)$", re.M
)


def test_why_on_kind_is_what_the_scheduler_says_of_that_cluster() -> None:
    """One node of the example is a control plane, which takes no jobs."""
    shown = SAMPLE.search((DOCS / "tutorials" / "on-kind.md").read_text(encoding="utf-8"))
    assert shown is not None
    problem = parse_scheduler_message(shown["said"])
    for text in (problem.text, shown["text"]):
        assert not missing_keys(text, "1 of 3 nodes", "2 of 3 nodes", "cpu")
    for remedy in (problem.remedy, shown["remedy"]):
        assert not missing_keys(remedy, "pod.tolerations", "resources.cpu")
    nodes = YAML(typ="safe").load((DOCS / "examples" / "kind.yaml").read_text(encoding="utf-8"))["nodes"]
    workers = [node for node in nodes if node["role"] == "worker"]
    assert int(shown["nodes"]) == len(nodes)
    assert f"{len(workers)} Insufficient cpu" in shown["said"]
    assert f"{len(nodes) - len(workers)} node(s) had untolerated taint" in shown["said"]
