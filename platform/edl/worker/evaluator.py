"""Evaluation of leased ranges.

Every worker evaluates with the same parameters: those of a pinned cut, while training continues, or stored ones. The
master merges the metric states of all ranges; a worker converts the merged states to values, because only workers
import the user's metrics.
"""

from __future__ import annotations

import json
from typing import Protocol

from edl.numerics.array_types import Floats
from edl.worker.graceful_shutdown import ShutdownGate
from edl.worker.lease_client import LeaseClient, LeasedTask, ProgressReporter
from edl.worker.model_interface import NetworkLike, RowSource, TrainingCallbacks, pull_needed_rows
from edl.worker.record_stream import RecordStream
from edl.worker.trainer import add_record_range


class PinnedParameters(RowSource, Protocol):
    """Parameters of pinned cuts."""

    def pull_pinned(self, pin: int) -> Floats: ...


class Evaluator:
    """Runs evaluation and metrics tasks; keeps the dense values of the latest pin for the next task."""

    def __init__(
        self,
        network: NetworkLike,
        parameter_client: PinnedParameters,
        stream: RecordStream,
        leases: LeaseClient,
        progress: ProgressReporter,
        gate: ShutdownGate,
        training_callbacks: TrainingCallbacks,
    ) -> None:
        self._network = network
        self._parameter_client = parameter_client
        self._stream = stream
        self._leases = leases
        self._progress = progress
        self._gate = gate
        self._training_callbacks = training_callbacks
        self._pinned_values: tuple[int, Floats] | None = None

    def run(self, task: LeasedTask) -> None:
        """Evaluate every record of the range and report the metric states."""
        flat_values = self._pull_pinned(task.pin)
        self._training_callbacks.begin_test()
        self._network.reset_metrics()
        for loaded in self._stream.load_steps(task):
            if self._gate.closed or not self._leases.is_held(task.lease_id):
                self._progress.drop_lease(task.lease_id)
                return
            if loaded.minibatch is not None:
                minibatch, features = loaded.minibatch, loaded.minibatch.features
                with add_record_range(task, loaded.step):
                    rows = pull_needed_rows(self._network, self._parameter_client, features, task.pin)
                    self._network.evaluate(flat_values, rows, features, minibatch.labels, minibatch.weights)
            # The metric states exist only in this process until the range is complete, so no
            # progress inside the range is reported: another worker would start it again.
            self._progress.record_step(task.lease_id, 0, loss=None, skipped_records=loaded.skipped_records)
        self._training_callbacks.end_test()
        self._progress.finish_task(task.lease_id, json.dumps(self._network.metric_states()).encode())

    def compute_metrics(self, task: LeasedTask) -> None:
        """Compute metric values from the states that the master merged."""
        values = self._network.metric_values(task.decode_payload())
        self._progress.finish_task(task.lease_id, json.dumps(values).encode())

    def _pull_pinned(self, pin: int) -> Floats:
        if self._pinned_values is None or self._pinned_values[0] != pin:
            # Free the old version first: two versions of a large model need not be in memory at once.
            self._pinned_values = None
            self._pinned_values = (pin, self._parameter_client.pull_pinned(pin))
        return self._pinned_values[1]
