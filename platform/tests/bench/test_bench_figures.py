"""The parts of the benchmarks that decide what a figure says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture(scope="module", autouse=True)
def _bench_on_path() -> Iterator[None]:
    """Scripts of a folder import each other by name, as they do when they are run."""
    sys.path.insert(0, str(BENCH))
    yield
    sys.path.remove(str(BENCH))


@pytest.fixture
def figures() -> ModuleType:
    import figures

    return figures


@pytest.fixture
def table() -> ModuleType:
    import table

    return table


@pytest.mark.parametrize(
    ("measured", "limit", "at_least", "met"),
    [
        (1.0, 1.0, False, True),
        (1.1, 1.0, False, False),
        (0.8, 0.8, True, True),
        (0.79, 0.8, True, False),
        (5, None, False, None),
    ],
)
def test_a_requirement_is_met_at_its_limit(figures, measured, limit, at_least, met) -> None:
    assert figures.BenchFigure("m", measured, "s", limit, at_least).is_met is met


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.floats(0.01, 1.0))
def test_a_percentile_is_a_value_that_enough_do_not_exceed(values, share) -> None:
    from figures import percentile

    quantile = percentile(values, share)
    assert quantile in values
    assert sum(value <= quantile for value in values) >= share * len(values) - 1e-9
    assert sum(value < quantile for value in values) < share * len(values) + 1e-9


def test_a_percentile_of_nothing_is_an_error(figures) -> None:
    with pytest.raises(ValueError, match="nothing"):
        figures.percentile([], 0.5)


@given(st.floats(1.0, 1e5), st.integers(5, 50))
def test_a_steady_rate_is_found_again(rate, count) -> None:
    from figures import steady_rate

    samples = [(100.0 + i, int(i * rate)) for i in range(count)]
    assert steady_rate(samples, 0) == pytest.approx(rate, abs=1.0)


def test_a_steady_rate_leaves_out_the_start_and_waiting_at_the_end(figures) -> None:
    start = [(0.0, 0), (10.0, 10)]  # 1/s, then 100/s, then nothing
    steady = [(10.0 + i, 10 + 100 * i) for i in range(1, 5)]
    waiting = [(20.0, 410), (30.0, 410)]
    assert figures.steady_rate([*start, *steady, *waiting], 100) == pytest.approx(100.0)


def test_no_progress_is_not_a_rate(figures) -> None:
    with pytest.raises(ValueError, match="no progress"):
        figures.steady_rate([(0.0, 0), (1.0, 0)], 0)


def test_the_table_says_what_is_met_and_what_failed(figures, table) -> None:
    met = figures.BenchFigure("start", 3.0, "s", 5.0, note="import + 2.5 s")
    missed = figures.BenchFigure("rate", 0.5, "x", 0.8, at_least=True, aim=0.9)
    beside = figures.BenchFigure("import", 2.5, "s")
    results = [
        figures.ScriptResult("start", (met, missed, beside)).to_json(),
        figures.ScriptResult("cli", failed="exit code 1").to_json(),
    ]
    text = table.generate_page(results)
    assert "| start | at most 5.00 s (import + 2.5 s) |  | 3.00 s | 0.60 | yes |" in text
    assert "| rate | at least 0.800 x | 0.900 x | 0.500 x | 0.62 | **no** |" in text
    assert "| import | 2.50 s |" in text
    assert "`cli` failed: exit code 1" in text
    assert text.count("Measured on") == 1


def test_requirements_have_a_column_for_the_slower_machine(figures, table) -> None:
    met, missed = figures.BenchFigure("a", 3.0, "s", 5.0), figures.BenchFigure("b", 4.0, "s", 5.0)
    only_here, beside = figures.BenchFigure("c", 1.0, "s", 5.0), figures.BenchFigure("d", 2.0, "s")
    slow = (figures.BenchFigure("a", 4.0, "s", 5.0), figures.BenchFigure("b", 6.0, "s", 5.0))
    results = [figures.ScriptResult("start", (met, missed, only_here, beside)).to_json()]
    text = table.generate_page(results, [figures.ScriptResult("start", slow).to_json()])
    assert "| a | at most 5.00 s |  | 3.00 s | 0.60 | yes | 4.00 s |" in text
    assert "| b | at most 5.00 s |  | 4.00 s | 0.80 | yes | 6.00 s, **no** |" in text
    assert "| c | at most 5.00 s |  | 1.00 s | 0.20 | yes |  |" in text
    assert "| d | 2.00 s |" in text
    assert "The column *slower machine*: measured on" in text
    assert "slower machine" not in table.generate_page(results)


def test_a_result_of_before_there_were_aims_is_still_shown(figures, table) -> None:
    result = figures.ScriptResult("start", (figures.BenchFigure("start", 3.0, "s", 5.0),)).to_json()
    del result["figures"][0]["aim"]
    assert "| start | at most 5.00 s |  | 3.00 s | 0.60 | yes |" in table.generate_page([result])


def test_results_of_two_machines_are_told_apart(figures, table) -> None:
    here, elsewhere = (figures.ScriptResult(name).to_json() for name in ("start", "cli"))
    elsewhere["machine"] = {"cores": 64, "memory_gb": 512, "arch": "aarch64"}
    text = table.generate_page([here, elsewhere])
    assert "- start: measured on" in text
    assert "- cli: measured on 64 cores (aarch64), 512 GB" in text


def test_only_the_generated_part_of_the_page_is_replaced(table) -> None:
    page = f"# Title\n\n{table.BEGIN}\nold\n{table.END}\n\nnotes\n"
    once = table.replace_table(page, "new")
    assert once == f"# Title\n\n{table.BEGIN}\n\nnew\n\n{table.END}\n\nnotes\n"
    assert table.replace_table(once, "new") == once
    with pytest.raises(ValueError, match="both marks"):
        table.replace_table("no marks", "new")


def test_both_pages_have_their_marks(table) -> None:
    for page in (table.PAGE, table.README):
        table.replace_table(page.read_text(), "anything")


def test_the_readme_quotes_three_measures_that_the_results_have(figures, table) -> None:
    (name, measure, label), *_ = table.HEADLINES
    text = table.readme_numbers([figures.ScriptResult(name, (figures.BenchFigure(measure, 0.5, "s"),)).to_json()])
    assert f"| {label} | 0.500 s |" in text
    assert text.count("not measured yet") == 2
    assert text.startswith("| measured on "), "where and when"
    committed = {(one["name"], each["measure"]) for one in table.read_results(table.RESULTS) for each in one["figures"]}
    assert committed.issuperset((name, measure) for name, measure, _ in table.HEADLINES)


def test_an_auc_has_four_decimals(table) -> None:
    assert table.format_quantity(0.00126, "AUC") == "0.0013"
