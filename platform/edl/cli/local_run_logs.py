"""The logs of a run of this machine: files, of which the newest lines are followed until the run has ended."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from edl.api.errors import BadInputError
from edl.cli.local_runs import LocalRun, read_local_run

_POLL_SECONDS = 0.5
_LOG_NAME = re.compile(r"(master|ps|worker)-(\d+)\.log")


def read_run_logs(
    here: LocalRun, role: str, index: int | None, *, follow: bool, tail: int | None
) -> Iterator[tuple[str, bytes]]:
    """Lines of the chosen logs, with the name of the role where there are several.

    Raises:
        BadInputError: the run has no such log.
    """
    files = _select_log_files(here, role, index)
    ends: dict[Path, int] = {}
    several = index is None and role != "master"
    for file in files:
        text = file.read_bytes()
        ends[file] = len(text)
        lines = text.splitlines()
        yield from _with_role_name(lines if tail is None else list(deque(lines, maxlen=tail)), file, several)
    while follow:
        alive = read_local_run(here.run).alive  # before the files: what was written before the end is shown below
        for file in _select_log_files(here, role, index):
            with file.open("rb") as log:
                log.seek(ends.get(file, 0))
                text = log.read()
            whole = text if not alive else text[: text.rfind(b"\n") + 1]
            ends[file] = ends.get(file, 0) + len(whole)
            yield from _with_role_name(whole.splitlines(), file, several)
        if not alive:
            return
        time.sleep(_POLL_SECONDS)


def _with_role_name(lines: list[bytes], file: Path, several: bool) -> Iterator[tuple[str, bytes]]:
    name = file.stem if several else ""
    for line in lines:
        yield name, line


def _select_log_files(here: LocalRun, role: str, index: int | None) -> list[Path]:
    logs = here.run.logs
    found = [
        (match[1], int(match[2]), file) for file in logs.glob("*.log") if (match := _LOG_NAME.fullmatch(file.name))
    ]
    chosen = [(number, file) for name, number, file in found if name == role and index in (None, number)]
    if not chosen:
        which = role if index is None else f"{role}-{index}"
        known = ", ".join(sorted(file.stem for *_, file in found))
        hint = f"There are: {known}." if known else "Strategy Local has none: it prints where it runs."
        raise BadInputError(f"there is no log of {which}", where=str(logs), hint=hint)
    return [file for _, file in sorted(chosen)]
