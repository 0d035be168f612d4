"""Rounds as text: what workers push, and what becomes of it. tests/ps/rounds/*.txt; leases are numbered 1, 2, …"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from ps.rounds_simulator import NOTHING, NUMBER, RoundsServer

from edl.ps.applied_steps import AdmissionOutcome, PushId
from edl.ps.push_updates import PendingPush

SCENARIOS = sorted((Path(__file__).parent / "rounds").glob("*.txt"))
PUSH = re.compile(
    r"(?P<worker>[A-Z]) pushes (?P<share>[\d.]+)( at (?P<version>\d+))?(, then (?P<following>\d+))?"
    r"( to ps-(?P<part>\d))?(?P<again> again)?(, of (?P<round>[\d. ]+))?"
)


class RoundsScenario:
    """Two parameter servers, and what was pushed to them."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._servers = [RoundsServer(wanted, 0), RoundsServer(wanted, 0)]
        self._pushes: dict[str, tuple[RoundsServer, PendingPush]] = {}
        self._told: list[PendingPush] = []

    def line(self, line: str) -> Iterator[str]:
        """Do what a line says; yields what follows from it."""
        words = line.split()
        if match := PUSH.fullmatch(line):
            yield from self._push(**match.groupdict())
        elif words[1:] == ["goes", "on"]:
            server, push = self._pushes[words[0]]
            server.take(push)
            yield from self._state(words[0])
        elif words[1:] == ["parts"]:
            self._servers[0].together.handle_disconnect(ord(words[0]), ord(words[0]))
        elif words[1:] == ["restarts"]:
            self._servers[int(words[0][-1])] = RoundsServer(self._wanted, 0)
        elif words[0] == "revoke":
            self._servers[0].leases.revoke_leases([NUMBER + int(words[1])], 0)
            self._servers[0].settle()
        elif words[0] == "snapshot":
            applied = self._servers[0].leases.steps_by_lease().items()
            yield "holds " + ", ".join(f"{lease - NUMBER} through {through}" for lease, through in sorted(applied))
            for server in self._servers:
                server.cuts.record_copy(int(words[1]), 0, pin=False)
                server.settle()
        elif words[0] == "hold":
            for server in self._servers:
                server.cuts.pause_pushes(int(words[1]), 0.0)
        elif words[0] == "within":
            self._servers[1].cuts.include_steps(1, dict(map(_share, words[1:])))
        else:
            raise ValueError(line)
        yield from self._outcomes()

    def _push(
        self,
        worker: str,
        share: str,
        version: str | None,
        following: str | None,
        part: str | None,
        again: str | None,
        round: str | None,  # noqa: A002  a group of the pattern
    ) -> Iterator[str]:
        next_lease = NUMBER + int(following) if following and int(following) else 0
        named = tuple(_share(word) for word in (round or "").split())
        push = PendingPush(
            _share(share),
            None,  # type: ignore[arg-type]
            NOTHING,
            ord(worker),
            ord(worker),
            int(version or 0),
            next_lease,
            named,
            bool(again),
        )
        server = self._servers[int(part or 0)]
        self._pushes[worker] = (server, push)
        server.take(push)
        yield from self._state(worker)

    def _state(self, worker: str) -> Iterator[str]:
        server, push = self._pushes[worker]
        if push in server.behind:
            yield f"{worker} is held"
        elif push.outcome is None:
            yield f"{worker} waits"

    def _outcomes(self) -> Iterator[str]:
        for worker, (server, push) in sorted(self._pushes.items(), key=lambda item: item[0]):
            if push.outcome is None or push in self._told:
                continue
            self._told.append(push)
            round_ = "of " + " ".join(f"{lease - NUMBER}.{step}" for lease, step in push.round_pushes)
            version = server.contents.version
            more = {
                AdmissionOutcome.ADMITTED: f": update {version} {round_}",
                AdmissionOutcome.DUPLICATE: f": {round_}",
                AdmissionOutcome.STALE: f": version {version}",
            }
            outcome = push.require_admission()
            word = "applied" if outcome is AdmissionOutcome.ADMITTED else outcome.value
            yield f"{worker} {word}{more.get(outcome, '')}"


def _share(text: str) -> PushId:
    lease, step = text.split(".")
    return PushId(NUMBER + int(lease), int(step))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    lines = path.read_text().splitlines()
    (wanted,) = [int(line.split()[1]) for line in lines if line.startswith("wanted")]
    scenario, actual_lines = RoundsScenario(wanted), []
    for line in lines:
        if line.startswith(">"):
            actual_lines += [line, *(f"  {text}" for text in scenario.line(line.removeprefix("> ")))]
        elif not line.startswith("  "):
            actual_lines.append(line)
    assert "\n".join(actual_lines) == "\n".join(lines)
