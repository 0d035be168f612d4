"""What a contributor reads first: its links lead somewhere, and the make targets that pages name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from support.doc_commands import PAGES, ROOT

pytestmark = pytest.mark.install

PROJECT = [ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("page", [*PROJECT, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_make_target_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"(?:`|^\$ |^)make ((?:[a-z][a-z0-9-]*(?: (?=[a-z]))?)+)(?=`| [A-Z]|$)", text, re.MULTILINE)
    assert {target for targets in named for target in targets.split()} <= TARGETS


@pytest.mark.parametrize("page", PROJECT, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\((?!https://)([^)]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        assert (ROOT / path).exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in headings}


def test_every_issue_form_asks_for_something() -> None:
    forms = [path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]
    assert len(forms) == 3
    for form in forms:
        content = YAML(typ="safe").load(form)
        assert content["name"], form.name
        assert content["description"], form.name
        fields = [field for field in content["body"] if field["type"] != "markdown"]
        assert any(field.get("validations", {}).get("required") for field in fields), form.name
        assert all(field["id"] and field["attributes"]["label"] for field in fields), form.name


@pytest.mark.parametrize("page", [*PROJECT, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_wrapped_at_100_columns(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if text.startswith("<!-- Written by `make reference`"):
        return
    prose = re.sub(r"^ *```.*?^ *```", lambda fence: "\n" * fence[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    # Rows of tables, headings, HTML, images and messages in quotes stand on one line.
    unwrapped = re.compile(r"\s*([|#<>]|!\[)")
    too_long = [
        (number, line)
        for number, line in enumerate(prose.splitlines(), 1)
        if len(line) > 100 and " " in line.strip() and not unwrapped.match(line)
    ]
    assert too_long == []


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150
