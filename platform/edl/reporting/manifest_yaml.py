"""Manifests as YAML for people and for kubectl."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter

_PLAIN_SCALAR = re.compile(r"[A-Za-z/][-A-Za-z0-9./_]*(:[A-Za-z0-9][-A-Za-z0-9./_:]*)*|[0-9]+([KMGT]i|m)")
# YAML 1.1, which kubectl reads, has more words for true, false and null than YAML 1.2
_YAML_KEYWORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})


class _ManifestRepresenter(SafeRepresenter):
    """Writes text such that YAML 1.1 and 1.2 both read it as text, and repeats values in place of anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True

    def represent_text(self, text: str) -> ScalarNode:
        plain = _PLAIN_SCALAR.fullmatch(text) and text.lower() not in _YAML_KEYWORDS
        lines = text.endswith("\n") and text.replace("\n", "").isprintable()
        style = None if plain else "|" if lines else '"'
        node: ScalarNode = self.represent_scalar("tag:yaml.org,2002:str", text, style=style)
        return node


_ManifestRepresenter.add_representer(str, _ManifestRepresenter.represent_text)


def manifests_yaml(manifests: Iterable[Mapping[str, Any]]) -> str:
    """One document each, in the order of the manifests, their fields in the order of the mappings."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _ManifestRepresenter
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 2**16  # a folded line is harder to search
    out = io.StringIO()
    yaml.explicit_start = True
    yaml.dump_all(manifests, out)
    return out.getvalue()
