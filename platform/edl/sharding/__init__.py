"""Records for programs that EDL does not own: leased from a job's master, in any framework, without TensorFlow.

A program that a job runs (``command`` in the job file) makes a :class:`Client` and iterates over minibatches. Every
record of an epoch is done exactly once, however many workers come and go:

    from edl.sharding import Client

    with Client.from_env() as client:
        for batch in client.batches():
            step(batch.records)

Under strategy AllReduce, workers compute one model together (:meth:`Client.steps`):

    for step in client.steps(weights, state_dict, load_state_dict):
        with step:
            gradients = None if step.batch is None else compute(step.batch)
            apply(step.allreduce(gradients))

See docs/programs.md.

May import: edl.worker, edl.collective, edl.transport, edl.storage, edl.data, edl.numerics, edl.jobfile, edl.core,
edl.api; PyTorch in the modules ``torch_*``. Never: TensorFlow, Keras.
"""

from edl.sharding.client import Client, RecordShard, WorkerLeaving
from edl.sharding.program_handoff import WorldChangedError
from edl.sharding.record_batch import RecordBatch
from edl.sharding.shared_steps import ProgramWorld, SharedStep

__all__ = [
    "Client",
    "ProgramWorld",
    "RecordBatch",
    "RecordShard",
    "SharedStep",
    "WorkerLeaving",
    "WorldChangedError",
]
