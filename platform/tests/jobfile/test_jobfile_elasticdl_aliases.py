"""Fields as other systems call them: each is pointed to what does the same here."""

from __future__ import annotations

import pytest
from support.text_keys import missing_keys

from edl.api.job_spec import JobSpec
from edl.jobfile.job_section import FIELD_ALIASES, FUNCTION_ALIASES, suggest_replacement
from edl.jobfile.section_type import section_fields


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("parameter_servers", "ps.count"),
        ("ps_count", "ps.count"),
        ("num_ps", "ps.count"),
        ("numPs", "ps.count"),
        ("num_workers", "workers.max"),
        ("batch_size", "train.minibatch_size"),
        ("batch-size", "train.minibatch_size"),
        ("num_epochs", "train.epochs"),
        ("model_def", "model.definition"),
        ("distribution_strategy", "strategy.name"),
    ],
)
def test_a_field_has_its_name_here(name: str, field: str) -> None:
    assert not missing_keys(suggest_replacement(name) or "", f"'{field}'")


@pytest.mark.parametrize(
    ("name", "function"),
    [("optimizer", "optimizer"), ("loss", "loss"), ("learning_rate", "optimizer"), ("metrics", "eval_metrics_fn")],
)
def test_what_code_says_here_is_in_the_model_module(name: str, function: str) -> None:
    assert not missing_keys(suggest_replacement(name) or "", "model module", f"{function}()")


@pytest.mark.parametrize("name", ["", "zzz", "epoch"])
def test_of_other_names_nothing_is_known(name: str) -> None:
    assert suggest_replacement(name) is None


@pytest.mark.parametrize("path", sorted(set(FIELD_ALIASES.values())))
def test_each_field_that_is_pointed_to_exists(path: str) -> None:
    here: type = JobSpec
    *outer, last = path.split(".")
    for name in outer:
        here = section_fields(here)[name].field_type.section  # type: ignore[attr-defined]
    assert last in section_fields(here)


def test_no_field_of_a_job_is_called_foreign() -> None:
    assert not {*FIELD_ALIASES, *FUNCTION_ALIASES} & {*section_fields(JobSpec)}
