"""What a worker's process imports, and how it ends."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

pytestmark = pytest.mark.tensorflow


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(arguments or ("-c", dedent(code)))]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_tensorflow_comes_without_scikit_learn_and_ipython_and_a_model_may_import_them() -> None:
    done = python(
        """
        import sys
        from edl.keras.tensorflow_import import import_tensorflow
        tensorflow = import_tensorflow()
        import keras
        assert tensorflow.keras.Model is keras.Model
        assert not {"sklearn", "scipy.stats", "IPython"} & sys.modules.keys()
        import IPython
        assert IPython.get_ipython() is None
        from sklearn.datasets import load_iris
        assert len(load_iris().data) == 150
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.repetition
def test_no_garbage_is_collected_while_tensorflow_is_imported() -> None:
    done = python(
        """
        import gc
        from edl.keras.tensorflow_import import import_tensorflow
        collections = []
        gc.callbacks.append(lambda phase, info: collections.append(info))
        import_tensorflow()
        assert not collections, collections
        assert gc.isenabled()
        assert gc.get_freeze_count() > 100_000
        gc.disable()
        import_tensorflow()
        assert not gc.isenabled(), "who switched it off wants it off"
        """
    )
    assert done.returncode == 0, done.stderr


def test_a_worker_that_is_done_runs_every_exit_hook_and_none_of_tensorflows_teardown() -> None:
    done = python(
        """
        import atexit, runpy, sys
        import edl.worker.local_strategy.local_main
        def work(environment):
            class Last:
                def __del__(self):
                    print("the interpreter was taken apart")
            sys.last = Last()
            atexit.register(print, "a hook of the user", end="")
            print("worked")
            return 7
        edl.worker.local_strategy.local_main.main = work
        runpy.run_module("edl.worker", run_name="__main__", alter_sys=True)
        """
    )
    assert (done.returncode, done.stdout) == (7, "worked\na hook of the user"), done.stderr
