"""Masters may not patch Secrets unless an admin lets them: by the chart's value, or by the patch in the docs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import rights_page
from install.chart_tools import CHART, KUSTOMIZE, built, rendered
from ruamel.yaml import YAML

MASTER = "edl-job-master"
RULE = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["patch"]}


def rules(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    (role,) = [each for each in found if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", MASTER)]
    return list(role["rules"])


def added(more: list[dict[str, Any]], less: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rules that one has beyond another, which has none beyond it."""
    assert all(rule in more for rule in less)
    return [rule for rule in more if rule not in less]


def test_without_being_asked_nothing_grants_it() -> None:
    assert "secrets" not in str(rules(rendered(CHART)))


def test_the_value_adds_one_rule() -> None:
    more = rules(rendered(CHART, "--set", "admission.mastersAdoptSecrets=true"))
    assert added(more, rules(rendered(CHART))) == [RULE]


def test_the_patch_of_the_docs_adds_the_same_rule(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```yaml\n(patches:.*?)```", rights_page.PAGE.read_text(), re.DOTALL)
    base = os.path.relpath(KUSTOMIZE / "base" / "cluster", tmp_path.resolve())
    with (tmp_path / "kustomization.yaml").open("w") as file:
        YAML().dump({"resources": [base], **YAML(typ="safe").load(shown)}, file)
    assert added(rules(built(tmp_path)), rules(rendered(CHART))) == [RULE]
