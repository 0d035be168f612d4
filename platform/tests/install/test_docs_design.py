"""Pages about the code name files and modules that exist; 0001 has every module of the core, 0002 every entry."""

from __future__ import annotations

import ast
import configparser
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from install.source_modules import modules
from support.doc_commands import DOCS, ROOT

from edl.api.journal_entries import ENTRY_CLASSES

pytestmark = pytest.mark.install

PACKAGE = ROOT / "platform/edl"
LAYERS = DOCS / "design/0001-layers.md"
WALKS_BEFORE = DOCS / "design/0009-walks-before.md"
"""Names the files of an old commit."""

PAGES = [
    *(page for page in sorted((DOCS / "design").glob("*.md")) if page != WALKS_BEFORE),
    *sorted((DOCS / "concepts").glob("*.md")),
    *sorted((DOCS / "reference").glob("*.md")),
    DOCS / "glossary.md",
    DOCS / "testing.md",
    ROOT / "CONTRIBUTING.md",
]
ROOMS = sorted(folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists())
FOLDERS = "bench|docs|e2e|edl|helm|images|kustomize|model_zoo|platform|tests"
SUFFIXES = "cpp|hpp|md|proto|py|pyi|txt"


def _paths(text: str) -> set[str]:
    """Files in backquotes: by their suffix, or below a folder of the repository."""
    quoted = re.findall(r"`([^`\s]+)`", text)
    pattern = rf"(?:(?:{FOLDERS})/)[\w./*-]+|[\w./*-]+\.(?:{SUFFIXES})"
    return {token for token in quoted if re.fullmatch(pattern, token)}


def _exists(path: str, page: Path) -> bool:
    if "/" not in path:  # a bare name: the text says in which folder
        below = (file for folder in ("platform", "e2e", "docs") for file in (ROOT / folder).rglob(path))
        return (ROOT / path).exists() or any(below)
    if path.startswith("e2e/artifacts/"):  # made by tests
        return True
    bases = (ROOT, ROOT / "platform", PACKAGE, page.parent)
    return any(existing for base in bases for name in (path, f"{path}.py") for existing in base.glob(name.rstrip("/")))


def _is_module_or_name(dotted: str) -> bool:
    path = PACKAGE
    parts = dotted.split(".")[1:]
    for number, part in enumerate(parts):
        source = next((file for end in (".py", ".pyi") if (file := path / f"{part}{end}").is_file()), None)
        if source is not None:
            text = source.read_text(encoding="utf-8")
            return all(re.search(rf"\b{name}\b", text) for name in parts[number + 1 :])
        if not (path / part).is_dir():
            init = path / "__init__.py"
            return init.is_file() and bool(re.search(rf"\b{part}\b", init.read_text(encoding="utf-8")))
        path /= part
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = _paths(page.read_text(encoding="utf-8"))
    assert sorted(path for path in named if not _exists(path, page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"`(edl(?:\.\w+)+)`", page.read_text(encoding="utf-8")))
    assert sorted(name for name in named if not _is_module_or_name(name)) == []


def test_the_glossary_names_what_stands_in_a_file() -> None:
    text = " ".join((DOCS / "glossary.md").read_text(encoding="utf-8").split())
    named = re.findall(r"`(\w+)(?:\.\w+)?` in `(\w+/\w+\.py)`", text)
    assert len(named) > 15
    assert [(name, file) for name, file in named if not re.search(rf"\b{name}\b", (PACKAGE / file).read_text())] == []


