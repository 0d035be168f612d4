"""What bounds a worker: its own step function, with the rows already in memory and gradients thrown away.

The process of one worker of deepfm.py's limit. The same model, step function and number of threads as a worker's; no
parameter server, no master. It goes round in a few minibatches, of which it has the rows. ``fed`` minibatches are made
from serialized records by the zoo's ``feed`` on a thread of its own, as a worker makes them; otherwise they are in
memory too.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer import serve_questions

from edl.api.job_spec import ModelSpec
from edl.keras.tensorflow_import import import_tensorflow
from edl.worker.worker_process import set_thread_counts

if TYPE_CHECKING:
    from edl.worker.feed_pipeline import Minibatch


class ComputeLimit:
    """Minibatches of ``batch`` records of a folder, and the network of ``definition`` that trains on them.

    Args:
        training: folder of records.
        zoo: the zoo's folder.
        vocabulary: of the model.
        batch: records of a minibatch.
    """

    def __init__(self, training: Path, zoo: Path, vocabulary: int, batch: int) -> None:
        import numpy as np
        from click_job import BLOCKS, records_of

        from edl.keras import model_contract
        from edl.keras.network import KerasNetwork
        from edl.numerics.parameter_store import RowBatch
        from edl.worker.feed_pipeline import FeedFunction
        from edl.worker.record_stream import RecordWindow

        params = {"vocabulary": vocabulary}
        module = model_contract.load_model_module(
            ModelSpec(zoo=str(zoo), definition="deepfm.deepfm.custom_model", params=params)
        )
        self._network = KerasNetwork.build(
            module, seed=0, embedding_threshold=2 << 20, ps_of_variable=lambda _: 0, ps_count=1, sample=None
        )
        self._batch, self._slab = batch, _as_pulled(self._network.initial_values())
        self._feeder = FeedFunction(module.feed, "training", None)
        records = records_of(training, BLOCKS * batch)
        self._windows = [RecordWindow(records[at : at + batch]) for at in range(0, BLOCKS * batch, batch)]
        minibatches = (self._feeder.make_minibatch(tag, window) for tag, window in enumerate(self._windows))
        self._minibatches = [minibatch for minibatch in minibatches if minibatch is not None]
        random = np.random.default_rng(0)
        dims = {table.name: table.dim for table in self._network.tables}
        self._rows = [
            {
                name: RowBatch(ids, _as_pulled(random.uniform(-0.05, 0.05, (len(ids), dims[name])).astype(np.float32)))
                for name, ids in self._network.unique_ids(minibatch.features).items()
            }
            for minibatch in self._minibatches
        ]

    def samples_per_second(self, question: dict[str, Any]) -> dict[str, Any]:
        """Samples a second for ``seconds``, with minibatches that are ``fed`` or not."""
        minibatches: Iterator[Minibatch] = (
            self._fed_minibatches() if question["fed"] else itertools.cycle(self._minibatches)
        )
        for _ in range(5):
            self._run_step(next(minibatches))
        steps, begun = 0, time.perf_counter()
        while (passed := time.perf_counter() - begun) < question["seconds"]:
            self._run_step(next(minibatches))
            steps += 1
        if question["fed"]:
            assert isinstance(minibatches, Generator)
            minibatches.close()
        return {"rate": steps * self._batch / passed}

    def _fed_minibatches(self) -> Iterator[Minibatch]:
        from edl.worker.feed_pipeline import feed_in_background

        return feed_in_background(self._feeder, itertools.cycle(enumerate(self._windows)))

    def _run_step(self, made: Minibatch) -> None:
        self._network.train(self._slab, self._rows[made.tag], made.features, made.labels)


def _as_pulled(values: Any) -> Any:
    """The same values in memory that TensorFlow takes as it is, as a worker has what it pulls."""
    from edl.numerics import aligned_memory

    aligned = aligned_memory.allocate_aligned(*values.shape, dtype=values.dtype)
    aligned[...] = values
    return aligned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("training", type=Path)
    parser.add_argument("zoo", type=Path)
    parser.add_argument("--vocabulary", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    arguments = parser.parse_args()
    import_tensorflow()
    set_thread_counts(workers=arguments.workers)
    serve_questions(
        ComputeLimit(arguments.training, arguments.zoo, arguments.vocabulary, arguments.batch).samples_per_second
    )


if __name__ == "__main__":
    main()
