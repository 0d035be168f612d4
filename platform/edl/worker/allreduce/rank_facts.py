"""What decides how a worker rounds: packages, the processor's instructions, TensorFlow's threads."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from edl.core.state_agreement import RankFacts
from edl.transport.process_identity import count_available_cores
from edl.worker.allreduce.vector_instructions import read_instructions


def read_rank_facts(worker: str) -> RankFacts:
    """The facts about this process; call it when TensorFlow's threads have been set."""
    threading = tf.config.threading
    return RankFacts(
        worker,
        versions={"keras": keras.__version__, "numpy": np.__version__, "tensorflow": tf.__version__},
        instructions=read_instructions(),
        threads={
            "intra-op": threading.get_intra_op_parallelism_threads() or count_available_cores(),
            "inter-op": threading.get_inter_op_parallelism_threads() or count_available_cores(),
        },
    )
