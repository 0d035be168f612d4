"""How long updates wait for a checkpoint: ``pause_seconds`` of the cuts of a job that trains, by the size of the model.

For so long one parameter server lets no update in, from the order to hold them to its copy. The first cut, before any
step, and those of the end are left out: nobody waits for them.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from statistics import median

from figures import BenchFigure, ScriptResult
from mnist_job import DigitsFolder, digits_folder
from script import main, print_progress
from support.job_process import JobProcess

LONGEST_SECONDS = 180.0


@dataclass(frozen=True)
class PausedModel:
    """The MLP with so many hidden units, and how often it is saved: a second or two apart."""

    hidden_units: int
    every_steps: int

    @property
    def parameter_count(self) -> int:
        return (784 + 1) * self.hidden_units + (self.hidden_units + 1) * 10


MODELS = (PausedModel(128, 300), PausedModel(12_600, 30))


def measure_pauses(digits: DigitsFolder, model: PausedModel, count: int) -> list[float]:
    """The pauses of ``count`` checkpoints in the middle of a run, in seconds."""
    job = digits.job(
        f"pause-{model.hidden_units}",
        params={"hidden": model.hidden_units},
        train={"epochs": 100_000},
        checkpoint={"every_steps": model.every_steps, "keep": 1},
    )
    pauses: list[float] = []
    after = 0
    with JobProcess(job, cwd=digits.folder) as run:
        while len(pauses) < count:
            line = run.wait_line(
                lambda line: line["event"] == "checkpoint_saved" and line["step"] > 0, LONGEST_SECONDS, after
            )
            after = run.lines.index(line, after) + 1
            pauses.append(line["pause_seconds"])
        run.interrupt()
        run.wait()
    print_progress(f"{model.parameter_count:,} parameters: " + ", ".join(f"{1e3 * pause:.1f} ms" for pause in pauses))
    return pauses


def measure(arguments: argparse.Namespace) -> ScriptResult:
    with digits_folder(4096) as digits:
        pauses_by_model = {model: measure_pauses(digits, model, arguments.rounds) for model in MODELS}
    figures = [
        BenchFigure(
            f"updates pause for a checkpoint of {model.parameter_count / 1e6:.1f} M parameters", 1e3 * value, "ms"
        )
        for model, pauses in pauses_by_model.items()
        for value in (median(pauses),)
    ]
    worst = [
        BenchFigure(
            f"the longest of {len(pauses)} of {model.parameter_count / 1e6:.1f} M parameters", 1e3 * max(pauses), "ms"
        )
        for model, pauses in pauses_by_model.items()
    ]
    details = {str(model.parameter_count): pauses for model, pauses in pauses_by_model.items()}
    return ScriptResult("cut_pause", (*figures, *worst), {"pause_seconds": details})


if __name__ == "__main__":
    main(__doc__, measure, rounds=8)
