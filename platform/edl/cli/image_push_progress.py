"""How a push looks while it lasts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

if TYPE_CHECKING:
    from edl.ops.image_push import PushProgress


def show_push(states: Iterable[PushProgress], console: Console) -> PushProgress:
    """Show the states of a push as they come: a bar on a terminal, a line per layer elsewhere. The last state."""
    from edl.ops.image_push import PushProgress

    last = PushProgress()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("Pushing", total=None)
        for state in states:
            if not console.is_terminal:
                _print_finished_layers(state, last, console)
            _update_bar(state, progress, task)
            last = state
    return last


def _update_bar(state: PushProgress, progress: Progress, task: TaskID) -> None:
    layers = (
        len(state.finished_layers) + len(state.waiting_layers) + len(state.total_bytes.keys() - state.finished_layers)
    )
    progress.update(
        task,
        description=f"Pushing, {len(state.finished_layers)} of {layers} layers there",
        completed=sum(state.sent_bytes.values()),
        total=sum(state.total_bytes.values()) or None,
    )


def _print_finished_layers(state: PushProgress, before: PushProgress, console: Console) -> None:
    for layer in sorted(state.finished_layers - before.finished_layers):
        console.print(f"{layer}: there", highlight=False)
