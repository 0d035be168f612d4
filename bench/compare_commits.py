"""This commit beside another one: the scripts of both take turns, on one machine, in one run.

    git worktree add ../before COMMIT && make -C ../before setup
    python bench/compare_commits.py ../before cli memory control_plane --rounds 5

A figure is worse if the means differ in the wrong direction by more than three standard errors; then the exit code is
1, as after a script that fails. Of a figure whose unit does not tell the right direction, and which has no requirement,
only the ratio is printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

from figures import noise_of_difference
from run_all import SCRIPTS, BenchScript
from script import print_progress

HERE = Path(__file__).resolve().parents[1]
MORE_IS_BETTER = frozenset({"samples/s", "records/s", "1/s", "ids/s", "M ids/s", "M/s", "GB/s"})
LESS_IS_BETTER = frozenset({"s", "ms", "us", "B", "KiB", "MB", "records"})
Figures = Mapping[str, Mapping[str, Any]]
"""Those of one run of a script, by what they measure; as in ``bench/results``."""


@dataclass(frozen=True)
class FigurePair:
    """One figure of both commits.

    Attributes:
        measure: what was measured.
        unit: of the values.
        before: the other commit's, by round.
        now: this commit's, by round.
        at_least: whether more is better; None: nobody knows.
    """

    measure: str
    unit: str
    before: tuple[float, ...]
    now: tuple[float, ...]
    at_least: bool | None

    @property
    def ratio(self) -> float | None:
        """The median over the rounds of this commit's value, of the other's; None if one of those is zero."""
        return median(b / a for a, b in zip(self.before, self.now, strict=True)) if all(self.before) else None

    @property
    def is_worse(self) -> bool | None:
        """Whether it is worse by more than noise; None if the direction or the noise is unknown."""
        noise = noise_of_difference(self.before, self.now)
        if self.at_least is None or noise is None:
            return None
        change = mean(self.now) - mean(self.before)
        return (-change if self.at_least else change) > noise


def pair_figures(rounds: Sequence[tuple[Figures, Figures]]) -> Iterator[FigurePair]:
    """The figures that both commits have in all rounds; each round has the other commit's and this one's."""
    (_, newest), *_ = rounds
    for measure, figure in newest.items():
        if all(measure in side for sides in rounds for side in sides):
            before, now = (tuple(float(each[side][measure]["measured"]) for each in rounds) for side in (0, 1))
            yield FigurePair(measure, figure["unit"], before, now, _more_is_better(figure))


def _more_is_better(figure: Mapping[str, Any]) -> bool | None:
    if figure["limit"] is not None:
        return bool(figure["at_least"])
    unit = figure["unit"]
    return True if unit in MORE_IS_BETTER else False if unit in LESS_IS_BETTER else None


def run_script(checkout: Path, script: BenchScript, arguments: Sequence[str]) -> Figures:
    """The figures of a script of a checkout, with the packages in its ``.venv``.

    Raises:
        subprocess.SubprocessError: it failed, or took too long.
    """
    own = checkout / ".venv" / "bin" / "python"
    python = str(own) if own.exists() else sys.executable
    with TemporaryDirectory(prefix="edl-bench-") as folder:
        out = Path(folder) / "result.json"
        command = [python, str(checkout / "bench" / f"{script.name}.py"), "--out", str(out), *arguments]
        subprocess.run(command, check=True, timeout=script.seconds, cwd=checkout)
        return {figure["measure"]: figure for figure in json.loads(out.read_text())["figures"]}


def compare(other: Path, script: BenchScript, rounds: int, arguments: Sequence[str]) -> list[FigurePair]:
    """Run a script of both commits in turns; every second round begins with this commit."""
    sides_of_rounds = []
    for number in range(rounds):
        print_progress(f"=== {script.name}, round {number + 1} of {rounds}")
        order = (other, HERE) if number % 2 == 0 else (HERE, other)
        by_checkout = {checkout: run_script(checkout, script, arguments) for checkout in order}
        sides_of_rounds.append((by_checkout[other], by_checkout[HERE]))
    pairs = list(pair_figures(sides_of_rounds))
    for measure in sorted(
        {each for sides in sides_of_rounds for side in sides for each in side} - {pair.measure for pair in pairs}
    ):
        print_progress(f"not in every round of both commits: {measure}")
    return pairs


def describe_pair(pair: FigurePair) -> str:
    ratio = "" if pair.ratio is None else f", {pair.ratio:.3g} x"
    verdict = {None: "", False: "", True: "; WORSE"}[pair.is_worse]
    return f"{pair.measure}: {median(pair.before):.4g} {pair.unit} before, {median(pair.now):.4g} now{ratio}{verdict}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout of the other commit that is set up")
    parser.add_argument("names", nargs="+", metavar="NAME", choices=[script.name for script in SCRIPTS])
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--quick", action="store_true", help="short runs; else each script's own length, of one round")
    parser.add_argument("--out", type=Path, help="file for all values as JSON")
    parsed = parser.parse_args(arguments)
    pairs, failures = [], []
    for script in (script for script in SCRIPTS if script.name in parsed.names):
        options = script.quick if parsed.quick else ("--rounds", "1")
        try:
            pairs += compare(parsed.other.resolve(), script, parsed.rounds, options)
        except subprocess.SubprocessError as error:
            failures.append(f"{script.name} FAILED: {error}")
    for line in (*map(describe_pair, pairs), *failures):
        print_progress(line)
    if parsed.out is not None:
        values = [{**asdict(pair), "ratio": pair.ratio, "worse": pair.is_worse} for pair in pairs]
        parsed.out.write_text(json.dumps(values, indent=1) + "\n")
    return 1 if failures or any(pair.is_worse for pair in pairs) else 0


if __name__ == "__main__":
    sys.exit(main())
