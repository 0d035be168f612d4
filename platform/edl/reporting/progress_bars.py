"""Progress bars on a terminal: of bytes, and of things that are counted."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from edl.reporting.unit_formats import format_bytes


class _SpeedColumn(ProgressColumn):
    """Bytes a second in powers of 1024, which rich's own column does not have."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{format_bytes(int(speed))}/s", style="progress.data.speed")


def byte_progress(console: Console, *, disable: bool = False) -> Progress:
    """A bar of bytes. The description of its task stands behind it, because it changes with each file or layer."""
    columns = (
        BarColumn(),
        DownloadColumn(binary_units=True),
        _SpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    return Progress(*columns, console=console, transient=True, disable=disable)


def count_progress(console: Console, what: str) -> Progress:
    """A bar of records or files; ``what`` is done with them."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)
