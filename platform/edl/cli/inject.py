"""``edl inject``: run a job on this machine and send signals to its processes."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from edl.api.errors import BadInputError

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_COMMAND = "edl.inject.command"


class _SplitAtDashes(TyperCommand):
    """Keeps what stands behind ``--`` apart: click would join it to the faults."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        position = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = args[position + 1 :]
        return super().parse_args(ctx, args[:position])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "--", "edl run JOB..."]


@app.command(cls=_SplitAtDashes)
def inject(
    context: typer.Context,
    faults: Annotated[
        list[str],
        typer.Argument(
            metavar="ROLE[-INDEX]:SIGNAL@WHEN",
            help="ROLE is worker, ps or master, SIGNAL is KILL, TERM, STOP or CONT, WHEN is a step or a share of all"
            " records: worker:KILL@50%, ps-1:STOP@400. Without INDEX, the running process with the lowest index gets"
            " the signal.",
        ),
    ],
) -> None:
    """Run a job on this machine and send signals to its processes at given steps.

    The command after ``--`` runs on this terminal. Only processes of its job get a signal.

    Exit codes: those of the command, and 1 in place of 0 if a signal could not be sent; 2 invalid fault, or no command.
    """
    from edl.ops.fault_injection import ScheduledSignal, run_with_faults

    command = context.meta[_COMMAND]
    if not command:
        raise BadInputError("there is no command after --", hint=f"edl inject {faults[0]} -- edl run job.yaml")
    result = run_with_faults(
        [ScheduledSignal.parse(text) for text in faults], command, lambda text: print(text, file=sys.stderr, flush=True)
    )
    for line in result.sent_signals:
        print(f"edl inject: {line}")
    for fault in result.unsent_signals:
        print(
            f"edl inject: {fault} was not sent: the run did not get so far, or no such process was running",
            file=sys.stderr,
        )
    raise typer.Exit(result.exit_code)
