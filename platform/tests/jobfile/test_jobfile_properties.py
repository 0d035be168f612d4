"""Invariants of the values, the reader and the published schemas, over documents drawn from the declarations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from support.examples import examples

from edl.api.fields import TextForm
from edl.api.job_spec import JobSpec
from edl.api.run_events import EVENTS, JobEvent
from edl.api.status import RoleStatus, Status, Summary
from edl.jobfile import event_json, loader
from edl.jobfile.document_tree import ReadContext, SpecProblem, build_tree
from edl.jobfile.job_section import JOB_SECTION
from edl.jobfile.json_schema import build_job_schema
from edl.jobfile.loader import diff_job_specs, dump_job_spec, load_job_file
from edl.jobfile.quantities import QuantityType
from edl.jobfile.scalar_types import (
    AnyJsonType,
    BooleanType,
    ChoiceType,
    IntegerType,
    ListType,
    MappingType,
    NullableType,
    NumberType,
    PathListType,
    TextOrMappingType,
    TextType,
)
from edl.jobfile.section_type import (
    SectionField,
    SectionType,
    field_defaults,
    from_json,
    section_fields,
    section_of,
    to_json,
)

# specs are large, and this machine may be busy
_PATIENT = settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
# what stands in JSON and in YAML without escapes that the two read differently
_LETTERS = st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs", "Cc"])
_WORDS = st.text("abcxyz019", min_size=1, max_size=8)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(-1e9, 1e9) | st.text(_LETTERS, max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=4,
)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values as a kind's read gives them."""
    match kind:
        case SectionType():
            return st.builds(
                kind.section, **{name: member(option) for name, option in section_fields(kind.section).items()}
            )
        case NullableType():
            return st.none() | values(kind.inner_type)
        case ListType():
            return st.lists(values(kind.inner_type), max_size=2).map(tuple)
        case TextOrMappingType():
            return values(kind.text_type) | values(kind.mapping_type)
        case MappingType():
            names = _WORDS if kind.name_type is None else texts(kind.name_type)
            return st.dictionaries(names, values(kind.value_type), max_size=2)
        case PathListType():
            return st.lists(_WORDS, max_size=2).map(tuple)
        case AnyJsonType():
            return _JSON
        case ChoiceType():
            return st.sampled_from(kind.names)
        case BooleanType():
            return st.booleans()
        case IntegerType():
            least = -(2**40) if kind.minimum is None else kind.minimum
            return st.integers(least, 2**40 if kind.maximum is None else kind.maximum)
        case QuantityType():
            least = 1 if kind.above_zero else 0
            return st.integers(least, 2**50) if kind.is_whole_number else st.floats(0, 1e9, exclude_min=kind.above_zero)
        case NumberType():
            return st.floats(-1e9 if kind.minimum is None else kind.minimum, 1e9)
        case TextType():
            return texts(kind.form)
    raise AssertionError(kind)


def texts(form: TextForm) -> st.SearchStrategy[str]:
    return st.from_regex(form.pattern.replace("$", r"\Z"), alphabet=_LETTERS)


def member(option: SectionField) -> st.SearchStrategy[Any]:
    return values(option.field_type) if option.declaration.built is None else st.sampled_from(option.declaration.built)


SPECS = values(JOB_SECTION)
PUBLISHED = Draft202012Validator(build_job_schema())


def usable(spec: JobSpec) -> JobSpec:
    """The spec with what breaks a rule as it is by default.

    Few drawn specs keep all rules, so a draw is repaired instead of dropped.
    """
    while violations := loader.find_rule_violations(spec):
        for violation in violations:
            is_of_split = violation.conflicting_field == "data.split"  # which needs two equal fields
            spec = _without(spec, "data.split" if is_of_split else violation.field_path)
    return spec


def _without(spec: JobSpec, path: str) -> JobSpec:
    section, _, name = path.partition(".")
    if section.startswith("volumes["):
        return replace(spec, volumes=tuple({volume.mount.rstrip("/"): volume for volume in spec.volumes}.values()))
    if path == "workers.max":
        return replace(spec, workers=replace(spec.workers, min=spec.workers.max))
    if not name:
        return replace(spec, **{section: field_defaults(JobSpec)[section]})
    name = name.partition(".")[0]  # a section within a section as a whole
    section_value = getattr(spec, section)
    # What a job needs for its task, and what is its default otherwise.
    needed: dict[str, object] = {"data.training": ("train",)}
    if not spec.command:
        needed |= {"model.definition": "a.b", "data.validation": ("test",), "data.prediction": ("rows",)}
        needed |= {"model.weights": "r1"} if spec.model.weights is None else {}
    value = needed.get(path) or field_defaults(type(section_value))[name]
    return replace(spec, **{section: replace(section_value, **{name: value})})


@settings(_PATIENT, max_examples=examples(20))
@given(spec=SPECS.map(usable))
def test_dump_and_load_is_the_same_spec(spec: JobSpec, tmp_path_factory: pytest.TempPathFactory) -> None:
    text = json.dumps(dump_job_spec(spec))
    for name in ("spec.json", "spec.yaml"):
        file = tmp_path_factory.mktemp("job") / name
        file.write_text(text, encoding="utf-8")
        assert load_job_file(file) == spec


