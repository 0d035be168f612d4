"""``--resume``, which may come with a run or stand alone, and ``--from-checkpoint``."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, ClassVar

import typer
from typer.core import TyperCommand

from edl.api.errors import BadInputError
from edl.storage.run_directory import NEWEST_RUN

FromCheckpointOption = Annotated[
    bool,
    typer.Option(
        "--from-checkpoint",
        help="With --resume: ignore the run's journal, which may be damaged, and start from its newest intact "
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
            "needs a run to continue",
            where="--from-checkpoint",
            hint="Add --resume [RUN].",
        )


class OptionalRunCommand(TyperCommand):
    """A command whose ``--resume`` needs no value: only a following word like a run id becomes one."""

    run_id_pattern: ClassVar[re.Pattern[str]] = re.compile(rf"{NEWEST_RUN}|r[1-9][0-9]*")

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Give a ``--resume`` without a run the newest one."""
        return super().parse_args(ctx, [self._with_default_run(arg, after) for arg, after in pairwise([*args, ""])])

    def _with_default_run(self, arg: str, after: str) -> str:
        """An argument, with its value if it is a ``--resume`` that stands alone."""
        return f"--resume={NEWEST_RUN}" if arg == "--resume" and not self.is_run_id(after) else arg

    def is_run_id(self, word: str) -> bool:
        """Whether the word after ``--resume`` is the run that is meant."""
        return self.run_id_pattern.fullmatch(word) is not None
