"""Every sentence with which the charts refuse values, read off their templates, with gaps as in ``reasons_in_code``."""

from __future__ import annotations

import re
from pathlib import Path

from install.reasons_in_code import GAP, ReasonTemplate
from install.source_modules import PACKAGE

HELM = PACKAGE.parents[1] / "helm"
_CHECKS = sorted(HELM.glob("edl/templates/_checks*.tpl"))
"""Sentences stand there as lines of their own."""
_ACTION = re.compile(r"\{\{.*?\}\}")
_COMMENT = re.compile(r"\{\{-?\s*/\*.*?\*/\s*-?\}\}", re.DOTALL)
_FAIL = re.compile(r'fail (?:\(printf )?"((?:[^"\\]|\\.)*)"')
_VERB = re.compile(r"%[qdsv]")


def refusals() -> list[ReasonTemplate]:
    """All of them, chart by chart."""
    reasons = [reason for path in _CHECKS for reason in _sentences(path)]
    for path in sorted(HELM.glob("*/templates/*")):
        reasons += [
            ReasonTemplate(_VERB.sub(GAP, sentence).replace("`", "'"), _named(path)) for sentence in _failures(path)
        ]
    return reasons


def _sentences(path: Path) -> list[ReasonTemplate]:
    text = _COMMENT.sub("", path.read_text(encoding="utf-8"))
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("{{")]
    return [ReasonTemplate(_ACTION.sub(GAP, line).replace("`", "'"), _named(path)) for line in lines]


def _failures(path: Path) -> list[str]:
    return _FAIL.findall(path.read_text(encoding="utf-8")) if path.is_file() else []


def _named(path: Path) -> str:
    return path.relative_to(HELM.parent).as_posix()
