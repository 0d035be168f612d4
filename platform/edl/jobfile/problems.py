"""What is wrong with a document: where, at which path, what was found, what is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from edl.api.errors import BadInputError


@dataclass(frozen=True, slots=True)
class SpecProblem:
    """One mistake in a document.

    Attributes:
        where: file and line (``job.yaml:7``), or the option that set the value (``--set train.epochs=x``).
        path: the place in the document, ``train.epochs`` or ``volumes[0].mount``; empty for the document itself.
        message: what was found and what is allowed, in one sentence.
        hint: what the user can do about it.
    """

    where: str
    path: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        place = f"{self.where}: {self.path}" if self.path else self.where
        return f"{place}: {self.message}" + (f"\n  {self.hint}" if self.hint else "")


class SpecError(BadInputError):
    """A document that cannot be used; ``problems`` holds every mistake that was found in it, in its order."""

    def __init__(self, problems: Sequence[SpecProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def closest_match(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that ``name`` is most likely a typo of, or None when none is close."""
    by_folded = {normalize_spelling(candidate): candidate for candidate in valid}
    close = get_close_matches(normalize_spelling(name), by_folded, n=1)
    return by_folded[close[0]] if close else None


def normalize_spelling(name: str) -> str:
    """A name without its spelling: to people minibatchSize, Minibatch-Size and minibatch_size are one word."""
    return name.lower().replace("-", "").replace("_", "")
