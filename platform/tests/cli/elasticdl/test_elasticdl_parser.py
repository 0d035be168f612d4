"""Command lines are read as ElasticDL's client reads them, except that nothing is ignored."""

from __future__ import annotations

from typing import Any

import pytest
from support.text_keys import missing_keys

from edl.cli.elasticdl.parser import UsageError, parse_command_line

JOB = ["--job_name=j", "--model_def=m.f"]


def value(flag: str, *words: str) -> Any:
    return parse_command_line("train", [*JOB, *words]).values[flag]


@pytest.mark.parametrize(
    ("flag", "words", "wanted"),
    [
        ("num_ps_pods", ["--num_ps=1"], 1),  # a unique prefix
        ("num_evaluators", ["--num_evaluator", "2"], 2),
        ("training_data", ["--training=/data"], "/data"),  # older names do not make prefixes ambiguous
        ("use_async", [], False),
        ("use_async", ["--use_async"], True),
        ("use_async", ["--use_async", "--num_workers=3"], True),
        ("use_async", ["--use_async=YES"], True),
        ("use_async", ["--use_async", "no"], False),
        ("need_task_manager", ["--need_task_manager"], False),  # the opposite of its default
        ("enable_automate_memory", ["--enable_automate_memory"], False),
        ("log_level", ["--log_level=info"], "INFO"),
        ("num_workers", ["--num_workers=3", "--num_workers=5"], 5),
        ("max_step", ["--max_step", "-1"], -1),
        ("feed", ["--dataset_fn=my_feed"], "my_feed"),
        ("num_minibatches_per_task", ["--records_per_task=512"], 8),
        ("num_minibatches_per_task", ["--records_per_task=10"], 1),
        ("num_minibatches_per_task", ["--minibatch_size=32", "--records_per_task=512"], 16),
        ("envs", ["--envs=A=1,B=x,y"], "A=1,B=x,y"),
    ],
)
def test_values(flag: str, words: list[str], wanted: Any) -> None:
    assert value(flag, *words) == wanted


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--no_such_flag=3"], ("--no_such_flag", "no such flag")),
        (["--use_asinc"], ("did you mean --use_async?",)),
        (["--num-workers=3"], ("did you mean --num_workers?",)),
        (["--num_w=3", "--batch=3"], ("--batch",)),
        (["--num=3"], ("--num_workers", "--num_ps_pods", "--num_epochs")),
        (["--num_workers=two"], ("--num_workers=two", "whole number")),
        (["--image_pull_policy=never"], ("did you mean Never?",)),
        (["--distribution_strategy=AllReduceStrategy"], ("did you mean AllreduceStrategy?",)),
        (["--feed=a", "--dataset_fn=b"], ("--dataset_fn", "--feed")),
        (["--model_class=M"], ("--model_def=MODULE.FUNCTION",)),
        (["--docker_image_repository=r"], ("elasticdl zoo build",)),
        (["--master_addr=h:1"], ("--master_addr",)),
        (["--num_workers"], ("--num_workers",)),
        (["leftover"], ("leftover",)),
        (["--envs=A=\udcff"], ("--envs=A=", "surrogate")),
        (["--custom_training_loop=maybe", "--nothing", "--num_ps=x"], ("--nothing", "--num_ps_pods=x")),
    ],
)
def test_mistakes(words: list[str], said: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as error:
        parse_command_line("train", [*JOB, *words])
    assert not missing_keys(str(error.value), *said)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("word", "is_noted"), [("maybe", True), ("Ture", True), ("False", False), ("no", False), ("Y", False)]
)
def test_a_word_that_is_neither_true_nor_false_is_false_with_a_line(word: str, is_noted: bool) -> None:
    line = parse_command_line("train", [*JOB, f"--use_async={word}"])
    assert line.values["use_async"] is (word == "Y")
    assert [f"--use_async={word}: taken as false" in note for note in line.notes] == [True] * is_noted


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(UsageError) as error:
        parse_command_line("train", ["--nothing", "--num_workers=x", "--image_pull_policy=never"])
    assert len(error.value.message.splitlines()) == 3


def test_a_flag_of_another_command_is_taken_with_a_line() -> None:
    """As in ElasticDL's own scripts, which give evaluate the number of epochs."""
    words = [*JOB, "--validation_data=d", "--checkpoint_dir_for_init=c", "--num_epochs", "1", "--evaluation_steps=15"]
    line = parse_command_line("evaluate", words)
    assert "num_epochs" not in line.values
    assert [note.partition(":")[0] for note in line.notes] == ["--num_epochs", "--evaluation_steps"]


def test_a_flag_given_twice_is_mentioned() -> None:
    line = parse_command_line("train", [*JOB, "--num_workers=3", "--num_workers=5"])
    assert ["--num_workers" in note for note in line.notes] == [True]


def test_an_older_name_is_mentioned_with_the_new_one() -> None:
    (note,) = parse_command_line("train", [*JOB, "--dataset_fn=f"]).notes
    assert not missing_keys(note, "--dataset_fn", "--feed")


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("evaluate", "--validation_data"),
        ("predict", "--prediction_data"),
        ("zoo build", "--image"),
        ("zoo push", "image"),
    ],
)
def test_what_is_required(command: str, missing: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_command_line(command, [])
    assert missing in str(error.value)
