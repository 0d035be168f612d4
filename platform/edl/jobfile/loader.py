"""Reads a job file into a JobSpec and writes it back. All mistakes of a file are reported at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edl.api.fields import JsonValue
from edl.api.job_spec import API_VERSION, DataSpec, JobSpec, ModelSpec
from edl.jobfile.batch_rules import check_batches
from edl.jobfile.command_rules import check_program
from edl.jobfile.database_address import CREDENTIAL_VARIABLES, check_databases
from edl.jobfile.document_tree import (
    DocumentNode,
    ReadContext,
    RuleViolation,
    SpecError,
    SpecProblem,
    parse_json_tree,
)
from edl.jobfile.job_section import JOB_SECTION
from edl.jobfile.schema_rules import check_schema
from edl.jobfile.section_type import section_fields
from edl.jobfile.source_rules import check_sources
from edl.jobfile.strategy_choice import has_own_state
from edl.jobfile.strategy_rules import check_strategy

DATA_SET_BY_TASK = {"train": "training", "evaluate": "validation", "predict": "prediction"}
"""The data set that a job works on, by ``task``."""

# --------------------------------------------------------------------------------------------------
# Rules about several fields of a JobSpec. Limits of a single field are part of its declaration.


def find_rule_violations(spec: JobSpec, required_datasets: Iterable[str] = ()) -> list[RuleViolation]:
    """The rules that ``spec`` breaks.

    Args:
        required_datasets: the data sets that the job must name: ``training``, ``validation``, ``prediction``. Without
            ``training`` nothing is trained, and the rules of the training strategy are not checked.
    """
    required_datasets = tuple(required_datasets)
    trains = "training" in required_datasets if required_datasets else spec.task == "train"
    strategy = check_strategy(spec) if trains and not has_own_state(spec) else ()
    return [
        *check_program(spec),
        *check_schema(spec),
        *check_sources(spec),
        *check_databases(spec),
        *check_batches(spec),
        *_check_datasets(spec, required_datasets),
        *_check_evaluation(spec),
        *_check_worker_limits(spec),
        *strategy,
        *_check_volume_mounts(spec),
        *_check_variables(spec),
    ]


def _check_datasets(spec: JobSpec, required: tuple[str, ...]) -> Iterator[RuleViolation]:
    # a caller that needs no particular data set, such as edl validate, still needs a job with something to do
    if not required and (spec.task != "train" or spec.command or not spec.data.prediction):
        required = (DATA_SET_BY_TASK[spec.task],)
    for name in required:
        if not getattr(spec.data, name):
            yield RuleViolation(f"data.{name}", "is missing", section_fields(DataSpec)[name].declaration.doc)


def _check_evaluation(spec: JobSpec) -> Iterator[RuleViolation]:
    if spec.train.evaluation_steps is not None and not spec.data.validation:
        message = f"found {spec.train.evaluation_steps}, but data.validation is missing"
        yield RuleViolation(
            "train.evaluation_steps", message, "give data.validation, or leave train.evaluation_steps out"
        )


def _check_worker_limits(spec: JobSpec) -> Iterator[RuleViolation]:
    if spec.workers.max < spec.workers.min:
        message = f"found {spec.workers.max}, must be at least workers.min, {spec.workers.min}"
        yield RuleViolation("workers.max", message, conflicting_field="workers.min")


def _check_variables(spec: JobSpec) -> Iterator[RuleViolation]:
    """Variables of EDL's own processes. ``edl run`` sets none of ``pod.env``, but the file may be submitted later."""
    for name in spec.pod.env:
        if name.startswith("EDL_") and name not in CREDENTIAL_VARIABLES:
            yield RuleViolation(
                f"pod.env.{name}", f"found '{name}', which EDL sets itself", "leave it out, or choose another name"
            )


def _check_volume_mounts(spec: JobSpec) -> Iterator[RuleViolation]:
    index_by_mount: dict[str, int] = {}
    for index, volume in enumerate(spec.volumes):
        mount = volume.mount.rstrip("/") or "/"
        if mount in index_by_mount:
            yield RuleViolation(
                f"volumes[{index}].mount", f"found '{volume.mount}', which volumes[{index_by_mount[mount]}] has already"
            )
        index_by_mount.setdefault(mount, index)


_MINIMAL_HEADER_HINT = f"begin with:\n    apiVersion: {API_VERSION}\n    name: my-job"


ExtraRules = Callable[[JobSpec], Iterable[RuleViolation]]
"""Additional rules of one use of a job."""


@dataclass(frozen=True, slots=True)
class NumberOption:
    """A number that was given with an option of its own, such as ``--workers 3``.

    Attributes:
        option_text: the option as it was typed; messages show it instead of file and line.
        field_path: the path of the field that it sets.
        number: the value.
        limited_field: the path of a field that must not be larger; it is lowered to ``number`` if it is.
    """

    option_text: str
    field_path: str
    number: int
    limited_field: str = ""


