"""``python -m edl.worker.model_check SPEC RESULT``: checks a job in one process, up to its first update.

It does what a worker does until then, in the same order and with the same code: it loads the model's
module, its reader and ``feed``, the model and its optimizer and the callbacks, and computes the first
minibatch of training with the initial parameters of a parameter server. Then it tries what is possible
without training: the first minibatch of an evaluation and of a prediction, and whether the model function
returns the same model again, which an export needs.

RESULT is written at the end, as JSON: ``lines`` with the findings for users; ``failure`` and ``detail``,
empty if there is none; ``exit_code`` as of ``edl run``. If the process ends without RESULT, the user's
code has ended it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.core import evaluation
from edl.core.evaluation import merge_metric_states
from edl.core.partition import initial_placement, owner_of_name
from edl.core.shuffle import training_size_error
from edl.data.reader_factory import choose_reader_window
from edl.jobfile.keras_version import choose_keras
from edl.jobfile.loader import load_job_file
from edl.jobfile.schema_rules import find_schema
from edl.keras.tensorflow_import import import_tensorflow
from edl.numerics.initializers import initial_rows
from edl.numerics.parameter_store import RowBatch
from edl.worker import task_loop
from edl.worker.not_finite import find_nonfinite_gradient, is_finite, report_not_finite
from edl.worker.record_stream import CorruptRecordSkipper
from edl.worker.trainer import add_record_range

if TYPE_CHECKING:
    from edl.data.reader import Reader
    from edl.keras.network import KerasNetwork
    from edl.keras.replica_choice import AnyReplica, OnlyReplica
    from edl.worker.feed_pipeline import Minibatch
    from edl.worker.lease_client import LeasedTask

TaskMinibatch = tuple["LeasedTask", "Minibatch"]


def main(spec_file: Path, result_file: Path) -> int:
    """Check the job; returns 0 if there is no failure, otherwise the exit code of ``edl run``."""
    # TensorFlow reads it when it is loaded.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    result: dict[str, Any] = {"lines": [], "failure": "", "detail": "", "exit_code": 0}
    warnings, log = _WarningLines(result["lines"]), logging.getLogger("edl")
    log.addHandler(warnings)
    try:
        # Inside ``try``: that TensorFlow cannot be imported is a finding too.
        spec = load_job_file(spec_file)
        choose_keras(spec.model)
        import_tensorflow()
        for line in _JobCheck(spec).run_checks():
            result["lines"].append(line)
    except Exception as error:  # noqa: BLE001  every error becomes a message and an exit code
        failure = task_loop.describe_failure(error)
        result |= {"failure": failure.message, "detail": failure.detail, "exit_code": failure.exit_code}
    finally:
        log.removeHandler(warnings)
    result_file.write_text(json.dumps(result), encoding="utf-8")
    return int(result["exit_code"])


class _WarningLines(logging.Handler):
    """Collects each warning of a worker's log once, although the model is built more than once."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        line = f"warning: {record.getMessage()}"
        if line not in self._lines:
            self._lines.append(line)


def _keep_task_data(spec: JobSpec) -> JobSpec:
    """The spec with the data that its task uses. A job that trains is also checked with its data for predictions."""
    if spec.task == "train":
        return spec
    if spec.task == "evaluate":
        return replace(spec, data=replace(spec.data, training=(), prediction=()))
    return replace(spec, data=replace(spec.data, training=(), validation=()))


