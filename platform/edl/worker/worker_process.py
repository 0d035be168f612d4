"""The worker process: starts, builds the model, and runs the task loop.

The main thread imports TensorFlow while another thread imports gRPC and connects to the master.
"""

from __future__ import annotations

import fcntl
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from edl.jobfile.keras_version import choose_keras
from edl.jobfile.loader import load_job_file
from edl.jobfile.log_level import set_printed_level
from edl.jobfile.schema_rules import find_schema
from edl.jobfile.strategy_choice import uses_all_reduce
from edl.keras.tensorflow_import import import_tensorflow
from edl.transport.process_identity import ProcessIdentity, count_available_cores
from edl.worker.graceful_shutdown import GracefulShutdown, LeavingError
from edl.worker.warning_collector import WarningCollector

if TYPE_CHECKING:
    from edl.keras.model_contract import ModelModule
    from edl.worker.lease_client import LeasedTask
    from edl.worker.runtime import WorkerRuntime


# --------------------------------------------------------------------------------------------------
# Import slots: workers on one machine import TensorFlow and build the model in turns, as many at a
# time as there are cores. An import takes seconds of one core. If more workers than cores import at
# once, all of them are late, and so is the first minibatch or the first error in the model's code.
# In turns the same work takes the same time, and the first worker is done after the time of one
# import. A slot is a lock on a file in the job's private folder; the kernel releases it when the
# process ends. The wait has a timeout: a worker that is suspended during its import must not block
# the others.


SLOT_WAIT_SECONDS = 15.0
"""A worker that waited for so long starts without a slot. A few imports on a slow machine take so long."""
_SLOT_POLL_SECONDS = 0.02


