"""The page on troubleshooting has every reason that code and charts can give, and none that it cannot."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest
from install.reasons_in_code import EDL, RETURNING, TABLES, TEXT_OF, ReasonTemplate, read, reasons
from install.refusals_in_charts import refusals

PAGE = Path(__file__).resolve().parents[3] / "docs/troubleshooting.md"
QUOTED = re.compile(r"^> `(.+)`$", re.MULTILINE)


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def all_reasons() -> list[ReasonTemplate]:
    return [*reasons(), *refusals()]


def test_every_reason_of_code_and_charts_is_on_the_page(page, all_reasons):
    quoted = set(QUOTED.findall(page))
    assert len(reasons()) > 70
    assert len(refusals()) > 20
    missing = [reason for reason in all_reasons if reason.text not in quoted]
    stale = quoted - {reason.text for reason in all_reasons}
    assert [f"{reason.where}: {reason.text!r}{nearest(reason.text, stale)}" for reason in missing] == []


def nearest(text: str, stale: set[str]) -> str:
    """What the page may have in its place."""
    close = difflib.get_close_matches(text, sorted(stale), n=1, cutoff=0.4)
    return f" where the page has {close[0]!r}" if close else ""


def test_the_page_has_no_reason_that_nothing_can_give(page, all_reasons):
    known = {reason.text for reason in all_reasons}
    assert [text for text in QUOTED.findall(page) if text not in known] == []


def test_each_section_with_reasons_says_why_and_what_to_do(page):
    """In a paragraph each; of somebody else's reason, which follows the quoted words, nothing more is known."""
    for section in re.split(r"\n(?=##)", page):
        quoted = QUOTED.findall(section)
        paragraphs = [each for each in section.split("\n\n") if each.strip() and each.lstrip()[0] not in "#>"]
        passed_on = all(text.endswith(": …") for text in quoted)
        assert not quoted or len(paragraphs) >= (1 if passed_on else 2), section


MODULE = """
CONSTANT = "known of the module"
_CONTAINER_PROBLEMS = {"Broken": ("in a table", "mend it", True)}

def each_way(name, job):
    yield JobFinding(name, f"an argument of {name}")
    text = f"through a variable of {name}"
    yield PreflightFinding(text + ", and more")
    yield DoctorFinding(Level.FAIL, name, f"a constant: {CONSTANT}")
    yield DoctorFinding(Level.OK, name, "nothing is wrong")
    yield JobFinding(name, job.reason)

class Core:
    def act(self, role):
        self.end_job("Failed", "the core ends it")
        self.emit(WarningRaised(f"{role.name}-{role.index} is told of"))
        self.emit(Progressed("nothing to read"))
"""


def test_reasons_are_found_however_they_are_made():
    """As an argument, in a table, through a variable, a constant of the module, and in the core."""
    assert {reason.text for reason in read(MODULE, "module.py")} == {
        "in a table",
        "an argument of …",
        "through a variable of …, and more",
        "a constant: known of the module",
        "the core ends it",
        "…-… is told of",
    }


def test_every_way_to_make_a_reason_is_in_use():
    """Or a name in ``reasons_in_code`` is that of nothing, and what took its place is not read."""
    code = "".join(path.read_text(encoding="utf-8") for path in EDL.rglob("*.py"))
    ways = [
        *(f"{name}(" for name in TEXT_OF),
        *(f"{name} =" for name in TABLES),
        *(f"def {name}(" for name in RETURNING),
    ]
    assert [way for way in ways if way not in code] == []