@settings(_PATIENT, max_examples=examples(50))
@given(old=SPECS, new=SPECS)
def test_changes_turn_old_into_new(old: JobSpec, new: JobSpec) -> None:
    assert diff_job_specs(old, old) == []
    for path, before, after in diff_job_specs(old, new):
        assert before != after
        assert path.split(".")[0] in section_fields(JobSpec)
    assert bool(diff_job_specs(old, new)) == (old != new)


@settings(_PATIENT, max_examples=examples(200))
@given(spec=SPECS, data=st.data())
def test_schema_and_reader_agree(spec: JobSpec, data: st.DataObject) -> None:
    document = dump_job_spec(spec)
    _mutate(document, data)
    problems: list[SpecProblem] = []
    JOB_SECTION.read(build_tree(document, "job"), ReadContext("", problems))
    wrong = [error.message for error in PUBLISHED.iter_errors(document)]
    assert bool(problems) == bool(wrong), (problems, wrong)


def _mutate(document: dict[str, Any], data: st.DataObject) -> None:
    """Put some JSON value, or an unknown field, somewhere into the document, or take a field away."""
    place = document
    while True:
        inner = [value for value in place.values() if isinstance(value, dict) and value]
        if not inner or data.draw(st.booleans()):
            break
        place = data.draw(st.sampled_from(inner))
    name = data.draw(st.sampled_from(sorted(place)) | _WORDS)
    place.pop(name, None)
    if data.draw(st.booleans()):
        # Python's $ also matches before a last line feed, which that of JSON Schema does not
        place[name] = data.draw(_JSON.filter(lambda value: not str(value).endswith("\n")))


@pytest.mark.parametrize("report", [RoleStatus, Status, Summary, *EVENTS.values()])
@settings(_PATIENT, max_examples=examples(20))
@given(data=st.data())
def test_reports_survive_json(report: type, data: st.DataObject) -> None:
    value = data.draw(values(section_of(report)))
    text = json.dumps(to_json(value), allow_nan=False)
    assert from_json(report, json.loads(text)) == value


@settings(_PATIENT, max_examples=examples(50))
@given(happened=st.sampled_from(sorted(EVENTS)).flatmap(lambda kind: values(section_of(EVENTS[kind]))))
def test_event_lines_survive(happened: JobEvent) -> None:
    line = event_json.line(happened)
    assert "\n" not in line
    assert event_json.parse_event_line(line) == happened


def _inner_type(kind: Any) -> Any:
    """What a list has, what null or a text stands for, or the type itself."""
    while isinstance(kind, NullableType | ListType | TextOrMappingType):
        kind = kind.mapping_type if isinstance(kind, TextOrMappingType) else kind.inner_type
    return kind


def _sections(section: type, path: str) -> list[tuple[str, type]]:
    inner = [
        pair
        for name, option in section_fields(section).items()
        for kind in (_inner_type(option.field_type),)
        if isinstance(kind, SectionType)
        for pair in _sections(kind.section, f"{path}.{name}")
    ]
    return [(path, section), *inner]


@pytest.mark.parametrize(("path", "section"), _sections(JobSpec, "job"))
def test_every_field_has_a_sentence_and_a_default(path: str, section: type) -> None:
    required = {"job": {"name"}, "job.volumes": {"mount"}, "job.data.split": {"key"}}.get(path, set())
    assert set(section_fields(section)) - set(field_defaults(section)) == required
    for name, option in section_fields(section).items():
        assert option.declaration.doc.endswith("."), name
        assert option.declaration.built is None or field_defaults(section)[name] in option.declaration.built, name


def test_a_file_of_the_published_example(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(EXAMPLE, encoding="utf-8")
    spec = load_job_file(file)
    assert spec.ps.embedding_threshold == 2 * 1024**2
    assert spec.master.resources.memory == 2 * 1024**3
    assert spec.master.lost_timeout == 1800.0
    assert spec.data.training == ("/data/mnist/train",)
    assert spec.data.prediction == ()
    assert spec.volumes[0].local == "./data"


EXAMPLE = """\
apiVersion: edl.dev/v1
name: mnist
image: registry.example/team/mnist:v3
model: {zoo: model_zoo, definition: mnist.mnist_functional_api.custom_model, params: {}}
data: {training: /data/mnist/train, validation: /data/mnist/test, prediction: null, reader: {}, max_corrupt_records: 0}
train:
  {epochs: 5, minibatch_size: 64, minibatches_per_task: 64, evaluation_steps: 200, max_steps: null, on_nan: stop}
strategy: {name: ParameterServer, mode: async}
checkpoint: {every_steps: 1000, keep: 3}
export: {path: /data/mnist/export}
master: {priority: high, resources: {cpu: 2, memory: 2Gi}, lost_timeout: 30m}
ps: {count: 2, priority: high, replicas: 0, embedding_threshold: 2Mi, resources: {cpu: 2, memory: 2Gi}}
workers: {min: 1, max: 4, priority: low, resources: {cpu: 500m, memory: 2Gi}}
volumes: [{claim: fileserver-claim, mount: /data, local: ./data}]
storage: {claim: fileserver-claim, path: /data/edl}
pod: {env: {}, node_selector: {}, tolerations: [], affinity: {}, labels: {}, annotations: {}, overrides: {}}
security: {run_as: {user: 1000, group: 1000}}
"""
