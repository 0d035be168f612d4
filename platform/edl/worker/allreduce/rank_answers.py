"""Reads what the other ranks of a round say. An answer that cannot be read is an error that names its rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from edl.core.rank_state import PendingShares
from edl.core.strict_json import decode_json
from edl.transport.peer_errors import PeerRefusedError

MAX_SHARES_BYTES = 64 << 20
"""The most bytes of the shares that travel with a state, and of the messages of all ranks that a follower gets.

1,000 ranks with 64 KiB each have as many.
"""
_HINT = (
    "all workers must run the same version of EDL; if they do, the memory, the processor or the network of that "
    "machine may be faulty"
)

_T = TypeVar("_T")


def plain_rank_name(rank: int) -> str:
    """A rank of which no worker is known."""
    return f"rank {rank}"


def read_answers(
    answers: Sequence[bytes], read: Callable[[bytes], _T], what: str, name_rank: Callable[[int], str] = plain_rank_name
) -> list[_T]:
    """Read what each rank said, by rank.

    Args:
        answers: of all ranks, by rank. All ranks have the same ones, so all raise the same error.
        read: raises a KeyError, TypeError or ValueError for an answer that cannot be read.
        what: the subject of the answers.
        name_rank: the name of a rank in an error.

    Raises:
        PeerRefusedError: an answer cannot be read. Another round would not help, so this ends the job.
    """
    return [read_answer(answer, read, what, name_rank(rank)) for rank, answer in enumerate(answers)]


def read_answer(answer: bytes, read: Callable[[bytes], _T], what: str, rank_name: str) -> _T:
    """Read what one rank said; see ``read_answers``."""
    try:
        return read(answer)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"it lacks {error}" if isinstance(error, KeyError) else error
        text = f"{rank_name} sent {what} that cannot be used: {problem}"
        raise PeerRefusedError(text, kind="bad", hint=_HINT) from error


def read_pending_shares(data: bytes) -> PendingShares:
    """The shares that travel with a state.

    Raises:
        KeyError, TypeError, ValueError: they are something else.
    """
    return PendingShares.from_json(decode_json(data))