class ImportSlot:
    """A worker's import slot; created by :func:`acquire_import_slot`."""

    def __init__(self, descriptor: int | None) -> None:
        """Keep the locked file ``descriptor`` open; None if the wait timed out."""
        self._descriptor = descriptor

    @property
    def is_held(self) -> bool:
        """Whether this worker holds a slot; not after a timeout."""
        return self._descriptor is not None

    def release(self) -> None:
        """Release the slot to the next worker."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def acquire_import_slot(folder: Path, cores: int, timeout_seconds: float = SLOT_WAIT_SECONDS) -> ImportSlot:
    """Wait until fewer than ``cores`` workers of this machine import, or until the timeout.

    Args:
        folder: the job's private folder on this machine.
        cores: the number of slots.
        timeout_seconds: the longest wait; then the returned slot is not held.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        for number in range(cores):
            descriptor = os.open(folder / f"turn-{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                # Another worker holds this slot.
                os.close(descriptor)
            else:
                return ImportSlot(descriptor)
        if time.monotonic() >= deadline:
            return ImportSlot(None)
        time.sleep(_SLOT_POLL_SECONDS)


TaskHandlers = dict[str, "Callable[[LeasedTask], None]"]

_INTER_OP_THREADS = 2


def run_worker(identity: ProcessIdentity, shutdown: GracefulShutdown) -> int:
    """Work until no task is left; returns the exit code.

    Raises:
        EdlError: the job cannot be read, or the connection to the master is lost.
    """
    runtime_future = _run_in_thread(partial(_start_runtime, identity, shutdown))
    # A worker in a pod has cores of its own, so it needs no turn.
    import_slot = (
        acquire_import_slot(identity.runtime_dir, count_available_cores())
        if identity.pod_host is None
        else ImportSlot(None)
    )
    choose_keras(load_job_file(identity.run_dir / "spec.json").model)
    import_tensorflow()
    runtime = runtime_future.result()
    set_printed_level(runtime.spec.log.level)
    workers = runtime.spec.workers
    if identity.pod_host is None:
        set_thread_counts(workers=workers.max)
    else:
        # The process sees all cores of the node, but most of them belong to other pods.
        set_thread_counts(workers=1, cores=math.ceil(workers.resources.cpu))
    try:
        with WarningCollector(runtime.progress.add_warning):
            return _run_tasks(runtime, import_slot)
    except LeavingError:
        return shutdown.wait_for_exit()


def _start_runtime(identity: ProcessIdentity, shutdown: GracefulShutdown) -> WorkerRuntime:
    # Imported here so that gRPC and protobuf load on this thread, in parallel with TensorFlow.
    from edl.worker.runtime import WorkerRuntime

    runtime = WorkerRuntime.from_identity(identity, shutdown.gate)
    # Before start(): as soon as the master knows this worker, it may ask it to stop.
    shutdown.lease_return.set_result(runtime.return_leases)
    runtime.start()
    return runtime


def _run_in_thread(work: Callable[[], WorkerRuntime]) -> Future[WorkerRuntime]:
    """Run ``work`` on a daemon thread."""
    future: Future[WorkerRuntime] = Future()

    def execute() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  raised again where the result is wanted
            future.set_exception(error)

    threading.Thread(target=execute, name="start", daemon=True).start()
    return future


def set_thread_counts(*, workers: int, cores: int | None = None) -> None:
    """Set TensorFlow's thread counts to this worker's share of the cores.

    A user's ``TF_NUM_INTRAOP_THREADS`` and ``TF_NUM_INTEROP_THREADS`` take precedence. Call this before the first
    operation: TensorFlow refuses it later.

    Args:
        workers: how many workers share the cores.
        cores: how many cores they share; by default all that this process may use.
    """
    import tensorflow as tf

    cores = cores or count_available_cores()
    if "TF_NUM_INTRAOP_THREADS" not in os.environ:
        tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // max(1, workers)))
    if "TF_NUM_INTEROP_THREADS" not in os.environ:
        tf.config.threading.set_inter_op_parallelism_threads(_INTER_OP_THREADS)


def _run_tasks(worker_runtime: WorkerRuntime, import_slot: ImportSlot) -> int:
    from edl.keras import model_contract
    from edl.worker.task_loop import TaskLoop

    runtime = worker_runtime
    handlers: TaskHandlers = {}
    train: Callable[[], int] | None = None
    loop = TaskLoop(runtime.session, runtime.leases, runtime.progress, runtime.gate, handlers)
    try:
        trains = runtime.spec.task == "train"
        all_reduce = uses_all_reduce(runtime.spec)
        module = model_contract.load_model_module(
            runtime.spec.model,
            needs_metrics=bool(runtime.spec.data.validation) and runtime.spec.task != "predict",
            # An evaluation or prediction calls the model alone.
            may_have_train_step=all_reduce or not trains,
            schema=find_schema(runtime.spec.data),
        )
        runtime.model_module.set_result(module)
        handlers["describe"] = partial(_describe_data_sets, runtime)
        if all_reduce:
            from edl.worker.allreduce.setup import prepare_all_reduce

            train = prepare_all_reduce(runtime, module, handlers, loop)
        else:
            finish_run = _prepare_tasks(runtime, module, handlers)
    except LeavingError:
        raise
    # Every failure is reported to the master. Only code raises the last two: workers ignore SIGINT.
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001
        return loop.report_failure(error) or 1
    # TensorFlow is imported and the model is built: the next worker may begin.
    import_slot.release()
    if train is not None:
        return loop.run_guarded(train)
    code = loop.run()
    finish_run()
    return code


def _prepare_tasks(runtime: WorkerRuntime, module: ModelModule, handlers: TaskHandlers) -> Callable[[], None]:
    if runtime.spec.task == "train":
        from edl.worker import training_setup

        return training_setup.prepare_training(runtime, module, handlers)
    from edl.worker import stored_model_setup

    return stored_model_setup.prepare_stored_model(runtime, module, handlers)


def _describe_data_sets(runtime: WorkerRuntime, task: LeasedTask) -> None:
    from edl.worker.data_readers import describe_data_sets

    spec = runtime.spec
    runtime.progress.finish_task(
        task.lease_id,
        describe_data_sets(spec.data, runtime.open_reader, task=spec.task, shuffle_window=spec.train.shuffle.window),
    )
