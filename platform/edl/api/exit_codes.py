"""Exit codes of processes that a signal ended, as a shell reports them: 128 and the number of the signal."""

from __future__ import annotations

INTERRUPTED_EXIT = 130
"""After Ctrl-C (SIGINT)."""
SIGKILL_EXIT = 137
"""Nobody can answer SIGKILL: it came from the kernel, which had no memory left, from the kubelet or from a person."""
OUTPUT_CLOSED_EXIT = 141
"""After the reader of the output left (SIGPIPE)."""
SIGTERM_EXIT = 143
"""After SIGTERM. A role that flushes what it has and ends by itself returns it, too: it was told to go, and did not
fail."""
