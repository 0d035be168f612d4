"""How many examples property tests try: an eighth in `make test`, all of them in `make test-all` and `make third`."""

from __future__ import annotations

import os

FEWEST = 10
"""Below this many a property is hardly tried: counts are not lowered further."""


def examples(count: int) -> int:
    """``max_examples`` of a test that tries ``count`` of them at length."""
    if os.environ.get("EDL_TEST_THOROUGH") == "1":
        return count
    return min(count, max(FEWEST, count // 8))
