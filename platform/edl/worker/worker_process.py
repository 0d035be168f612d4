"""The worker process: TensorFlow in the main thread, everything else beside it, then the loop."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from edl.keras.tensorflow_import import import_tensorflow
from edl.transport.process_identity import Identity
from edl.worker.graceful_shutdown import Departure
from edl.worker.import_slots import Turn, wait_for_turn
from edl.worker.shutdown_gate import LeavingError

if TYPE_CHECKING:
    from edl.keras.model_contract import ModelModule
    from edl.worker.lease_client import Leased
    from edl.worker.runtime import Coordination

Handlers = dict[str, "Callable[[Leased], None]"]

_INTER_OP_THREADS = 2


def run(identity: Identity, departure: Departure) -> int:
    """Work until there is no more to do; returns the exit code.

    Raises:
        EdlError: the job cannot be read, or the master is lost.
    """
    starting = _beside(partial(_coordination, identity, departure))
    # The cores of a pod are its own
    turn = wait_for_turn(identity.runtime_dir, _cores()) if identity.host is None else Turn(None)
    import_tensorflow()
    coordination = starting.result()
    workers = coordination.spec.workers
    if identity.host is None:
        set_threads(workers=workers.max)
    else:  # the node's other cores are other pods'
        set_threads(workers=1, cores=math.ceil(workers.resources.cpu))
    try:
        return _work(coordination, turn)
    except LeavingError:
        return departure.wait()


def _coordination(identity: Identity, departure: Departure) -> Coordination:
    # Imports gRPC and protobuf here, beside TensorFlow
    from edl.worker.runtime import Coordination

    coordination = Coordination.of(identity, departure.gate)
    departure.prepare(coordination.goodbye)  # before the master knows of this worker and may tell it to go
    coordination.start()
    return coordination


def _beside(work: Callable[[], Coordination]) -> Future[Coordination]:
    """Run on another thread."""
    future: Future[Coordination] = Future()

    def execute() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  raised again where the result is wanted
            future.set_exception(error)

    threading.Thread(target=execute, name="start", daemon=True).start()
    return future


def set_threads(*, workers: int, cores: int | None = None) -> None:
    """Share the machine's cores with the other workers; TF_NUM_*_THREADS of the user win.

    Call it before the first operation.

    Args:
        workers: that share the cores.
        cores: all that may be used; by default those of the machine.
    """
    import tensorflow as tf

    cores = cores or _cores()
    if "TF_NUM_INTRAOP_THREADS" not in os.environ:
        tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // max(1, workers)))
    if "TF_NUM_INTEROP_THREADS" not in os.environ:
        tf.config.threading.set_inter_op_parallelism_threads(_INTER_OP_THREADS)


def _cores() -> int:
    """Cores of this machine that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(coordination: Coordination, turn: Turn) -> int:
    from edl.keras import model_contract
    from edl.worker.task_loop import Loop

    c = coordination
    handlers: Handlers = {}
    loop = Loop(c.session, c.leases, c.progress, c.gate, handlers)
    try:
        module = model_contract.load(c.spec.model, evaluates=_evaluates(c))
        c.module.set_result(module)
        handlers["describe"] = partial(_describe, c)
        end = _prepare(c, module, handlers)
    except LeavingError:
        raise
    except Exception as error:  # noqa: BLE001  everything is told to the master
        return loop.fail(error) or 1
    turn.end()
    code = loop.run()
    end()
    return code


def _evaluates(c: Coordination) -> bool:
    from edl.worker.stored_weights import PredictRun

    return bool(c.spec.data.validation) and PredictRun.of(c.identity.run_dir) is None


def _prepare(c: Coordination, module: ModelModule, handlers: Handlers) -> Callable[[], None]:
    from edl.worker.stored_weights import PredictRun

    predict = PredictRun.of(c.identity.run_dir)
    if predict is None:
        from edl.worker import training_setup

        return training_setup.prepare(c, module, handlers)
    from edl.worker import prediction_setup

    return prediction_setup.prepare(c, module, predict, handlers)


def _describe(c: Coordination, task: Leased) -> None:
    from edl.worker.data_readers import describe
    from edl.worker.stored_weights import PredictRun

    predict = PredictRun.of(c.identity.run_dir) is not None
    c.progress.finish(task.lease, describe(c.spec.data, c.reader, predict=predict, shuffle=c.spec.train.shuffle.window))