@dataclass(frozen=True, slots=True)
class _LoadRequest:
    """The arguments of ``load_job_file`` besides the path."""

    overrides: tuple[str, ...] = ()
    number_options: tuple[NumberOption, ...] = ()
    required_datasets: tuple[str, ...] = ()
    extra_rules: ExtraRules = lambda _: ()

    def find_violations(self, spec: JobSpec) -> Iterator[RuleViolation]:
        # a rule of both, such as that of reserved variables, counts once
        yield from dict.fromkeys((*find_rule_violations(spec, self.required_datasets), *self.extra_rules(spec)))


def load_job_file(
    path: str | os.PathLike[str],
    overrides: Iterable[str] = (),
    *,
    number_options: Iterable[NumberOption] = (),
    required_datasets: Iterable[str] = (),
    extra_rules: ExtraRules = lambda _: (),
) -> JobSpec:
    """The job of a YAML or JSON file.

    Args:
        path: the file; a name that ends in .json is read by a faster parser.
        overrides: assignments ``FIELD=VALUE``, as given to ``--set``, applied in order.
        number_options: values of other options, such as ``--workers``; applied after the overrides.
        required_datasets: the data sets that the caller needs: ``training``, ``validation``, ``prediction``. If it is
            empty, the job must have the data of its task; if it trains, prediction data will do. Without ``training``,
            the rules of the training strategy are not checked.
        extra_rules: additional rules, such as those of a cluster. Their violations are reported with a line, too.

    Raises:
        SpecError: the file is invalid; the error has every problem, each with file, line and path in the document.
    """
    source = os.fspath(path)
    text = _read_text_file(Path(path))
    root = parse_json_tree(text, source) if source.endswith(".json") else None
    use = _LoadRequest(tuple(overrides), tuple(number_options), tuple(required_datasets), extra_rules)
    return _load_json_tree(root, text, source, use)


def load_job_text(text: str, source: str) -> JobSpec:
    """Parse the JSON text of a job, as ``dump_job_spec`` writes it.

    Args:
        source: the text's name in messages.

    Raises:
        SpecError: the text is invalid.
    """
    root = parse_json_tree(text, source)
    return _load_json_tree(root, text, source, _LoadRequest())


def read_job_tree(
    root: DocumentNode, *, required_datasets: Iterable[str] = (), extra_rules: ExtraRules = lambda _: ()
) -> JobSpec:
    """The job of a tree that was made of something else than a file; see ``load_job_file``.

    Raises:
        SpecError: the tree is no valid job; the problems have the locations of its nodes.
    """
    problems: list[SpecProblem] = []
    spec = _read_job_spec(root, _LoadRequest((), (), tuple(required_datasets), extra_rules), problems)
    if spec is None:
        raise SpecError(problems)
    return spec


def locate_field(field: str, path: str | os.PathLike[str], overrides: Iterable[str] = ()) -> str:
    """File and line, or the option, that gave a field its value: for problems that are found after loading.

    Args:
        field: the path of the field, such as ``data.training``.
        path: the file that was loaded, with the same ``overrides``.
    """
    from edl.jobfile.yaml_parser import parse_yaml

    source = os.fspath(path)
    root = parse_yaml(_read_text_file(Path(path)), source, [])
    return (
        source
        if root is None
        else _find_nearest_node(_apply_overrides(root, tuple(overrides), []), field).source_location
    )


def dump_job_spec(spec: JobSpec) -> dict[str, JsonValue]:
    """All fields as JSON values, including defaults. ``load_job_text`` reads them back as an equal spec."""
    return JOB_SECTION.write(spec)


def diff_job_specs(old: JobSpec, new: JobSpec) -> list[tuple[str, JsonValue, JsonValue]]:
    """The fields in which two specs differ, as path, old value and new value, in the order of the fields."""
    return list(_diff_values("", dump_job_spec(old), dump_job_spec(new)))


def _load_json_tree(root: DocumentNode | None, text: str, source: str, use: _LoadRequest) -> JobSpec:
    """The job of a tree that was read as JSON. Without a tree, or to find the lines of its mistakes, parse YAML."""
    problems: list[SpecProblem] = []
    spec = None if root is None else _read_job_spec(root, use, problems)
    if spec is None:
        spec = _load_yaml_text(text, source, use)
        if problems:  # JSON and YAML disagree, for example about NaN, which is text in YAML: report what JSON found
            from edl.jobfile.yaml_parser import parse_yaml

            lines = parse_yaml(text, source, []) or root
            raise SpecError([_move_to_line(problem, lines) for problem in problems])
    return spec


def _move_to_line(problem: SpecProblem, root: DocumentNode | None) -> SpecProblem:
    if root is None or problem.source_location.startswith("--"):
        return problem
    return replace(problem, source_location=_find_nearest_node(root, problem.field_path).source_location)


def _load_yaml_text(text: str, source: str, use: _LoadRequest) -> JobSpec:
    from edl.jobfile.yaml_parser import parse_yaml  # the import costs 40 ms, which roles save: they read JSON

    # YAML contains JSON, so the lines of mistakes in a JSON file are found here too
    problems: list[SpecProblem] = []
    root = parse_yaml(text, source, problems)
    if root is None and not problems:
        problems.append(SpecProblem(source, "", "is empty, must be a mapping of fields", _MINIMAL_HEADER_HINT))
    spec = None if root is None else _read_job_spec(root, use, problems)
    if spec is None:
        raise SpecError(sorted(problems, key=_line_number))
    return spec


