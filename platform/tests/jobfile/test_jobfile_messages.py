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
    found = re.findall(r"^--- (.*?)\n(.*?)^=>\n(.*?)\n(?=\n--- |\Z)", _CASES, flags=re.DOTALL | re.MULTILINE)
    assert len(found) == _CASES.count("\n=>\n")
    return found


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