class _JobCheck:
    """The checks of one job.

    Args:
        spec: the job's spec with the paths of this machine.

    Raises:
        EdlError: the model's module cannot be imported, or violates the contract.
    """

    def __init__(self, spec: JobSpec) -> None:
        # Some import TensorFlow, so they come after ``import_tensorflow``.
        from edl.keras import model_contract
        from edl.worker.data_readers import DATA_SET_BY_MODE, open_data_set
        from edl.worker.feed_pipeline import FeedFunction

        spec = self._spec = _keep_task_data(spec)
        self._corrupt = CorruptRecordSkipper(spec.data.max_corrupt_records)
        self.module = model_contract.load_model_module(
            spec.model,
            needs_metrics=bool(spec.data.validation and (spec.data.training or spec.task == "evaluate")),
            may_have_train_step=spec.strategy.name != "ParameterServer" or spec.task != "train",
            schema=find_schema(spec.data),
        )

        @cache
        def feeder(kind: str) -> tuple[Any, FeedFunction]:
            module = self.module
            reader = open_data_set(spec.data, DATA_SET_BY_MODE[kind], module.custom_data_reader, module.zoo, spec.train)
            return reader, FeedFunction(
                self.module.feed, kind, reader.metadata, zoo=self.module.zoo, pad=spec.train.batches.pad
            )

        self._open_feed = feeder

    def run_checks(self) -> Iterator[str]:
        """Run the checks; yields the findings one by one.

        Raises:
            EdlError: the error with which a run would end.
        """
        data = self._spec.data
        if data.training:
            # Needs only the sources: a data set that is too small is reported before ``feed`` runs.
            self._check_order(self._open_feed("training")[0])
        training_minibatch = self._find_first("training") if data.training else None
        if data.training and data.validation:
            self._check_validation_data(training_minibatch)
        prediction_minibatch = self._find_first("prediction") if data.prediction else None
        # A model that is built by its first call needs the features of a minibatch.
        first = training_minibatch or prediction_minibatch
        if self._spec.task == "evaluate":
            first = self._find_first("evaluation")
        sample = None if first is None else first[1].features
        if data.training and self._spec.strategy.name != "ParameterServer":
            yield from self._check_replica(training_minibatch, sample)
            return
        network = self._build_network(sample)
        yield _describe_network(network)
        if data.training:
            yield from self._check_training(network, training_minibatch)
        if data.training or self._spec.task == "evaluate":
            yield from self._check_evaluation(network)
        if prediction_minibatch is not None:
            yield from self._check_prediction(network, *prediction_minibatch)
        if data.training and self._spec.export:
            self._check_same_model(network, sample)
            self._check_export(network.model)

    def _check_export(self, model: Any) -> None:
        """Refuse and warn now of what the export would refuse and warn of when training is over."""
        if self._spec.export:
            from edl.keras.model_building import make_serving_model, refuse_unexportable_inputs
            from edl.keras.model_export import warn_about_keras_file
            from edl.keras.user_code import user_code

            model = make_serving_model(self.module, model)
            with user_code(self.module.zoo, "export of the model"):
                warn_about_keras_file(model)
            refuse_unexportable_inputs(model)

    def _check_validation_data(self, first: TaskMinibatch | None) -> None:
        from edl.worker.validation_check import check_validation_data

        validation, feeder = self._open_feed("evaluation")
        check_validation_data(
            validation,
            feeder,
            self._open_feed("training")[0],
            None if first is None else first[1],
            max_corrupt_records=self._spec.data.max_corrupt_records,
            size=self._spec.train.minibatch_size,
        )

    def _check_order(self, reader: Reader) -> None:
        train, records = self._spec.train, sum(source.records for source in reader.sources())
        global_batch = self._spec.strategy.global_batch
        if why := training_size_error(train.minibatch_size, records, train.epochs, global_batch):
            raise BadInputError(why)
        lease_records = max(train.minibatch_size * train.minibatches_per_task, global_batch or 0)
        choose_reader_window(reader, train.shuffle.window, records, lease_records)

    def _find_first(self, kind: str) -> TaskMinibatch | None:
        from edl.worker.feed_pipeline import find_first_minibatch

        reader, feeder = self._open_feed(kind)
        return find_first_minibatch(reader, feeder, self._corrupt, size=self._spec.train.minibatch_size)

    def _callback_params(self) -> Mapping[str, Any]:
        from edl.keras.user_callbacks import build_callback_params

        return build_callback_params(self._spec.train, self._spec.strategy, self._open_feed("training")[0])

    # ------------------------------------------------------------------ with parameter servers

    def _build_network(self, sample: Any) -> KerasNetwork:
        from edl.keras.network import KerasNetwork
        from edl.worker.training_setup import make_layout, make_local_updater

        spec = self._spec
        slots = initial_placement(spec.ps.count)
        network = KerasNetwork.build(
            self.module,
            seed=spec.train.seed,
            embedding_threshold=spec.ps.embedding_threshold,
            ps_of_variable=partial(owner_of_name, slots=slots),
            ps_count=spec.ps.count,
            sample=sample,
        )
        # For its refusals only: not every optimizer can be applied on a worker.
        make_local_updater(spec.strategy, make_layout(network), network.optimizer.spec)
        return network

    def _check_training(self, network: KerasNetwork, first: TaskMinibatch | None) -> Iterator[str]:
        from edl.keras import user_callbacks
        from edl.keras.monitor_callbacks import check_monitors

        module = self.module
        check = partial(check_monitors, directions=network.metric_directions, spec=self._spec)
        params = self._callback_params
        callbacks = user_callbacks.make_callbacks(
            module.callbacks,
            network.model,
            network.keras_optimizer,
            module.zoo,
            check_monitors=check,
            make_params=params,
        )
        if first is None:
            yield "feed keeps none of the first records: no minibatch was tried"
            return
        task, minibatch = first
        # A callback that raises when training begins raises here too. Those that write log files
        # are left out: they would truncate the files of an earlier run.
        callbacks.begin_first_step()
        with add_record_range(task, 0):
            step = network.train(
                network.initial_values(),
                self._initial_rows(network, minibatch),
                minibatch.features,
                minibatch.labels,
                minibatch.weights,
            )
        if not is_finite(step):
            skip = self._spec.train.on_nan == "skip"
            report_not_finite(task, 0, step.loss, 1, skip=skip, gradient=find_nonfinite_gradient(network, step))
        # A schedule of the user's may raise.
        network.optimizer.learning_rate(0)
        yield f"first minibatch, {_describe_records(task)}: loss {step.loss:.4g}"

    def _check_evaluation(self, network: KerasNetwork) -> Iterator[str]:
        first = self._find_first("evaluation") if self._spec.data.validation else None
        if first is None:
            return
        task, minibatch = first
        network.reset_metrics()
        with add_record_range(task, 0):
            network.evaluate(
                network.initial_values(),
                self._initial_rows(network, minibatch),
                minibatch.features,
                minibatch.labels,
                minibatch.weights,
            )
        # As the master receives and merges them.
        states = json.loads(json.dumps(network.metric_states()))
        yield (
            f"evaluation of {_describe_records(task)}, untrained:"
            f" {_format_metrics(network.metric_values(evaluation.merge_metric_states({}, states)))}"
        )

    def _check_prediction(self, network: KerasNetwork, task: LeasedTask, minibatch: Minibatch) -> Iterator[str]:
        with add_record_range(task, 0):
            network.predict(network.initial_values(), self._initial_rows(network, minibatch), minibatch.features)
        yield f"prediction of {_describe_records(task)}: ok"

    def _initial_rows(self, network: KerasNetwork, minibatch: Minibatch) -> Any:
        """The rows that a minibatch looks up, as parameter servers hold them at the start."""
        ids = network.unique_ids(minibatch.features)
        return {
            table.name: RowBatch(
                ids[table.name], initial_rows(table.initializer, table.seed, ids[table.name], table.dim)
            )
            for table in network.tables
        }

    def _check_same_model(self, network: KerasNetwork, sample: Any) -> None:
        from edl.keras.model_building import check_same_model

        # An export calls the model function again, and needs the same names and shapes.
        again = self._build_network(sample)
        first, second = (
            {spec.name: spec.shape for spec in each.variables} | {t.name: (t.rows, t.dim) for t in each.tables}
            for each in (network, again)
        )
        check_same_model(trained=first, rebuilt=second)

    # ------------------------------------------------------------------ without parameter servers

    def _check_replica(self, first: TaskMinibatch | None, sample: Any) -> Iterator[str]:
        from edl.keras.keras2_models import name_class
        from edl.keras.model_building import refuse_lossy_export
        from edl.keras.replica_choice import build_only_replica, build_replica
        from edl.keras.step_additivity import check_added_losses, check_step_gradients

        spec = self._spec
        step = None if first is None else (first[1].features, first[1].labels, first[1].weights)
        replica: AnyReplica | OnlyReplica
        if spec.strategy.name == "Local":
            replica = build_only_replica(self.module, seed=spec.train.seed, sample=sample, first=step)
        else:
            replica = rank = build_replica(
                self.module,
                seed=spec.train.seed,
                rank_seed=0,
                sample=sample,
                max_dense_gradient=spec.strategy.max_dense_gradient,
                first=step,
            )
        if spec.export is not None:
            refuse_lossy_export(replica.model)
        try_callbacks = self._make_callbacks(replica)
        yield f"model: {name_class(replica.model)}, {_describe_variables(replica.variables.specs)}"
        if first is None:
            yield "feed keeps none of the first records: no minibatch was tried"
            return
        try_callbacks()
        task, minibatch = first
        with add_record_range(task, 0):
            if spec.strategy.name != "Local":
                check_added_losses(rank, minibatch.features)
                check_step_gradients(rank, minibatch.features, minibatch.labels, minibatch.weights)
            result = replica.take_step(minibatch.features, minibatch.labels, minibatch.weights)
        if not result.is_finite:
            skip, gradient = spec.train.on_nan == "skip", f"the gradient of '{result.nonfinite_name}'"
            report_not_finite(task, 0, result.loss, 1, skip=skip, gradient=gradient)
        yield f"first minibatch, {_describe_records(task)}: loss {result.loss:.4g}"
        evaluated = self._find_first("evaluation") if spec.data.validation else None
        if evaluated is not None:
            task, minibatch = evaluated
            replica.reset_metrics()
            replica.evaluate(minibatch.features, minibatch.labels, minibatch.weights)
            values = replica.metric_values(merge_metric_states({}, json.loads(json.dumps(replica.metric_states()))))
            yield f"evaluation of {_describe_records(task)}, after one step: {_format_metrics(values)}"
        self._check_export(replica.model)

    def _make_callbacks(self, replica: AnyReplica | OnlyReplica) -> Callable[[], None]:
        """Make the callbacks; returns the function that begins a first step with them."""
        if self._spec.strategy.name == "AllReduce":
            from edl.keras.all_reduce_callbacks import declare_training_callbacks

            return declare_training_callbacks(self.module, replica, self._spec).own.try_first_step
        from edl.keras import user_callbacks
        from edl.keras.monitor_callbacks import check_monitors

        return user_callbacks.make_callbacks(
            self.module.callbacks,
            replica.model,
            replica.optimizer,
            self.module.zoo,
            trains_locally=True,
            uses_optimizer=replica.uses_own_optimizer,
            check_monitors=partial(check_monitors, directions=replica.metric_directions, spec=self._spec),
            make_params=self._callback_params,
        ).begin_first_step


def _describe_network(network: KerasNetwork) -> str:
    from edl.keras.keras2_models import name_class

    description = f"model: {name_class(network.model)}, {_describe_variables(network.variables)}"
    tables = "".join(f"; on the parameter servers: {table}" for table in network.tables)
    return f"{description}{tables}; optimizer {type(network.keras_optimizer).__name__}"


def _describe_variables(specs: Any) -> str:
    trained = [spec for spec in specs if not spec.statistic]
    statistics = f", {len(specs) - len(trained)} statistics" if len(specs) > len(trained) else ""
    return f"{sum(spec.size for spec in trained):,} trained values in {len(trained)} variables{statistics}"


def _describe_records(task: LeasedTask) -> str:
    return f"records {task.start} to {task.end - 1} of {task.source}"


def _format_metrics(metrics: Any) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