def _read_job_spec(root: DocumentNode, use: _LoadRequest, problems: list[SpecProblem]) -> JobSpec | None:
    """The job of a tree; None if there are problems, which ``problems`` then has."""
    root = _apply_number_options(_apply_overrides(root, use.overrides, problems), use.number_options, problems)
    spec: JobSpec | None = JOB_SECTION.read(root, ReadContext("", problems))
    if spec is None:
        problems.extend(_find_missing_definition(root, problems))
    # rules compare fields, so they are checked only when every single field is valid
    problems.extend(
        _problem_from_violation(root, rule) for rule in (use.find_violations(spec) if spec is not None else ())
    )
    return None if problems else spec


def _find_missing_definition(root: DocumentNode, problems: Sequence[SpecProblem]) -> Iterator[SpecProblem]:
    """The problem of a model without definition, which a rule finds in a job without other problems."""
    model, command = _find_node(root, "model"), _find_node(root, "command")
    if model is None or command is not None or not isinstance(model.value, dict) or "definition" in model.value:
        return
    # A misspelt definition is reported once, as an unknown field.
    if not any(problem.field_path.startswith("model.") for problem in problems):
        doc = section_fields(ModelSpec)["definition"].declaration.doc
        yield SpecProblem(model.source_location, "model.definition", "is missing", doc)


def _problem_from_violation(root: DocumentNode, rule: RuleViolation) -> SpecProblem:
    """The problem of a broken rule. If an option set the conflicting field, the hint names it: no line shows that."""
    where, hint = _find_nearest_node(root, rule.field_path).source_location, rule.hint
    other = _find_node(root, rule.conflicting_field)
    if other and other.source_location.startswith("--") and other.source_location != where:
        source = f"is from {other.source_location}"
        hint = f"{hint}, which {source}" if hint else f"{rule.conflicting_field} {source}"
    return SpecProblem(where, rule.field_path, rule.message, hint)


def _read_text_file(path: Path) -> str:
    try:
        # utf-8-sig: editors on Windows write a byte order mark
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError([SpecProblem(str(path), "", "not a text file in UTF-8")]) from error
    except FileNotFoundError as error:
        raise SpecError([SpecProblem(str(path), "", "no such file")]) from error
    except IsADirectoryError as error:
        inside = sorted(file.name for file in path.glob("*.y*ml"))
        hint = f"it contains: {', '.join(inside)}" if inside else None
        raise SpecError([SpecProblem(str(path), "", "is a directory, must be a job file", hint)]) from error
    except OSError as error:
        raise SpecError([SpecProblem(str(path), "", f"cannot be read: {error.strerror}")]) from error


def _apply_overrides(root: DocumentNode, overrides: tuple[str, ...], problems: list[SpecProblem]) -> DocumentNode:
    if overrides:
        from edl.jobfile.yaml_parser import apply_override  # reads YAML

        for assignment in overrides:
            root = apply_override(root, assignment, problems)
    return root


def _apply_number_options(
    root: DocumentNode, counts: tuple[NumberOption, ...], problems: list[SpecProblem]
) -> DocumentNode:
    for count in counts:
        from edl.jobfile.yaml_parser import assign_value  # reads YAML

        leaf = DocumentNode(count.number, count.option_text)
        root = assign_value(root, count.field_path, leaf, problems)
        # `edl run --workers 1` with workers.min: 2 in the file lowers the minimum instead of failing
        least = _find_node(root, count.limited_field)
        if least and isinstance(least.value, int | float) and least.value > count.number:
            root = assign_value(root, count.limited_field, leaf, problems)
    return root


def _line_number(problem: SpecProblem) -> int:
    line = re.search(r":(\d+)$", problem.source_location)
    return int(line[1]) if line else 0


def _find_node(root: DocumentNode, path: str) -> DocumentNode | None:
    """The node at a path of names; None if there is none."""
    node: DocumentNode | None = root
    for step in path.split("."):
        node = node.value.get(step) if node and isinstance(node.value, dict) else None
    return node


def _find_nearest_node(root: DocumentNode, path: str) -> DocumentNode:
    """The node at a path; if there is none, the nearest existing node on the way to it."""
    node = root
    for step in re.findall(r"[^.\[\]]+", path):
        if isinstance(node.value, list):
            if step.isdigit() and int(step) < len(node.value):  # a rule may name all items: containers.env
                node = node.value[int(step)]
        elif isinstance(node.value, dict) and step in node.value:
            node = node.value[step]
    return node


def _diff_values(path: str, old: JsonValue, new: JsonValue) -> Iterator[tuple[str, JsonValue, JsonValue]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys([*old, *new]):
            yield from _diff_values(f"{path}.{name}" if path else name, old.get(name), new.get(name))
    elif old != new:
        yield path, old, new
