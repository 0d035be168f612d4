"""What decides how a worker rounds: packages, the processor's instructions, TensorFlow's threads."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from edl.core.state_agreement import RankFacts
from edl.transport.process_identity import count_available_cores

_CPU_INFO = Path("/proc/cpuinfo")
_VECTOR_PREFIXES = ("avx", "fma", "f16c", "amx", "sse4", "asimd", "sve", "sme", "bf16", "i8mm", "fphp")
"""Processor features that compilers and libraries choose kernels by."""
_NO_VECTORS = {"smep"}
"""Features with such a beginning that compute nothing."""


def read_rank_facts(worker: str) -> RankFacts:
    """The facts about this process; call it when TensorFlow's threads have been set."""
    lines = _CPU_INFO.read_text().splitlines() if _CPU_INFO.is_file() else []
    threading = tf.config.threading
    return RankFacts(
        worker,
        versions={"keras": keras.__version__, "numpy": np.__version__, "tensorflow": tf.__version__},
        instructions=(platform.machine(), *find_vector_instructions(lines)),
        threads={
            "intra-op": threading.get_intra_op_parallelism_threads() or count_available_cores(),
            "inter-op": threading.get_inter_op_parallelism_threads() or count_available_cores(),
        },
    )


def find_vector_instructions(cpu_info: Iterable[str]) -> list[str]:
    """The vector instructions in the lines of ``/proc/cpuinfo``, sorted; none if it lists no features."""
    for line in cpu_info:
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return sorted(
                name for name in value.split() if name.startswith(_VECTOR_PREFIXES) and name not in _NO_VECTORS
            )
    return []
