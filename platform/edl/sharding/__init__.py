"""Records for programs that EDL does not own: leased from a job's master, in any framework, without TensorFlow.

A program that a job runs (``command`` in the job file) makes a :class:`Client` and iterates over minibatches. Every
record of an epoch is done exactly once, however many workers come and go:

    from edl.sharding import Client

    with Client.from_env() as client:
        for batch in client.batches():
            step(batch.records)

See docs/programs.md.
"""

from edl.sharding.client import Client, RecordBatch, RecordShard, WorkerLeaving

__all__ = ["Client", "RecordBatch", "RecordShard", "WorkerLeaving"]
