"""The page on troubleshooting has every reason that code and charts can give, and none that it cannot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from install.reasons_in_code import EDL, SOURCES, Reason, reasons
from install.refusals_in_charts import refusals

PAGE = Path(__file__).resolve().parents[3] / "docs/troubleshooting.md"
QUOTED = re.compile(r"^> `(.+)`$", re.MULTILINE)


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def found() -> list[Reason]:
    return [*reasons(), *refusals()]


def test_every_reason_of_code_and_charts_is_on_the_page(page, found):
    quoted = set(QUOTED.findall(page))
    assert len(reasons()) > 70
    assert len(refusals()) > 20
    assert [f"{reason.where}: {reason.text}" for reason in found if reason.text not in quoted] == []


def test_the_page_has_no_reason_that_nothing_can_give(page, found):
    known = {reason.text for reason in found}
    assert [text for text in QUOTED.findall(page) if text not in known] == []


def test_each_section_with_reasons_says_why_and_what_to_do(page):
    passed_on = "What follows after these words is the server's own reason"
    for section in re.split(r"\n(?=##)", page):
        if QUOTED.search(section) and passed_on not in section:
            assert "**Why.**" in section, section
            assert "**Do.**" in section, section


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("there is no PersistentVolumeClaim …", "kube/inspection/waiting.py"),
        ("its container ends again and again", "kube/inspection/waiting.py"),
        ("the name … is taken by a job of …, which has ended (…)", "kube/submission/findings.py"),
        (
            "no RoleBinding of namespace … is for the account of jobs' masters, …, without which no job can run",
            "checkup",
        ),
        ("the training data has no records", "core/phases.py"),
        ("ps-… has not answered for … s: it is replaced", "core/parameters.py"),
    ],
)
def test_reasons_are_found_however_they_are_made(text, source):
    """As an argument, in a table, through a variable, a constant of the module, and in the core."""
    assert [reason for reason in reasons() if reason.text == text and source in reason.where]


def test_no_module_makes_complaints_unseen():
    """A new module that makes Complaints, Findings or Checkups belongs to the sources."""
    makes = re.compile(r"(?<!class )\b(?:Complaint|Finding|Checkup|Warned|Wait)\(\s*[^)]")
    found = {
        path.relative_to(EDL).as_posix()
        for path in EDL.rglob("*.py")
        if makes.search(path.read_text(encoding="utf-8")) and "templates" not in path.parts
    }
    assert sorted(found - set(SOURCES)) == []
