"""The small languages of ElasticDL's flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.text_keys import missing_keys

from edl.cli.elasticdl.values import (
    find_broken_literals,
    read_boolean,
    read_parameters,
    read_priority,
    read_resources,
    read_variables,
    read_volumes,
    select_variables,
)


@pytest.mark.parametrize("word", ["true", "True", "TRUE", "yes", "T", "y", " Y "])
def test_words_that_are_true(word: str) -> None:
    assert read_boolean(word)


@pytest.mark.parametrize("word", ["false", "no", "0", "1", "on", "", "truth"])
def test_any_other_word_is_false(word: str) -> None:
    assert not read_boolean(word)


@pytest.mark.parametrize(
    ("text", "resources"),
    [
        ("cpu=2,memory=2048Mi", {"cpu": 2, "memory": "2Gi"}),
        ("cpu=0.1,memory=1024Mi", {"cpu": 0.1, "memory": "1Gi"}),
        ("cpu=250m, memory=32Mi, disk=64Mi", {"cpu": 0.25, "memory": "32Mi", "ephemeral_storage": "64Mi"}),
        ("ephemeral-storage=3G,nvidia.com/gpu=2", {"ephemeral_storage": "3000000000", "gpu": 2}),
    ],
)
def test_resources(text: str, resources: dict[str, Any]) -> None:
    assert read_resources(text) == resources


@pytest.mark.parametrize(
    ("text", "volumes"),
    [
        ("host_path=/data,mount_path=/data", [{"host_path": "/data", "mount": "/data"}]),
        ("mount_path=/data,claim_name=fileserver-claim", [{"mount": "/data", "claim": "fileserver-claim"}]),
        (
            "claim_name=c,mount_path=/a,sub_path=x/y; host_path=/b,type=Directory,mount_path=/b;",
            [{"claim": "c", "mount": "/a", "sub_path": "x/y"}, {"host_path": "/b", "mount": "/b"}],
        ),
    ],
)
def test_volumes(text: str, volumes: list[dict[str, Any]]) -> None:
    assert read_volumes(text) == volumes


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("A=1,B=x,y", {"A": "1", "B": "x,y"}),
        ("A=", {"A": ""}),
        ("URL=http://h/?a=b", {"URL": "http://h/?a=b"}),
        ("A=1,B=2", {"A": "1", "B": "2"}),
    ],
)
def test_variables(text: str, variables: dict[str, str]) -> None:
    assert read_variables(text) == variables


def test_variables_of_this_machine_are_chosen_by_their_whole_name() -> None:
    machine = {"A_KEY": "1", "A_KEY_2": "2", "B": "3"}
    assert select_variables("A_KEY", machine) == {"A_KEY": "1"}
    assert select_variables("A_.*|B", machine) == machine


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ('columns=["a", "b"]; label_col="b"', {"columns": ["a", "b"], "label_col": "b"}),
        ("sep=','; size=3; on=True; none=None", {"sep": ",", "size": 3, "on": True, "none": None}),
        ("sep=';'; a=1", {"sep": ";", "a": 1}),
        ("name=plain text", {"name": "plain text"}),
        ("shape=(28, 28)", {"shape": [28, 28]}),
        ("conf={'a': [1]};", {"conf": {"a": [1]}}),
        ("call=__import__('os').getpid()", {"call": "__import__('os').getpid()"}),
    ],
)
def test_parameters(text: str, parameters: dict[str, Any]) -> None:
    assert read_parameters(text) == parameters


@pytest.mark.parametrize(
    ("text", "priority"),
    [("high", "high"), ("high=0.5", "high=0.5"), ("high=1", "high"), ("high=0", "low"), ("high=0.250", "high=0.25")],
)
def test_priorities(text: str, priority: str) -> None:
    assert read_priority(text) == priority


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (read_resources, "cpu:2", ("cpu:2", "cpu=1,memory=2048Mi")),
        (read_resources, "cpu=2,memory", ("must be such as",)),
        (read_resources, "cpu=two", ("cpu=two", "500m")),
        (read_resources, "memory=2048MB", ("memory=2048MB", "2048Mi")),
        (read_resources, "mem=1Gi", ("did you mean memory?",)),
        (read_resources, "amd.com/gpu=1", ("amd.com/gpu", "nvidia.com/gpu")),
        (read_resources, "cpu=1,cpu=2", ("cpu twice",)),
        (read_resources, "gpu=0.5", ("gpu=0.5", "whole number")),
        (read_volumes, "claim_name=c", ("without mount_path",)),
        (read_volumes, "mount_path=/data", ("either claim_name or host_path",)),
        (read_volumes, "claim_name=c,host_path=/d,mount_path=/data", ("either claim_name or host_path",)),
        (read_volumes, "claim=c,mount_path=/data", ("did you mean claim_name?",)),
        (read_volumes, "host_path=/s,mount_path=/s,type=Socket", ("type=Socket",)),
        (read_variables, "NAME", ("NAME=value",)),
        (select_variables, "A[", ("regular expression",)),
        (read_parameters, "columns", ("name=value",)),
        (read_parameters, "a=1; a=2", ("a twice",)),
        (read_parameters, "a='x; b=2", ("the quote '", "no end")),
        (read_parameters, "a={1: 2}", ("text as keys",)),
        (read_priority, "high=half", ("high=half", "high=0.5")),
        (read_priority, "high=2", ("from 0 to 1",)),
    ],
)
def test_what_cannot_be_read_says_what_can(read: Callable[[str], Any], text: str, said: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as error:
        read(text)
    assert not missing_keys(str(error.value), *said)


def test_values_that_are_meant_as_code_are_found() -> None:
    text = "units=[1, 2; size=4 * 1024; ids=list(range(3)); kind=wide; table=my-table; sep='['; path=/a/b; rate=0.1"
    assert find_broken_literals(text) == {"units": "[1, 2", "size": "4 * 1024", "ids": "list(range(3))"}
