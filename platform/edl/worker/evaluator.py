"""Evaluating leased ranges at a pinned cut, and turning merged metric states into values."""

from __future__ import annotations

import json
from typing import Protocol

from edl.keras.flat_buffer import Floats
from edl.worker.lease_client import LeaseClient, LeasedTask
from edl.worker.model_interface import NetworkLike, RowSource, TrainingCallbacks, pull_needed_rows
from edl.worker.progress_reporter import ProgressReporter
from edl.worker.record_errors import add_record_range
from edl.worker.record_stream import RecordStream
from edl.worker.shutdown_gate import ShutdownGate


class PinnedParameters(RowSource, Protocol):
    """Parameters of pinned cuts."""

    def pull(self, pin: int) -> Floats: ...  # noqa: D102


class Evaluator:
    """Does evaluation and metrics tasks; keeps the dense values of the newest pin, for its next task."""

    def __init__(
        self,
        network: NetworkLike,
        parameters: PinnedParameters,
        stream: RecordStream,
        leases: LeaseClient,
        progress: ProgressReporter,
        gate: ShutdownGate,
        watcher: TrainingCallbacks,
    ) -> None:
        self._network = network
        self._parameter_client = parameters
        self._stream = stream
        self._leases = leases
        self._progress = progress
        self._gate = gate
        self._training_callbacks = watcher
        self._pinned_values: tuple[int, Floats] | None = None

    def run(self, task: LeasedTask) -> None:
        """Evaluate every record of the range; the report carries the metric states."""
        slab = self._slab(task.pin)
        self._training_callbacks.begin_test()
        self._network.reset_metrics()
        for loaded in self._stream.load_steps(task):
            if self._gate.closed or not self._leases.alive(task.lease):
                self._progress.drop(task.lease)
                return
            if loaded.minibatch is not None:
                given, features = loaded.minibatch, loaded.minibatch.features
                with add_record_range(task, loaded.step):
                    rows = pull_needed_rows(self._network, self._parameter_client, features, task.pin)
                    self._network.evaluate(slab, rows, features, given.labels, given.weights)
            # No step is reported as in: the states exist here only, and all of them go with the report or none.
            self._progress.stepped(task.lease, 0, loss=None, skipped=loaded.skipped)
        self._training_callbacks.end_test()
        self._progress.finish(task.lease, json.dumps(self._network.metric_states()).encode())

    def metrics(self, task: LeasedTask) -> None:
        """Turn the states that the master added up into values."""
        values = self._network.metric_values(task.told())
        self._progress.finish(task.lease, json.dumps(values).encode())

    def _slab(self, pin: int) -> Floats:
        if self._pinned_values is None or self._pinned_values[0] != pin:
            self._pinned_values = None  # two versions of a large model need not be in memory at once
            self._pinned_values = (pin, self._parameter_client.pull(pin))
        return self._pinned_values[1]
