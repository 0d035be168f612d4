"""The base class of a module's ``PredictionOutputsProcessor``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from elasticdl_compat.missing_names import explain_missing_names


class BasePredictionOutputsProcessor(ABC):
    """Processes the predictions of a job instead of writing them to files."""

    @abstractmethod
    def process(self, predictions: Any, worker_id: int) -> None:
        """Process the predictions of one minibatch.

        Args:
            predictions: the model's outputs.
            worker_id: index of the worker that computed them.
        """


__getattr__ = explain_missing_names(__name__)
