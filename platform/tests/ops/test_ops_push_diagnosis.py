"""What ``edl why`` says of updates, refused pushes and full tables, as text: tests/ops/exchange/*.txt.

``pytest platform/tests/ops --update-golden`` writes them anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.in_memory_cluster import NOW
from support.job_objects import STATUS, conditions, job_view
from support.text_keys import missing_keys

from edl.api.run_events import JobEvent, RoleEnded, RoleStarted
from edl.api.status import ParametersStatus, RoleStatus, RoundStatus, TableStatus
from edl.api.strategy import Strategy
from edl.cli.why import finding_lines
from edl.jobfile.published_status import PublishedStatus
from edl.ops.diagnosis import diagnose_pushes

SCENARIOS = sorted((Path(__file__).parent / "exchange").glob("*.txt"))
UPDATE = re.compile(r"update (\d+) of (\d+) came, awaits ([\d ]+) for (\d+) s")
TABLE = re.compile(r"table (\S+) (\d+)(?: of (\d+), fullest (\S+))?")


class PushStatusScript:
    """What a master tells of a job, line by line."""

    def __init__(self) -> None:
        self.parameters = ParametersStatus(Strategy())
        self.workers: tuple[RoleStatus, ...] = ()
        self.events: tuple[JobEvent, ...] = ()
        self.tables: dict[str, TableStatus] = {}
        self.phase = "Training"

    def play(self, line: str) -> Iterator[str]:
        """What a line says becomes true; yields what is said of it."""
        numbers = [int(number) for number in re.findall(r"\d+", line)]
        match line.split():
            case ["async"]:
                self.parameters = replace(self.parameters, strategy=Strategy())
            case ["sync", *_]:
                strategy = Strategy(mode="sync", grads_to_wait=numbers[0], version_tolerance=numbers[1])
                self.parameters = replace(self.parameters, strategy=strategy)
            case ["workers", *words]:
                pairs = " ".join(words).split(", ")
                self.workers = tuple(RoleStatus(int(index), None, state) for index, state in map(str.split, pairs))
            case ["worker", _, "ends"]:
                self.workers = tuple(worker for worker in self.workers if worker.index != numbers[0])
                self.events += (RoleEnded("worker", numbers[0], None, "Completed", 0, time=NOW),)
            case ["worker", _, "starts"]:
                self.workers += (RoleStatus(numbers[0], None, "training"),)
                self.events += (RoleStarted("worker", numbers[0], None, time=NOW),)
            case ["update", *_]:
                self.parameters = replace(self.parameters, round=_round(line))
            case ["pushes", *_]:
                self.parameters = replace(self.parameters, pushes=numbers[0], refused=numbers[1])
            case ["table", *_]:
                table = _table(line)
                self.tables[table.name] = table
            case ["job", phase]:
                self.phase = phase
            case [">", "why"]:
                yield from self.why()
            case _:
                raise ValueError(line)

    def why(self) -> Iterator[str]:
        parameters = replace(self.parameters, tables=tuple(self.tables.values()), tables_total=len(self.tables))
        status = replace(STATUS, phase=self.phase, workers=self.workers, parameters=parameters)
        job = job_view(
            PublishedStatus(status, self.events), status=conditions(Complete="") if self.phase == "Done" else None
        )
        yield from finding_lines(job, list(diagnose_pushes(job, "mnist")))


def _round(line: str) -> RoundStatus | None:
    match = UPDATE.fullmatch(line)
    if match is None:
        assert line == "update none"
        return None
    awaited = tuple(map(int, match[3].split()))
    return RoundStatus(int(match[1]), int(match[2]), awaited, len(awaited), float(match[4]))


def _table(line: str) -> TableStatus:
    match = TABLE.fullmatch(line)
    assert match is not None
    bound = {"max_rows": int(match[3]), "full": float(match[4])} if match[3] else {}
    return TableStatus(match[1], int(match[2]), 64 << 10, **bound)  # type: ignore[arg-type]


def findings_text(text: str) -> Iterator[str]:
    """The scenario, with what is said now."""
    script = PushStatusScript()
    for line in text.splitlines():
        if line.startswith(" "):
            continue
        yield line
        if line and not line.startswith("#"):
            yield from (f"  {each}" for each in script.play(line))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path, pytestconfig: pytest.Config) -> None:
    now = "\n".join(findings_text(path.read_text(encoding="utf-8"))) + "\n"
    if pytestconfig.getoption("update_golden"):
        path.write_text(now, encoding="utf-8")
    assert now == path.read_text(encoding="utf-8"), (
        "if this is what it should be now: pytest platform/tests/ops --update-golden, and read the difference"
    )


def test_of_many_workers_a_few_are_named() -> None:
    published = ParametersStatus(Strategy(mode="sync", grads_to_wait=30), round=RoundStatus(1, 30, (1, 2, 3), 29, 60.0))
    job = job_view(PublishedStatus(replace(STATUS, parameters=published, workers=())))
    (finding,) = diagnose_pushes(job, "mnist")
    assert not missing_keys(finding.text, "worker-1, worker-2, worker-3", "26 more", "29 gradients")


def test_a_job_that_tells_nothing_of_parameters_has_no_complaints() -> None:
    assert list(diagnose_pushes(job_view(PublishedStatus(STATUS)), "mnist")) == []
    assert list(diagnose_pushes(job_view(PublishedStatus()), "mnist")) == []
