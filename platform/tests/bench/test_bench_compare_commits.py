"""Two commits side by side: which figures are compared, and which one is called worse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture(autouse=True)
def _bench_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


def figure(measured: float, unit: str = "ms", limit: float | None = None, *, at_least: bool = False) -> dict[str, Any]:
    return {"measured": measured, "unit": unit, "limit": limit, "at_least": at_least}


def pairs(*rounds: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    from compare_commits import pair_figures

    named = [({"a": before}, {"a": now}) for before, now in rounds]
    return {pair.measure: pair for pair in pair_figures(named)}


@pytest.mark.parametrize(
    ("unit", "limit", "at_least", "now", "worse"),
    [
        ("ms", None, False, (12.0, 12.1, 12.2), True),
        ("ms", None, False, (8.0, 8.1, 8.2), False),
        ("ms", None, False, (9.0, 10.5, 11.5), False),
        ("samples/s", None, False, (8.0, 8.1, 8.2), True),
        ("samples/s", None, False, (12.0, 12.1, 12.2), False),
        ("x", 1.0, True, (8.0, 8.1, 8.2), True),
        ("x", 1.0, False, (8.0, 8.1, 8.2), False),
        ("x", None, False, (8.0, 8.1, 8.2), None),
    ],
)
def test_worse_is_the_wrong_direction_by_more_than_noise(
    unit: str, limit: float | None, at_least: bool, now: tuple[float, ...], worse: bool | None
) -> None:
    before = (10.0, 10.1, 10.2)
    figure_pairs = pairs(
        *((figure(a, unit, limit, at_least=at_least), figure(b, unit, limit, at_least=at_least))
          for a, b in zip(before, now, strict=True))
    )  # fmt: skip
    assert figure_pairs["a"].is_worse is worse
    assert figure_pairs["a"].ratio == pytest.approx(now[1] / before[1], rel=0.06)


def test_one_round_tells_nothing_of_noise_and_zero_has_no_ratio() -> None:
    figure_pair = pairs((figure(0.0), figure(5.0)))["a"]
    assert figure_pair.is_worse is None
    assert figure_pair.ratio is None


def write_script(checkout: Path, figures: str) -> None:
    (checkout / "bench").mkdir(parents=True)
    (checkout / "bench" / "cli.py").write_text(
        "import json, sys\n"
        "out = sys.argv[sys.argv.index('--out') + 1]\n"
        f"open(out, 'w').write(json.dumps({{'figures': {figures}}}))\n"
    )


def test_scripts_of_both_checkouts_run_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import compare_commits

    line = "[{'measure': '%s', 'measured': %s, 'unit': 's', 'limit': None, 'at_least': False}]"
    write_script(tmp_path / "before", f"{line % ('start', 1.0)} + {line % ('gone', 1.0)}")
    write_script(tmp_path / "now", line % ("start", 2.0))
    monkeypatch.setattr(compare_commits, "HERE", tmp_path / "now")
    out = tmp_path / "out.json"
    (tmp_path / "before" / "bench" / "memory.py").write_text("raise SystemExit(3)")
    code = compare_commits.main([str(tmp_path / "before"), "cli", "memory", "--rounds", "2", "--out", str(out)])
    (start,) = json.loads(out.read_text())
    assert (start["measure"], start["before"], start["now"], start["worse"]) == ("start", [1, 1], [2, 2], True)
    assert code == 1
    printed = capsys.readouterr().err
    assert "not in every round of both commits: gone" in printed
    assert "start: 1 s before, 2 now, 2 x; WORSE" in printed
    assert "memory FAILED" in printed
