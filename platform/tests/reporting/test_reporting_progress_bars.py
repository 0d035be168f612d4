"""Bars show bytes in the units of all other output."""

from __future__ import annotations

import io

from rich.console import Console

from edl.reporting.progress_bars import byte_progress, count_progress


def terminal() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=True, width=100, color_system=None), out


def test_sizes_and_speeds_are_in_powers_of_1024() -> None:
    console, out = terminal()
    with byte_progress(console) as progress:
        task = progress.add_task("model.keras", total=4 << 20)
        progress.update(task, completed=1 << 20)
        progress.update(task, completed=4 << 20)
        progress.refresh()
    assert "4.0/4.0 MiB" in out.getvalue()
    assert "iB/s" in out.getvalue()
    assert "MB" not in out.getvalue()
    assert "model.keras" in out.getvalue()


def test_a_disabled_bar_prints_nothing() -> None:
    console, out = terminal()
    with byte_progress(console, disable=True) as progress:
        progress.advance(progress.add_task("", total=10), 10)
    assert out.getvalue() == ""


def test_things_are_counted() -> None:
    console, out = terminal()
    with count_progress(console, "Converting") as progress:
        progress.advance(progress.add_task("", total=8), 5)
        progress.refresh()
    assert "Converting" in out.getvalue()
    assert "5/8" in out.getvalue()