WALKS = (DOCS / "design" / "0009-walks-after.md").read_text(encoding="utf-8")
REDESIGN = (DOCS / "design" / "0009-the-redesign.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class WalkStep:
    """A numbered line of a walk: a file, the names in it, a colon and what happens there."""

    file: str
    names: Sequence[str]
    text: str
    is_asked: bool
    """It begins with a question mark: the file is not on the main road."""


@cache
def walk_steps() -> Sequence[Sequence[WalkStep]]:
    """The steps of each walk; a numbered line that is no step with one file is an error."""
    return [_parse_steps(walk.partition("\n")[2]) for walk in re.split(r"^## ", WALKS, flags=re.MULTILINE)[1:]]


def _parse_steps(walk: str) -> Sequence[WalkStep]:
    lines = re.findall(r"^(\d+)\.\s+(.*?)(?=^\d+\. |\Z)", walk, re.MULTILINE | re.DOTALL)
    assert [int(number) for number, _ in lines] == list(range(1, len(lines) + 1))
    matches = [
        re.match(r"(\?\s+)?`([\w/]+\.py)`((?:,?\s+`[\w.]+`)+):(.*)", line, re.DOTALL) or line for _, line in lines
    ]
    assert [line for line in matches if isinstance(line, str)] == []
    return [
        WalkStep(match[2], re.findall(r"`([\w.]+)`", match[3]), match[4], match[1] is not None)
        for match in matches
        if not isinstance(match, str)
    ]


def test_the_walks_name_what_a_file_defines() -> None:
    steps = [step for walk in walk_steps() for step in walk]
    assert len(steps) > 200
    wrong = [
        (step.file, name)
        for step in steps
        for name in step.names
        if not all(_defines((PACKAGE / step.file).read_text(encoding="utf-8"), part) for part in name.split("."))
    ]
    assert wrong == []


@dataclass(frozen=True)
class WalkCounts:
    """Files on the main road and in all, forms, package changes on the main road and in all."""

    main_files: int
    all_files: int
    forms: int
    main_changes: int
    all_changes: int


def _count_walk(steps: Sequence[WalkStep]) -> WalkCounts:
    """Count the steps of one walk by the rules of 0009."""
    files, main = [step.file for step in steps], [step.file for step in steps if not step.is_asked]
    marks = sum(step.text.partition("Form:")[2].count("**") for step in steps)
    return WalkCounts(len(set(main)), len(set(files)), marks // 2, _count_changes(main), _count_changes(files))


def _count_changes(files: Sequence[str]) -> int:
    rooms = [file.partition("/")[0] for file in files]
    return sum(one != other for one, other in pairwise(rooms))


def test_the_counts_of_the_walks_are_those_of_their_steps() -> None:
    """In the appendix before each walk, and in the table of 0009."""
    number = r"(\d+)"
    files = rf"{number} files on the main road, {number} in all; {number} forms; "
    stated_counts = files + rf"{number} package changes \({number} in all\)"
    counts = [_count_walk(steps) for steps in walk_steps()]
    stated = [re.search(stated_counts, " ".join(walk.split())) for walk in re.split(r"^## ", WALKS, flags=re.MULTILINE)]
    assert [WalkCounts(*map(int, match.groups())) for match in stated if match] == counts
    rows = [
        int(now)
        for now in re.findall(r"^\| .*\| (?:files|forms|package).* \| \d+ \| (\d+) \| \d+ \|$", REDESIGN, re.MULTILINE)
    ]
    totals = [sum(astuple(walk)[place] for walk in counts) for place in range(5)]
    assert rows == [value for walk in counts for value in astuple(walk)] + totals


def test_0009_has_the_number_of_different_files_in_all_walks() -> None:
    files = {step.file for walk in walk_steps() for step in walk}
    stated = re.search(r"different files, and pass (\d+) now", " ".join(REDESIGN.split()))
    assert stated is not None
    assert int(stated[1]) == len(files)


def _defines(source: str, name: str) -> bool:
    return bool(
        re.search(
            rf"\b(?:def|class) {name}\b|^(?:from .* import )?[\w, ]*\b{name}\b[\w, ]*(?:[:=]|$)", source, re.MULTILINE
        )
    )


def test_the_notes_name_files() -> None:
    """So that a change of the pages' form does not make the tests above empty."""
    assert len(set[str]().union(*(_paths(page.read_text(encoding="utf-8")) for page in PAGES))) > 60


def test_the_layers_are_those_that_are_checked() -> None:
    """The diagram of rooms, and the rooms that have layers of their own with their modules, in this order."""
    text = LAYERS.read_text(encoding="utf-8")
    checked = configparser.ConfigParser()
    checked.read_string((ROOT / ".importlinter").read_text(encoding="utf-8"))
    layers = {
        section["containers"]: [re.findall(r"\w+", line) for line in section["layers"].strip().splitlines()]
        for section in checked.values()
        if section.get("type") == "layers"
    }
    diagram = text.partition("```\n")[2].partition("```")[0]
    assert [re.findall(r"\w+", line) for line in diagram.splitlines()] == layers.pop("edl")
    listed = " ".join(text.partition("- **Layers inside ")[2].partition(".**")[0].split())
    assert {f"edl.{name}" for name in re.findall(r"`([\w.]+)`", listed)} == set(layers)
    chains = " ".join(text.partition("## How the other rooms are split")[2].partition("## How `core`")[0].split())
    for room, chain in re.findall(r"- \*\*`([\w.]+)`\*\*: ((?:(?!- \*\*).)+)", chains):
        rows = {name: row for row, names in enumerate(layers[f"edl.{room}"]) for name in names}
        steps = [[rows[name] for name in re.findall(r"`(\w+)`", step)] for step in chain.split("→")]
        wrong = [(one, other) for one, other in pairwise(steps) if max(one) >= min(other)]
        assert (room, wrong) == (room, [])


def test_the_layers_have_every_room_and_every_module_of_the_core() -> None:
    rooms, _, core = LAYERS.read_text(encoding="utf-8").partition("## How `core` is split")
    assert sorted(re.findall(r"^\| `(\w+)` \|", rooms, re.MULTILINE)) == ROOMS
    assert sorted(name for row in _core_rows(core) for name in row) == sorted(
        module.stem for module in (PACKAGE / "core").glob("*.py") if module.stem != "__init__"
    )


def test_a_module_of_the_core_imports_only_from_its_row_of_0001_and_the_rows_above() -> None:
    rows = _core_rows(LAYERS.read_text(encoding="utf-8").partition("## How `core` is split")[2])
    row_of = {name: number for number, row in enumerate(rows) for name in row}
    wrong = [(name, other) for name in row_of for other in _imported_core_modules(name) if row_of[other] > row_of[name]]
    assert wrong == []


def _core_rows(section: str) -> Sequence[Sequence[str]]:
    """Names of the modules in each row of the table."""
    return [re.findall(r"`(\w+)`", row) for row in re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)]


def _imported_core_modules(name: str) -> set[str]:
    (nodes,) = (module.nodes for module in modules() if module.name == f"core/{name}.py")
    imports = [(node.module or "", node.names) for node in nodes if isinstance(node, ast.ImportFrom)]
    single = {module.split(".")[2] for module, _ in imports if module.startswith("edl.core.")}
    return single | {alias.name for module, names in imports if module == "edl.core" for alias in names}


@cache
def imported_rooms() -> Mapping[str, set[str]]:
    """Rooms that each room imports, also inside functions and for types only; not itself."""
    rooms = defaultdict[str, set[str]](set)
    for module in modules():
        room = module.name.partition("/")[0]
        for node in module.nodes:
            match node:
                case ast.Import(names=names):
                    imported = [alias.name for alias in names]
                case ast.ImportFrom(module="edl", names=names, level=0):
                    imported = [f"edl.{alias.name}" for alias in names]
                case ast.ImportFrom(module=str(name), level=0):
                    imported = [name]
                case _:
                    continue
            rooms[room] |= {name.split(".")[1] for name in imported if name.startswith("edl.")} - {room}
    return rooms


@pytest.mark.parametrize("room", ROOMS)
def test_the_charter_of_a_room_lists_the_rooms_that_it_imports(room: str) -> None:
    (text,) = (ast.get_docstring(module.tree) or "" for module in modules() if module.name == f"{room}/__init__.py")
    listed = re.search(r"May import: (.*?)\.(?:\s|$)", text, re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"\bedl\.(\w+)", listed[1])) == imported_rooms()[room]


def test_0002_has_every_entry_of_a_journal_with_its_fields() -> None:
    text = (DOCS / "design/0002-record-accounting.md").read_text(encoding="utf-8")
    table = text.partition("| entry | fields | meaning |\n|---|---|---|\n")[2].partition("\n\n")[0]
    listed: dict[str, set[str]] = {}
    kind = ""
    for row in table.splitlines():
        entry, fields_of_entry = row.split("|")[1:3]
        kind = entry.strip(" `") or kind  # an empty cell: another form of the entry above
        names = re.findall(r"`(\w+(?:=null)?(?: \w+(?:=null)?)*)`", fields_of_entry)
        listed.setdefault(kind, set()).update(name.removesuffix("=null") for group in names for name in group.split())
    assert listed == {name: {field.name for field in fields(entry)} for name, entry in ENTRY_CLASSES.items()}
