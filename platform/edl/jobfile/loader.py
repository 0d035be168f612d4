"""A job file as a JobSpec and back: read, override, check, convert; all mistakes of a file are told at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from edl.jobfile import consistency_rules
from edl.jobfile.document_tree import Json, Node, Place, json_tree
from edl.jobfile.job_spec import API_VERSION, JOB, JobSpec
from edl.jobfile.problems import Problem, SpecError

_BEGINNING = f"begin with:\n    apiVersion: {API_VERSION}\n    name: my-job"


Demands = Callable[[JobSpec], Iterable[consistency_rules.Broken]]
"""Rules that one use of a job adds to those of every use."""


@dataclass(frozen=True, slots=True)
class Count:
    """A number of the command line that has an option of its own.

    Attributes:
        option: as it was typed, ``--workers 3``: it stands in messages in the place of file and line.
        field: that it sets, by its path.
        number: the value.
        lowers: a field that may not be higher, and becomes as low where it is.
    """

    option: str
    field: str
    number: int
    lowers: str = ""


@dataclass(frozen=True, slots=True)
class _Use:
    """What a file is read for, besides its text."""

    overrides: tuple[str, ...] = ()
    counts: tuple[Count, ...] = ()
    required: tuple[str, ...] = ()
    demands: Demands = lambda _: ()

    def broken(self, spec: JobSpec) -> Iterator[consistency_rules.Broken]:
        yield from consistency_rules.broken(spec, self.required)
        yield from self.demands(spec)


def load(
    path: str | os.PathLike[str],
    overrides: Iterable[str] = (),
    *,
    counts: Iterable[Count] = (),
    required: Iterable[str] = (),
    demands: Demands = lambda _: (),
) -> JobSpec:
    """The job of a YAML or JSON file.

    Args:
        path: the file; a name that ends in .json is read by a faster parser.
        overrides: ``FIELD=VALUE`` each, as given to ``--set``, applied in order.
        counts: what other options say; they come after the overrides.
        required: sets of records that this use of the job needs: ``training``, ``validation``, ``prediction``. Without
            any, the job must have something to train on or to predict. What the strategy of training demands does not
            count where ``prediction`` alone is needed.
        demands: more rules, such as those of a cluster; what they find gets its line like any mistake.

    Raises:
        SpecError: a BadInputError with every problem of the file, each with file, line and path in the document.
    """
    source = os.fspath(path)
    text = _text(Path(path))
    root = json_tree(text, source) if source.endswith(".json") else None
    use = _Use(tuple(overrides), tuple(counts), tuple(required), demands)
    spec = None if root is None else _job(root, use, [])
    return spec or _load_yaml(text, source, use)


def loads(text: str, source: str) -> JobSpec:
    """The job of a text that ``dump`` gave as JSON.

    Args:
        source: what it is called in messages.

    Raises:
        SpecError: it is no such text.
    """
    root = json_tree(text, source)
    spec = None if root is None else _job(root, _Use(), [])
    return spec or _load_yaml(text, source, _Use())


def place_of(field: str, path: str | os.PathLike[str], overrides: Iterable[str] = ()) -> str:
    """File and line, or the option, that gave a field its value: for what is found wrong with it after it was loaded.

    Args:
        field: its path, such as ``data.training``.
        path: of a file that ``load`` took with the same ``overrides``.
    """
    from edl.jobfile.yaml_parser import parse_yaml

    source = os.fspath(path)
    root = parse_yaml(_text(Path(path)), source, [])
    return source if root is None else _nearest_node(_overridden(root, tuple(overrides), []), field).where


def dump(spec: JobSpec) -> dict[str, Json]:
    """All fields as JSON values, defaults included: what load reads back as an equal spec."""
    return JOB.write(spec)


def changes(old: JobSpec, new: JobSpec) -> list[tuple[str, Json, Json]]:
    """The fields in which two specs differ: path, old value, new value; in the order of the fields."""
    return list(_differences("", dump(old), dump(new)))


def _load_yaml(text: str, source: str, use: _Use) -> JobSpec:
    from edl.jobfile.yaml_parser import parse_yaml  # not for roles, which read JSON: its import costs 40 ms

    # YAML contains JSON: this is also where mistakes in a JSON file get their lines
    problems: list[Problem] = []
    root = parse_yaml(text, source, problems)
    if root is None and not problems:
        problems.append(Problem(source, "", "is empty, must be a mapping of fields", _BEGINNING))
    spec = None if root is None else _job(root, use, problems)
    if spec is None:
        raise SpecError(sorted(problems, key=_line))
    return spec


def _job(root: Node, use: _Use, problems: list[Problem]) -> JobSpec | None:
    """The job of a tree; None when ``problems`` says why there is none."""
    root = _counted(_overridden(root, use.overrides, problems), use.counts, problems)
    spec: JobSpec | None = JOB.read(root, Place("", problems))
    problems.extend(_problem(root, rule) for rule in (use.broken(spec) if spec is not None else ()))
    return None if problems else spec


def _problem(root: Node, rule: consistency_rules.Broken) -> Problem:
    """A broken rule with its place, and with the option that the other field is from: no line of a file shows that."""
    where, hint = _nearest_node(root, rule.path).where, rule.hint
    other = _node(root, rule.other)
    if other and other.where.startswith("--") and other.where != where:
        source = f"is from {other.where}"
        hint = f"{hint}, which {source}" if hint else f"{rule.other} {source}"
    return Problem(where, rule.path, rule.message, hint)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError([Problem(str(path), "", "not a text file in UTF-8")]) from error
    except FileNotFoundError as error:
        raise SpecError([Problem(str(path), "", "no such file")]) from error
    except IsADirectoryError as error:
        inside = sorted(file.name for file in path.glob("*.y*ml"))
        hint = f"it contains: {', '.join(inside)}" if inside else None
        raise SpecError([Problem(str(path), "", "is a directory, must be a job file", hint)]) from error
    except OSError as error:
        raise SpecError([Problem(str(path), "", f"cannot be read: {error.strerror}")]) from error


def _overridden(root: Node, overrides: tuple[str, ...], problems: list[Problem]) -> Node:
    if overrides:
        from edl.jobfile.overrides import override  # reads YAML

        for assignment in overrides:
            root = override(root, assignment, problems)
    return root


def _counted(root: Node, counts: tuple[Count, ...], problems: list[Problem]) -> Node:
    for count in counts:
        from edl.jobfile.overrides import assign  # reads YAML

        leaf = Node(count.number, count.option)
        root = assign(root, count.field, leaf, problems)
        least = _node(root, count.lowers)
        if least and isinstance(least.value, int | float) and least.value > count.number:
            root = assign(root, count.lowers, leaf, problems)
    return root


def _line(problem: Problem) -> int:
    line = re.search(r":(\d+)$", problem.where)
    return int(line[1]) if line else 0


def _node(root: Node, path: str) -> Node | None:
    """The node at a path of names; None where there is none."""
    node: Node | None = root
    for step in path.split("."):
        node = node.value.get(step) if node and isinstance(node.value, dict) else None
    return node


def _nearest_node(root: Node, path: str) -> Node:
    """The node at a path, or the innermost one on the way to it that exists."""
    node = root
    for step in re.findall(r"[^.\[\]]+", path):
        if isinstance(node.value, list):
            node = node.value[int(step)]
        elif isinstance(node.value, dict) and step in node.value:
            node = node.value[step]
    return node


def _differences(path: str, old: Json, new: Json) -> Iterator[tuple[str, Json, Json]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys([*old, *new]):
            yield from _differences(f"{path}.{name}" if path else name, old.get(name), new.get(name))
    elif old != new:
        yield path, old, new
