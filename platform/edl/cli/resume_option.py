"""``--resume``, which may come with a run or stand alone."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, ClassVar

import typer
from typer.core import TyperCommand

from edl.api.errors import BadInputError

FromCheckpointOption = Annotated[
    bool,
    typer.Option(
        "--from-checkpoint",
        help="With --resume: leave the run's journal out, which may be damaged, and go back to its newest intact "
        "checkpoint.",
    ),
]


def check_from_checkpoint(resume: str | None, *, from_checkpoint: bool) -> None:
    """Refuse ``--from-checkpoint`` without the run that it is about.

    Raises:
        BadInputError: there is no ``--resume``.
    """
    if from_checkpoint and resume is None:
        raise BadInputError(
            "says from where a run goes on",
            where="--from-checkpoint",
            hint="Say which: --resume [RUN].",
        )


class OptionalRunCommand(TyperCommand):
    """A command whose ``--resume`` may come without a run: only what looks like one after it is taken for one."""

    run_id_pattern: ClassVar[re.Pattern[str]] = re.compile(r"r[1-9][0-9]*")
    newest_run: ClassVar[str] = "newest"
    """What a ``--resume`` that stands alone means."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Give a ``--resume`` that stands alone its value."""
        return super().parse_args(ctx, [self._with_default_run(arg, after) for arg, after in pairwise([*args, ""])])

    def _with_default_run(self, arg: str, after: str) -> str:
        """An argument, with its value if it is a ``--resume`` that stands alone."""
        return f"--resume={self.newest_run}" if arg == "--resume" and not self.is_run_id(after) else arg

    def is_run_id(self, word: str) -> bool:
        """Whether the word after ``--resume`` is the run that is meant."""
        return self.run_id_pattern.fullmatch(word) is not None
