"""The reference pages are what the program says today, leave nothing out, and their examples work."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edl.api.job_spec import JobSpec
from edl.cli.app import COMMANDS
from edl.jobfile.json_schema import build_job_schema
from edl.jobfile.loader import load_job_file

DOCS = Path(__file__).resolve().parents[3] / "docs"
STALE = "docs/reference/{} is stale: make reference"


@pytest.fixture(scope="module", autouse=True)
def _generator_on_path() -> Iterator[None]:
    """Scripts of a folder import each other by name, as they do when they are run."""
    sys.path.insert(0, str(DOCS / "generate"))
    yield
    sys.path.remove(str(DOCS / "generate"))


@pytest.fixture
def commands() -> ModuleType:
    import commands_page

    return commands_page


def test_the_committed_job_reference_is_fresh():
    import jobspec_page

    assert (DOCS / "reference/jobspec.md").read_text() == jobspec_page.page(), STALE.format("jobspec.md")


def test_the_committed_command_reference_is_fresh(commands):
    assert (DOCS / "reference/cli.md").read_text() == commands.page(), STALE.format("cli.md")


def test_the_committed_reference_of_elasticdls_flags_is_fresh():
    import elasticdl_page

    assert (DOCS / "reference/elasticdl.md").read_text() == elasticdl_page.page(), STALE.format("elasticdl.md")


def test_the_committed_tables_of_the_migration_page_are_fresh():
    import migration_tables

    text = migration_tables.PAGE.read_text(encoding="utf-8")
    assert text == migration_tables.page(text), "docs/migrating-from-elasticdl.md is stale: make reference"


def test_every_field_of_the_schema_has_its_row():
    text = (DOCS / "reference/jobspec.md").read_text()
    paths = list(leaves(build_job_schema()))
    assert len(paths) > 50
    assert [path for path in paths if f"| `{path}` |" not in text] == []


def leaves(schema: Any, path: str = "") -> Iterator[str]:
    """The paths of all fields that are no sections, read off the JSON Schema alone."""
    choices = (schema, *schema.get("anyOf", ()))
    sections = [(choice, "") for choice in choices if "properties" in choice]
    sections += [(choice["items"], "[]") for choice in choices if "properties" in choice.get("items", {})]
    for section, mark in sections:
        for name, inner in section["properties"].items():
            yield from leaves(inner, f"{path}{mark}.{name}" if path else name)
    if not sections:
        yield path


def test_every_command_has_its_section_with_an_example(commands):
    text = (DOCS / "reference/cli.md").read_text()
    single_commands = [entry for entry in commands.entries() if not entry.subcommands]
    assert {entry.name.split()[0] for entry in single_commands} == set(COMMANDS)
    assert [entry.name for entry in single_commands if f"# edl {entry.name}\n" not in text] == []
    assert [entry.name for entry in single_commands if not commands.EXAMPLES.get(entry.name)] == []


def test_the_page_has_the_options_that_the_command_takes(commands):
    text = (DOCS / "reference/cli.md").read_text()
    for entry in commands.entries():
        section = text.partition(f"# edl {entry.name}\n")[2].partition("\n## ")[0]
        names = {name for parameter in entry.command.params for name in parameter.opts if name.startswith("--")}
        assert {name for name in names if name not in section} == set(), entry.name


def test_arguments_are_shown_by_a_name_of_their_own(commands):
    names = [
        (entry.name, parameter.metavar)
        for entry in commands.entries()
        for parameter in entry.command.params
        if parameter.param_type_name == "argument"
    ]
    assert len(names) > 20
    assert [name for name in names if name[1] is None or name[1].islower() or name[1].endswith("...")] == []


def test_default_sizes_are_written_with_their_units():
    text = (DOCS / "reference/jobspec.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if "| bytes |" in line]
    assert len(rows) > 5
    assert [row[1] for row in rows if row[4].strip(" `").isdigit() and int(row[4].strip(" `")) >= 1024] == []


def test_examples_parse_with_the_commands_own_options(commands):
    entries = {entry.name: entry.command for entry in commands.entries()}
    assert set(commands.EXAMPLES) <= set(entries)
    for name, lines in commands.EXAMPLES.items():
        for line, _ in lines:
            words = shlex.split(line.partition(" > ")[0])
            assert words[: 1 + len(name.split())] == ["edl", *name.split()]
            entries[name].make_context(f"edl {name}", words[1 + len(name.split()) :])


def test_an_example_with_a_wrong_option_would_be_found(commands):
    command = next(entry.command for entry in commands.entries() if entry.name == "scale")
    with pytest.raises(Exception, match="No such option"):
        command.make_context("edl scale", ["mnist", "--most", "8"])


def loaded(tmp_path: Path, text: str) -> JobSpec:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    return load_job_file(file)


def test_examples_of_job_files_load(tmp_path):
    import jobspec_examples

    assert loaded(tmp_path, jobspec_examples.MINIMAL).name == "mnist"
    assert loaded(tmp_path, jobspec_examples.WHOLE).workers.max == 8
    lines = jobspec_examples.MINIMAL.splitlines(keepends=True)
    for field, text in jobspec_examples.EXAMPLES.items():
        rest = "".join(line for line in lines if not line.startswith(f"{field}:"))
        assert loaded(tmp_path, rest + text) != loaded(tmp_path, "".join(lines)), field
