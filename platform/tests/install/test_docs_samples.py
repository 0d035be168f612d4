"""What pages show as printed is what the code prints of the same."""

from __future__ import annotations

import re

from ruamel.yaml import YAML
from support.doc_commands import DOCS

from edl.ops.pod_problems import parse_scheduler_message

SAMPLE = re.compile(
    r"^worker-\d+, worker-\d+: (?P<text>.+)\n  -> (?P<remedy>.+)\n     (?P<said>0/(?P<nodes>\d+) .+)$", re.M
)


def test_why_on_kind_is_what_the_scheduler_says_of_that_cluster() -> None:
    """One node of the example is a control plane, which takes no jobs."""
    shown = SAMPLE.search((DOCS / "tutorials" / "on-kind.md").read_text(encoding="utf-8"))
    assert shown is not None
    wait = parse_scheduler_message(shown["said"])
    assert (wait.text, wait.remedy) == (shown["text"], shown["remedy"])
    nodes = YAML(typ="safe").load((DOCS / "examples" / "kind.yaml").read_text(encoding="utf-8"))["nodes"]
    workers = [node for node in nodes if node["role"] == "worker"]
    assert int(shown["nodes"]) == len(nodes)
    assert f"{len(workers)} Insufficient cpu" in shown["said"]
    assert f"{len(nodes) - len(workers)} node(s) had untolerated taint" in shown["said"]
