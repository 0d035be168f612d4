"""The vector instructions of this machine's processor: libraries choose kernels by them, and so how they round."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_VECTOR_PREFIXES = ("avx", "fma", "f16c", "amx", "sse4", "asimd", "sve", "sme", "bf16", "i8mm", "fphp")
"""Processor features that compilers and libraries choose kernels by."""
_NO_VECTORS = {"smep"}
"""Features with such a beginning that compute nothing."""


def read_instructions() -> tuple[str, ...]:
    """The processor's architecture, and its vector instructions."""
    lines = _CPU_INFO.read_text().splitlines() if _CPU_INFO.is_file() else []
    return platform.machine(), *find_vector_instructions(lines)


def find_vector_instructions(cpu_info: Iterable[str]) -> list[str]:
    """The vector instructions in the lines of ``/proc/cpuinfo``, sorted; none if it lists no features."""
    for line in cpu_info:
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return sorted(
                name for name in value.split() if name.startswith(_VECTOR_PREFIXES) and name not in _NO_VECTORS
            )
    return []
