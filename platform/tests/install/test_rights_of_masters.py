"""Masters may delete Secrets, to take their token along, only where a policy keeps them to it."""

from __future__ import annotations

from typing import Any

from install.chart_tools import CHART, rendered

MASTER = "edl-job-master"


def of_secrets(*options: str) -> list[dict[str, Any]]:
    """The rules about Secrets in the role of masters."""
    objects = rendered(CHART, *options)
    (role,) = [each for each in objects if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", MASTER)]
    return [rule for rule in role["rules"] if "secrets" in rule["resources"]]


def test_with_the_policies_they_may_delete_and_nothing_else() -> None:
    assert of_secrets() == [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["delete"]}]


def test_without_the_policies_nothing_is_granted() -> None:
    assert of_secrets("--set", "admission.enabled=false") == []
