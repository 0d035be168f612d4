"""MNIST through keras.datasets, where the network or Keras' cache allows.

Keras runs in a process of its own: importing TensorFlow takes seconds, and a download that hangs can be ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edl.api.errors import RetryableError
from edl.data.digits import Digits

_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
# Keras itself would wait and retry much longer; and no timeout of urllib bounds the look-up of a name.
_PROBE_SECONDS = 4.0
_PROBE = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=3).close()"
_LOAD_SECONDS = 180.0
_LOAD = """
import sys
import keras
import numpy
(x, y), (vx, vy) = keras.datasets.mnist.load_data()
numpy.savez(sys.argv[1], x=x, y=y, vx=vx, vy=vy)
"""


class MnistUnavailableError(RetryableError):
    """keras.datasets cannot deliver MNIST now."""


def load_mnist() -> tuple[Digits, Digits]:
    """MNIST's 60,000 training and 10,000 test digits.

    Raises:
        MnistUnavailableError: no network (tried for 4 seconds), no Keras, or a download that failed or took 3 minutes.
    """
    if not _cached():
        _python(_PROBE, _URL, _PROBE_SECONDS, "the network")
    with tempfile.TemporaryDirectory(prefix="edl-mnist-") as folder:
        target = Path(folder, "mnist.npz")
        _python(_LOAD, str(target), _LOAD_SECONDS, "keras.datasets")
        with np.load(target, allow_pickle=False) as arrays:
            return _digits(arrays["x"], arrays["y"]), _digits(arrays["vx"], arrays["vy"])


def _digits(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> Digits:
    return Digits(images, labels.astype(np.int64))


def _cached() -> bool:
    home = os.environ.get("KERAS_HOME") or Path.home() / ".keras"
    return Path(home, "datasets", "mnist.npz").is_file()


def _python(script: str, argument: str, seconds: float, what: str) -> None:
    """Run a script in a process of its own, for at most so long."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-c", script, argument]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds, env=environment)
    except subprocess.TimeoutExpired as error:
        raise _unavailable(f"{what} did not answer within {seconds:.0f} s") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise _unavailable(f"{what} failed ({lines[-1]})") from error


def _unavailable(reason: str) -> MnistUnavailableError:
    return MnistUnavailableError(f"MNIST is not available: {reason}", hint="--source digits works without a network")
