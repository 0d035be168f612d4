"""The page on troubleshooting has a section for every reason that code and charts can give, and for no other.

A section quotes its reasons, so that users find it by the text on their screen. The quote need not be the exact
sentence: it belongs to the reason with which it shares most words.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from install.reasons_in_code import RETURNING, TABLES, TEXT_OF, ReasonTemplate, read, reasons
from install.refusals_in_charts import refusals
from install.source_modules import modules

PAGE = Path(__file__).resolve().parents[3] / "docs/troubleshooting.md"
QUOTED = re.compile(r"^> `(.+)`$", re.MULTILINE)
SAME_REASON = 0.5
"""The share of common words from which a quote can be one of a reason."""


def key_words(text: str) -> frozenset[str]:
    """The words of a reason, without case, punctuation and gaps."""
    return frozenset(re.findall(r"[a-z]+", text.lower()))


def pair_by_words(reason_texts: Iterable[str], quotes: Iterable[str]) -> dict[str, str]:
    """The quote of each reason; every quote belongs to one reason at most, the closest pairs first."""
    words = {text: key_words(text) for text in {*reason_texts, *quotes}}
    shares = [
        (len(words[text] & words[quote]) / len(words[text] | words[quote]), text, quote)
        for text in set(reason_texts)
        for quote in set(quotes)
        if words[text] & words[quote]
    ]
    pairs: dict[str, str] = {}
    paired_quotes: set[str] = set()
    for share, text, quote in sorted(shares, reverse=True):
        if share >= SAME_REASON and text not in pairs and quote not in paired_quotes:
            pairs[text] = quote
            paired_quotes.add(quote)
    return pairs


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def all_reasons() -> list[ReasonTemplate]:
    return [*reasons(), *refusals()]


def test_every_reason_of_code_and_charts_has_a_section(page, all_reasons):
    assert len(reasons()) > 70
    assert len(refusals()) > 20
    pairs = pair_by_words([reason.text for reason in all_reasons], QUOTED.findall(page))
    assert [f"{reason.where}: {reason.text!r}" for reason in all_reasons if reason.text not in pairs] == []


def test_the_page_has_no_reason_that_nothing_can_give(page, all_reasons):
    quotes = QUOTED.findall(page)
    pairs = pair_by_words([reason.text for reason in all_reasons], quotes)
    assert sorted(set(quotes) - set(pairs.values())) == []


def test_a_quote_follows_its_reason_when_words_of_it_change():
    pairs = pair_by_words(
        ["the node does not match the job's node selector or its affinity", "its image cannot be pulled"],
        ["its image cannot be read", "the node does not match the job's node selector or affinity"],
    )
    assert pairs == {
        "the node does not match the job's node selector or its affinity": (
            "the node does not match the job's node selector or affinity"
        ),
        "its image cannot be pulled": "its image cannot be read",
    }


def test_a_new_reason_has_no_quote_even_if_it_resembles_one_that_has():
    quotes = ["its image cannot be pulled"]
    assert pair_by_words(["its image cannot be pulled", "its image cannot be read"], quotes) == {
        "its image cannot be pulled": "its image cannot be pulled"
    }
    assert pair_by_words(["the disk of the node is full"], quotes) == {}


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
        end_job(self, "Failed", "the core ends it")
        self.emit(WarningRaised(f"{role.name}-{role.index} is told of"))
        self.emit(Progressed("nothing to read"))
"""


def test_reasons_are_found_however_they_are_made():
    """As an argument, in a table, through a variable, a constant of the module, and in the core."""
    assert {reason.text for reason in read(ast.parse(MODULE), "module.py")} == {
        "in a table",
        "an argument of …",
        "through a variable of …, and more",
        "a constant: known of the module",
        "the core ends it",
        "…-… is told of",
    }


def test_every_way_to_make_a_reason_is_in_use():
    """Or a name in ``reasons_in_code`` is that of nothing, and what took its place is not read."""
    code = "".join(module.text for module in modules())
    ways = [
        *(f"{name}(" for name in TEXT_OF),
        *(f"{name} =" for name in TABLES),
        *(f"def {name}(" for name in RETURNING),
    ]
    assert [way for way in ways if way not in code] == []
