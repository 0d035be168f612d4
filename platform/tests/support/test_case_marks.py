"""What `make test` leaves out by marks: see conftest.py."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).parents[1] / "conftest.py"
MARKS = """
[tool.pytest.ini_options]
addopts = "--strict-markers"
markers = [
  "first_cases(n)", "in_third(n)", "repetition", "thorough", "examples",
  "tensorflow", "faults", "install", "jobs", "native",
]
"""
MODULE = """
import pytest
from support.repetition import repetition, repetitions

@pytest.mark.first_cases(2)
@pytest.mark.parametrize("case", ["a", "b", "c", "d"])
def test_first_two(case): ...

@pytest.mark.first_cases(1)
@pytest.mark.parametrize("case", [repetition("a"), "b", "c"])
def test_first_that_is_none_already(case): ...

@pytest.mark.first_cases(3)
@pytest.mark.parametrize("other", [1, 2])
@pytest.mark.parametrize("case", ["a", "b"])
def test_sets_of_parameters(case, other): ...

class TestOne:
    @pytest.mark.first_cases(1)
    @pytest.mark.parametrize("case", ["a", "b"])
    def test_same_name(self, case): ...

class TestTwo:
    @pytest.mark.first_cases(1)
    @pytest.mark.parametrize("case", ["a", "b"])
    def test_same_name(self, case): ...

@pytest.mark.parametrize("case", ["a", *repetitions("bc")])
def test_repetitions(case): ...

def test_unmarked(): ...
"""
FIRST = [
    "test_first_two[a]",
    "test_first_two[b]",
    "test_first_that_is_none_already[b]",
    "test_sets_of_parameters[a-1]",
    "test_sets_of_parameters[a-2]",
    "test_sets_of_parameters[b-1]",
    "TestOne::test_same_name[a]",
    "TestTwo::test_same_name[a]",
    "test_repetitions[a]",
    "test_unmarked",
]
FURTHER = [
    "test_first_two[c]",
    "test_first_two[d]",
    "test_first_that_is_none_already[a]",
    "test_first_that_is_none_already[c]",
    "test_sets_of_parameters[b-2]",
    "TestOne::test_same_name[b]",
    "TestTwo::test_same_name[b]",
    "test_repetitions[b]",
    "test_repetitions[c]",
]


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyprojecttoml(MARKS)
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(test_cases=MODULE)
    return pytester


def collected(project: pytest.Pytester, *options: str) -> list[str]:
    """The tests that this selects, in their order."""
    names: list[str] = []

    class Selected:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            names.extend(item.nodeid.partition("::")[2] for item in session.items)

    project.inline_run("-p", "no:xdist", "--collect-only", "-q", *options, plugins=[Selected()])
    return names


def test_further_cases_are_repetitions(project: pytest.Pytester) -> None:
    assert collected(project, "-m", "not repetition") == FIRST
    assert collected(project, "-m", "repetition") == FURTHER


def test_thirds_are_all_repetitions_once(project: pytest.Pytester) -> None:
    thirds = [collected(project, "-m", "repetition", "--third", str(number)) for number in range(3)]
    assert sorted(case for third in thirds for case in third) == sorted(FURTHER)
    functions = [{case.partition("[")[0] for case in third} for third in thirds]
    assert all(not a & b for a, b in zip(functions, functions[1:] + functions[:1], strict=True))


def test_a_mark_in_another_folder_is_refused(project: pytest.Pytester) -> None:
    project.makepyfile(test_job="import pytest\n\n@pytest.mark.jobs\ndef test_job(): ...\n")
    result = project.runpytest_inprocess("-p", "no:xdist", "--collect-only")
    result.stderr.fnmatch_lines(["*test_job is marked jobs: it belongs into platform/tests/jobs"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_mark_says_in_which_third_a_test_or_a_case_runs(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_cases="""
import pytest

@pytest.mark.in_third(1)
@pytest.mark.repetition
def test_one(): ...

@pytest.mark.repetition
@pytest.mark.parametrize("case", [pytest.param(third, marks=pytest.mark.in_third(third)) for third in range(3)])
def test_in_each(case): ...
"""
    )
    thirds = [collected(project, "-m", "repetition", "--third", str(number)) for number in range(3)]
    assert thirds == [["test_in_each[0]"], ["test_one", "test_in_each[1]"], ["test_in_each[2]"]]
