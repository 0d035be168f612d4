"""The process of strategy Local.

The command ``edl run`` replaces itself by this process, so ``breakpoint()`` works on the terminal. There is no master
and there are no leases. ``EDL_RUN_DIR`` names the run directory; with ``EDL_JSON=1`` the process prints JSON lines. If
the run directory contains a checkpoint, training resumes from it.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edl.api.job_spec import JobSpec
from edl.api.status import Status
from edl.jobfile.keras_version import choose_keras
from edl.jobfile.loader import load_job_file
from edl.jobfile.log_level import set_printed_level
from edl.jobfile.schema_rules import find_schema
from edl.keras.tensorflow_import import import_tensorflow
from edl.reporting.terminal_text import strip_control_characters
from edl.storage.run_directory import JobLock, RunDirectory
from edl.storage.run_weights import release_run_weights
from edl.worker import loss_log, task_loop
from edl.worker.local_strategy.local_report import LocalReport
from edl.worker.local_strategy.stop_request import StoppedError, StopRequest
from edl.worker.record_stream import CorruptRecordSkipper
from edl.worker.warning_collector import WarningCollector, is_not_collected

if TYPE_CHECKING:
    from edl.keras.model_contract import ModelModule
    from edl.worker.local_strategy.local_training import LocalTraining

GO_ON = "EDL_GO_ON"
"""The environment variable with the command that resumes the run; it is printed when the run is interrupted."""


def main(environment: Mapping[str, str]) -> int:
    """Train to the end; returns the exit code: 0 done, 1 failed, 2 bad input, 130 and 143 stopped by a signal.

    Raises:
        EdlError: the run directory cannot be used, or the same job is already running.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    for handler in logging.getLogger().handlers:
        # The report prints these.
        handler.addFilter(is_not_collected)
    run = RunDirectory(Path(environment["EDL_RUN_DIR"]))
    with JobLock(run.job_dir, run.run_id):
        spec = load_job_file(run.spec)
        _set_log_levels(spec.log.level)
        status = Status(spec.name, run.run_id, str(run.path), "Starting", time.time(), epochs=spec.train.epochs)
        report = LocalReport(run, status, as_json=environment.get("EDL_JSON") == "1")
        with WarningCollector(report.warn), StopRequest() as stop:
            return _finish(spec, run, report, stop, environment.get(GO_ON, ""))


def _set_log_levels(level: str) -> None:
    """Warnings and errors alone, beside the report of the run, and the lines with the loss that the job asks for."""
    set_printed_level(level)
    # Its handler prints what the loggers let through: of other modules, no information.
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger(loss_log.__name__).setLevel(logging.INFO)


def _finish(spec: JobSpec, run: RunDirectory, report: LocalReport, stop: StopRequest, go_on: str) -> int:
    """Run the training and report how it ended; returns the exit code."""
    report.started()
    try:
        training = _training(spec, run, report, stop)
        training.resume()
        exported = training.run()
    except KeyboardInterrupt as interrupt:
        stopped = interrupt if isinstance(interrupt, StoppedError) else StoppedError(signal.SIGINT)
        report.ended("Interrupted", stopped.reason, stopped.exit_code)
        if go_on:
            report.say(f"The job was {stopped.reason}.", f"Continue with: {go_on}")
        return stopped.exit_code
    except Exception as error:  # noqa: BLE001  every failure ends the process with a message and an exit code
        failure = task_loop.describe_failure(error)
        print(strip_control_characters(f"{failure.detail}{failure.message}"), file=sys.stderr, flush=True)
        report.ended("Failed", failure.message, failure.exit_code)
        return failure.exit_code
    report.ended(
        "Done",
        training.why_over,
        0,
        export=exported,
        export_loading=training.export_loading,
        records_skipped=training.skipped,
    )
    release_run_weights(run)
    return 0


def _training(spec: JobSpec, run: RunDirectory, report: LocalReport, stop: StopRequest) -> LocalTraining:
    choose_keras(spec.model)
    import_tensorflow()
    # After ``import_tensorflow``, which has to come before any other import of TensorFlow or Keras.
    from edl.keras import model_contract, user_callbacks
    from edl.keras.model_building import refuse_lossy_export, refuse_unexportable_inputs
    from edl.keras.monitor_callbacks import check_monitors
    from edl.keras.replica_choice import build_only_replica
    from edl.keras.user_callbacks import build_callback_params
    from edl.worker.data_readers import DATA_SET_BY_MODE, open_data_set
    from edl.worker.feed_pipeline import FeedFunction, find_first_minibatch
    from edl.worker.initial_weights_loading import assign_initial_weights, open_initial_weights
    from edl.worker.local_strategy.local_training import LocalTraining
    from edl.worker.validation_check import check_validation_data
    from edl.worker.worker_process import set_thread_counts

    set_thread_counts(workers=1)
    module: ModelModule = model_contract.load_model_module(
        spec.model, needs_metrics=bool(spec.data.validation), may_have_train_step=True, schema=find_schema(spec.data)
    )

    @cache
    def reader(name: str) -> Any:
        return open_data_set(
            spec.data, name, module.custom_data_reader, module.zoo, spec.train, run.path, is_first=True
        )

    @cache
    def feeder(kind: str) -> FeedFunction:
        return FeedFunction(
            module.feed, kind, reader(DATA_SET_BY_MODE[kind]).metadata, zoo=module.zoo, pad=spec.train.batches.pad
        )

    corrupt = CorruptRecordSkipper(spec.data.max_corrupt_records)
    size = spec.train.minibatch_size
    first = find_first_minibatch(reader("training"), feeder("training"), corrupt, size=size)
    minibatch = None if first is None else first[1]
    if spec.data.validation:
        check_validation_data(
            reader("validation"),
            feeder("evaluation"),
            reader("training"),
            minibatch,
            max_corrupt_records=spec.data.max_corrupt_records,
            size=size,
        )
    sample = None if minibatch is None else minibatch.features
    initial = open_initial_weights(run, spec, module, sample)
    model = build_only_replica(
        module,
        seed=spec.train.seed,
        sample=sample,
        first=None if minibatch is None else (minibatch.features, minibatch.labels, minibatch.weights),
        begin=partial(assign_initial_weights, initial=initial),
    )
    if spec.export is not None:
        refuse_lossy_export(model.model)
        refuse_unexportable_inputs(model.model)
    watcher = user_callbacks.make_callbacks(
        module.callbacks,
        model.model,
        model.optimizer,
        module.zoo,
        trains_locally=True,
        uses_optimizer=model.uses_own_optimizer,
        check_monitors=partial(check_monitors, directions=model.metric_directions, spec=spec),
        make_params=lambda: build_callback_params(spec.train, spec.strategy, reader("training")),
    )
    return LocalTraining(spec, run, model, reader, feeder, report, watcher, stop)
