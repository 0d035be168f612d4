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
from edl.data.digits import DigitImages

_MNIST_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
# Keras itself would wait and retry much longer; and no timeout of urllib bounds the look-up of a name.
_PROBE_SECONDS = 4.0
_PROBE_SCRIPT = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=3).close()"
_LOAD_SECONDS = 180.0
_LOAD_SCRIPT = """
import sys
import keras
import numpy
(x, y), (vx, vy) = keras.datasets.mnist.load_data()
numpy.savez(sys.argv[1], x=x, y=y, vx=vx, vy=vy)
"""


class MnistUnavailableError(RetryableError):
    """keras.datasets cannot deliver MNIST now."""


def load_mnist() -> tuple[DigitImages, DigitImages]:
    """MNIST's 60,000 training and 10,000 test digits.

    Raises:
        MnistUnavailableError: no network (tried for 4 seconds), no Keras, or a download that failed or took 3 minutes.
    """
    if not _is_cached():
        _run_python(_PROBE_SCRIPT, _MNIST_URL, _PROBE_SECONDS, "the network")
    with tempfile.TemporaryDirectory(prefix="edl-mnist-") as folder:
        target = Path(folder, "mnist.npz")
        _run_python(_LOAD_SCRIPT, str(target), _LOAD_SECONDS, "keras.datasets")
        with np.load(target, allow_pickle=False) as arrays:
            return _digits_from_arrays(arrays["x"], arrays["y"]), _digits_from_arrays(arrays["vx"], arrays["vy"])


def _digits_from_arrays(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> DigitImages:
    return DigitImages(images, labels.astype(np.int64))


def _is_cached() -> bool:
    home = os.environ.get("KERAS_HOME") or Path.home() / ".keras"
    return Path(home, "datasets", "mnist.npz").is_file()


def _run_python(script: str, argument: str, seconds: float, what: str) -> None:
    """Run a script in a process of its own, for at most so long."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-c", script, argument]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds, env=environment)
    except subprocess.TimeoutExpired as error:
        raise _unavailable_error(f"{what} did not answer within {seconds:.0f} s") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise _unavailable_error(f"{what} failed ({lines[-1]})") from error


def _unavailable_error(reason: str) -> MnistUnavailableError:
    return MnistUnavailableError(f"MNIST is not available: {reason}", hint="--source digits works without a network")
