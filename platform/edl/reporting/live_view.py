"""The renderer for a terminal: a view that is redrawn in place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from edl.api.run_events import JobEvent, RoleEnded
from edl.api.status import Status
from edl.reporting.event_text import (
    describe_event,
    describe_world,
    format_earlier_evaluations,
    format_local_time,
    format_measurements,
    format_role,
    format_table_count,
)
from edl.reporting.rich_console import make_console
from edl.reporting.run_progress import RunInfo, RunOutcome, RunProgress, failure_text, summary_lines
from edl.reporting.terminal_text import to_single_line
from edl.reporting.text_table import wrap_text
from edl.reporting.unit_formats import format_duration

# --------------------------------------------------------------------------------------------------
# The screen of the live view: progress, measurements, roles and the newest events, fitted to the terminal.


FRAME_LINES = 8
"""Lines other than roles and events: title, bar, measurements, two blanks, a table head, a notice, the cursor."""
_BAR_TEXT = 42
"""Characters of the text beside the bar."""

_STATE_STYLES = {
    "training": "green",
    "serving": "green",
    "predicting": "green",
    "evaluating": "cyan",
    "starting": "yellow",
    "joining": "yellow",
}
_PHASE_STYLES = {"Done": "bold green", "Failed": "bold red", "Interrupted": "bold yellow"}


def render_screen(progress: RunProgress, width: int, height: int, now: float, notice: str = "") -> RenderableType:
    """The screen of ``progress`` at ``now``, for a terminal of ``width`` by ``height`` characters."""
    earlier = format_earlier_evaluations(progress.evaluations)
    # at least four lines, even if the terminal is too small: rich crops the rest
    room = max(4, height - FRAME_LINES - bool(earlier))
    roles = list(_role_rows(progress))
    shown = roles if len(roles) <= room - 3 else roles[: room - 4]
    table = _role_table(shown, len(roles) - len(shown), progress.status)
    events = progress.recent_events[-max(1, room - table.row_count) :]
    lines = [_text_line(f"{format_local_time(event.time)}  {describe_event(event)}") for event in events]
    world = progress.status.world if progress.status else None
    parts = [
        _title_text(progress, now),
        _progress_bar(progress, width),
        _measurements_text(progress),
        *([_text_line(describe_world(world))] if world is not None and progress.end_event is None else []),
        *([_text_line(earlier)] if earlier else []),
        Text(),
        table,
        Text(),
        *lines,
    ]
    return Group(*parts, *([_text_line(notice, "bold yellow")] if notice else []))


def _title_text(progress: RunProgress, now: float) -> Text:
    status = progress.status
    title = Text.assemble(
        (progress.phase, _PHASE_STYLES.get(progress.phase, "bold")), no_wrap=True, overflow="ellipsis"
    )
    if status is None:
        return title.append(f"  {format_duration(now - progress.start_time)}")
    title.append(f"  {status.job} {status.run}")
    if status.epochs > 1:
        title.append(f"  epoch {status.epoch} of {status.epochs}")
    return title.append(f"  step {status.step:,}  {format_duration(now - progress.start_time)}")


def _progress_bar(progress: RunProgress, width: int) -> RenderableType:
    status = progress.status
    done, total = (status.records_done, status.records_total) if status else (0, 0)
    bar = ProgressBar(total=max(1, total), completed=done, width=max(10, width - _BAR_TEXT), finished_style="green")
    grid = Table.grid(padding=(0, 1))
    grid.add_row(bar, Text(f"{100 * progress.share:3.0f} %  {done:,} of {total:,} records", no_wrap=True))
    return grid


def _measurements_text(progress: RunProgress) -> Text:
    status = progress.status
    if status is None:
        again = any(isinstance(event, RoleEnded) and event.role == "master" for event in progress.recent_events)
        return _text_line(
            "the master starts again; logs/master-0.log says why" if again else "the master starts", "dim"
        )
    if status.phase == "Starting" and progress.end_event is None:
        waits_for = to_single_line(status.reason) if not status.records_total else ""
        return _text_line(waits_for or "workers import the model", "dim")
    return _text_line("   ".join(format_measurements(status)))


def _role_rows(progress: RunProgress) -> Iterator[tuple[str, str, str, str]]:
    """Name, pid, state and rate of each process."""
    if progress.master_pid is not None:
        yield "master", str(progress.master_pid), "coordinating", ""
    status = progress.status
    for name, members in (("ps", status.ps), ("worker", status.workers)) if status else ():
        for member in members:
            pace = "" if not member.samples_per_second else f"{member.samples_per_second:,.0f}"
            yield format_role(name, member.index), str(member.pid or ""), member.state, pace


def _state_text(state: str, status: Status | None) -> str:
    """The state of a role; for a parameter server that serves tables, with their number."""
    parameters = status.parameters if status else None
    return (
        f"{state} {format_table_count(parameters.tables_total)}"
        if state == "serving" and parameters and parameters.tables_total
        else state
    )


def _role_table(rows: list[tuple[str, str, str, str]], hidden: int, status: Status | None) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    paced = any(pace for *_, pace in rows)
    for heading in ("process", "pid", "state", *(["samples/s"] if paced else [])) if rows else ():
        table.add_column(heading, justify="right" if heading in ("pid", "samples/s") else "left", no_wrap=True)
    for name, pid, state, pace in rows:
        table.add_row(
            name,
            pid,
            Text(to_single_line(_state_text(state, status)), _STATE_STYLES.get(state, "")),
            *([pace] if paced else []),
        )
    if hidden:
        table.add_row(f"{hidden} more")
    return table


def _text_line(text: str, style: str = "") -> Text:
    return Text(to_single_line(text), style, no_wrap=True, overflow="ellipsis")


REDRAW_SECONDS = 0.25


class LiveRenderer:
    """Redraws at most a few times per second, and leaves the last screen in the terminal."""

    def __init__(self, on: Console | None = None) -> None:
        self._console = on or make_console()
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._run_info: RunInfo | None = None
        self._notice = ""
        self._last_drawn = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show_plan(self, run_info: RunInfo) -> None:
        """Print the plan above the view."""
        self._run_info = run_info
        for line in run_info.plan_lines():
            for part in wrap_text(line, self._console.width, next_indent="    "):
                self._console.print(part, markup=False, soft_wrap=True)
        self._live.start()

    def show_event(self, event: JobEvent, progress: RunProgress) -> None:
        """Redraw soon: the event is part of the next screen."""
        self._last_drawn = 0.0

    def refresh(self, progress: RunProgress, now: float) -> None:
        """Redraw if enough time has passed."""
        if now - self._last_drawn >= REDRAW_SECONDS:
            self._last_drawn = now
            picture = render_screen(progress, self._console.width, self._console.height, now, self._notice)
            self._live.update(picture, refresh=True)

    def show_notice(self, text: str) -> None:
        """Show a notice in the view from now on."""
        self._notice, self._last_drawn = text, 0.0

    def show_outcome(self, run_info: RunInfo, outcome: RunOutcome) -> None:
        """Print the failure and the summary below the last screen."""
        if outcome.phase == "Failed":
            print(failure_text(outcome), file=sys.stderr, flush=True)
        for line in summary_lines(run_info, outcome):
            self._console.print(line, markup=False, soft_wrap=True)
