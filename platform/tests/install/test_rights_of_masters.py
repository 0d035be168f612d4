"""Whoever installs can keep masters from patching Secrets: by the chart's value, and by the patch in the docs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import rights_page
from install.chart_tools import CHART, KUSTOMIZE, built, rendered
from ruamel.yaml import YAML

MASTER = "edl-job-master"


def rules(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    (role,) = [each for each in found if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", MASTER)]
    return list(role["rules"])


def test_the_value_takes_one_rule_away() -> None:
    less = rules(rendered(CHART, "--set", "admission.mastersAdoptSecrets=false"))
    assert [rule for rule in rules(rendered(CHART)) if rule not in less] == [
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["patch"]}
    ]


def test_the_patch_of_the_docs_takes_the_same_rule_away(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```yaml\n(patches:.*?)```", rights_page.PAGE.read_text(), re.DOTALL)
    base = os.path.relpath(KUSTOMIZE / "base" / "cluster", tmp_path.resolve())
    with (tmp_path / "kustomization.yaml").open("w") as file:
        YAML().dump({"resources": [base], **YAML(typ="safe").load(shown)}, file)
    assert rules(built(tmp_path)) == rules(rendered(CHART, "--set", "admission.mastersAdoptSecrets=false"))
