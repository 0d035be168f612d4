"""Workers over time as a small plot of block characters: full for those that run, light for those that wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edl.api.status import TimelinePoint
from edl.reporting.unit_formats import format_duration

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_WAITING_CELL = "░"
MAX_HEIGHT = 6


def plot_workers(moments: Sequence[TimelinePoint], wanted: int, width: int, now: float | None = None) -> list[str]:
    """Lines of at most ``width`` characters; empty when there is nothing to draw yet.

    Args:
        moments: of the job's life, oldest first; each holds until the next.
        wanted: workers that are wanted now: the plot is at least so high.
        width: of the terminal.
        now: unix seconds until which the last moment holds; its own time by default.
    """
    if len(moments) < 2:
        return []
    begin, end = moments[0].time, max(now or 0.0, moments[-1].time)
    top = max(wanted, *(moment.workers + moment.pending for moment in moments), 1)
    label = len(str(top)) + 2
    columns = max(8, min(width - label, 72))
    running = column_averages(moments, begin, end, columns, lambda moment: moment.workers)
    asked = column_averages(moments, begin, end, columns, lambda moment: moment.workers + moment.pending)
    height = min(top, MAX_HEIGHT)
    lines = [
        "".join(
            _plot_cell(height * run / top - row, height * ask / top - row)
            for run, ask in zip(running, asked, strict=True)
        )
        for row in reversed(range(height))
    ]
    marks = [str(top), *[""] * (height - 1)]
    drawn = [f"{mark:>{label - 2}} ┤{line}".rstrip() for mark, line in zip(marks, lines, strict=True)]
    return [*drawn, f"{0:>{label - 2}} └{'─' * columns}", f"{'':{label}}{_time_axis(end - begin, columns)}"]


def column_averages(
    moments: Sequence[TimelinePoint], begin: float, end: float, columns: int, value: Callable[[TimelinePoint], int]
) -> list[float]:
    """The value of each column: how much it was on average in that part of the time."""
    step = (end - begin) / columns or 1.0
    sums = [0.0] * columns
    borders = [*(moment.time for moment in moments[1:]), end]
    for moment, until in zip(moments, borders, strict=True):
        at = moment.time
        column = min(columns - 1, int((at - begin) / step))
        while at < until and column < columns:
            border = begin + (column + 1) * step if column < columns - 1 else end
            sums[column] += (min(until, border) - at) * value(moment)
            at, column = max(at, min(until, border)), column + 1
    return [each / step for each in sums]


def _plot_cell(running: float, asked: float) -> str:
    """One character: what of it is filled, 1 being all of it."""
    if running >= 1:
        return "█"
    if running > 1 / 16:
        return _EIGHTHS[min(8, max(1, round(8 * running)))]
    return _WAITING_CELL if asked >= 0.5 else " "


def _time_axis(seconds: float, columns: int) -> str:
    """Under the plot: how long ago it begins, and where it ends."""
    left = f"{format_duration(seconds)} ago"
    return f"{left}{'now':>{max(4, columns - len(left))}}"
