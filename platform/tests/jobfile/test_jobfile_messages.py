"""Every mistake in a job file gets a message that names file, line, path, what was found and what is allowed.

``pytest platform/tests/jobfile -n 0 --update-golden`` writes the messages of bad_jobs.txt anew.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edl.api.errors import BadInputError
from edl.jobfile.document_tree import SpecError, closest_match
from edl.jobfile.loader import load_job_file

_FILE = Path(__file__).with_name("bad_jobs.txt")
_CASES = _FILE.read_text(encoding="utf-8")


def cases() -> list[tuple[str, str, str]]:
    matches = re.findall(r"^--- (.*?)\n(.*?)^=>\n(.*?)\n(?=\n--- |\Z)", _CASES, flags=re.DOTALL | re.MULTILINE)
    assert len(matches) == _CASES.count("\n=>\n")
    return matches


@pytest.mark.parametrize(("file", "messages"), [pytest.param(*case[1:], id=case[0]) for case in cases()])
def test_golden(
    file: str, messages: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(file, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_job_file("job.yaml")
    now = str(caught.value)
    if pytestconfig.getoption("update_golden"):
        old, new = (file + "=>\n" + text + "\n" for text in (messages.rstrip("\n"), now))
        _FILE.write_text(_FILE.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    else:
        assert now == messages.rstrip("\n"), "if this is what it should say: --update-golden, and read the difference"
    assert all(re.match(r"(job\.yaml:|  )", line) for line in now.splitlines()), "each names the file, or goes on"
    assert isinstance(caught.value, BadInputError)
    assert caught.value.exit_code == 2


def test_tabs(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("train:\n\tepochs: 1\n")
    with pytest.raises(SpecError, match=r"job.yaml:2: [\s\S]*tabs"):
        load_job_file(file)


def test_control_characters(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: a\nimage: \x00\n")
    with pytest.raises(SpecError, match=r"job.yaml:2: .*character"):
        load_job_file(file)


def test_nesting_without_end(tmp_path: Path) -> None:
    for name in ("job.yaml", "job.json"):
        file = tmp_path / name
        file.write_text("[" * 1_000)
        with pytest.raises(SpecError, match="nested too deeply"):
            load_job_file(file)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"absent.yaml: no such file$"):
        load_job_file(tmp_path / "absent.yaml")


def test_directory_names_the_files_in_it(tmp_path: Path) -> None:
    (tmp_path / "mnist.yaml").touch()
    with pytest.raises(SpecError, match=r"directory[\s\S]*mnist.yaml"):
        load_job_file(tmp_path)


def test_binary_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="UTF-8"):
        load_job_file(file)


def test_json_file_gets_lines(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text('{\n "name": "a",\n "model": {"definition": "a.b"},\n "data": {"training": 3}\n}')
    with pytest.raises(SpecError, match=r"spec.json:4: data.training: found 3"):
        load_job_file(file)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("epoch", "epochs"), ("minibatch-size", "minibatch_size"), ("MINIBATCHSIZE", "minibatch_size"), ("zzz", None)],
)
def test_nearest(name: str, expected: str | None) -> None:
    assert closest_match(name, ("epochs", "minibatch_size", "seed")) == expected


def test_problems_are_structured(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: a\nmodel: {definition: a.b}\ndata: {training: x}\ntrain: {epochs: -1}\n")
    with pytest.raises(SpecError) as caught:
        load_job_file(file, ["workers.min=-1"])
    assert [(problem.source_location, problem.field_path) for problem in caught.value.problems] == [
        ("--set workers.min=-1", "workers.min"),
        (f"{file}:4", "train.epochs"),
    ]


_JOB = "name: a\nmodel: {definition: a.b, params: {p: PARAM}}\ndata: {training: x}\n"


@pytest.mark.parametrize(
    "value",
    ["[" * 100 + "]" * 100, "{a: " * 100 + "1" + "}" * 100, "[" * 20_000, "9" * 5_000, "0x" + "f" * 5_000, "[.inf]"],
)
def test_values_without_measure_are_refused_with_their_line(value: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(_JOB.replace("PARAM", value))
    with pytest.raises(SpecError, match=r"job.yaml:2: ") as caught:
        load_job_file(file)
    assert len(str(caught.value)) < 1_000


def test_aliases_that_multiply_are_refused_with_a_line(tmp_path: Path) -> None:
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 9)]
    file = tmp_path / "job.yaml"
    file.write_text("l0: &l0 [x]\n" + "".join(levels) + _JOB)
    with pytest.raises(SpecError, match=r"job.yaml:\d+: .*aliases"):
        load_job_file(file)


def test_of_many_problems_the_first_are_shown_and_all_counted(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(_JOB + "name: b\n" * 2_000)
    with pytest.raises(SpecError, match="more problems") as caught:
        load_job_file(file)
    assert len(caught.value.problems) == 2_000
    assert len(str(caught.value).splitlines()) < 100


@pytest.mark.parametrize(
    "value",
    ["NaN", "Infinity", "1e999", "9" * 5_000, '"\\ud800"', '{"\\ud800": 1}', '"\\u0000"', "[" * 900 + "]" * 900],
)
def test_json_that_is_none_is_refused_with_its_line(value: str, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(
        f'{{"name": "a", "data": {{"training": "x"}},\n"model": {{"definition": "a.b",\n"params": {value}}}}}'
    )
    with pytest.raises(SpecError, match=r"job.json:3: "):
        load_job_file(file)
    file.write_text(file.read_text().replace('"params": ', '"params": {"p": ').replace("}}", "}}}"))
    with pytest.raises(SpecError, match=r"job.json:3: "):
        load_job_file(file)


@pytest.mark.parametrize(
    "assignment",
    [
        "train.epochs=!!float abc",
        "train.epochs=0x" + "f" * 5_000,
        "train.epochs=\ud800",
        "model.params." + "a." * 2_000 + "a=1",
        "model.zoo=/" + "a" * 5_000,
        'model.zoo="\\UFFFFFFFF"',
    ],
)
def test_overrides_without_measure_are_refused(assignment: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(_JOB.replace("PARAM", "1"))
    with pytest.raises(SpecError, match=r"^--set ") as caught:
        load_job_file(file, [assignment])
    assert len(str(caught.value).encode()) < 1_000
