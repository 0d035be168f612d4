"""MNIST through keras.datasets, where the network or Keras' cache allows.

Keras runs in a process of its own: importing TensorFlow takes seconds, and a download that hangs can be ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edl.core.errors import RetryableError
from edl.data.digits import Digits

_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
_PROBE_SECONDS = 3.0
_LOAD_SECONDS = 180.0
_SCRIPT = """
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
        MnistUnavailableError: no network (tried for 3 seconds), no Keras, or a download that failed or took 3 minutes.
    """
    if not _cached():
        _probe()
    with tempfile.TemporaryDirectory(prefix="edl-mnist-") as folder:
        target = Path(folder, "mnist.npz")
        _run_keras(target)
        with np.load(target, allow_pickle=False) as arrays:
            training, test = (arrays["x"], arrays["y"]), (arrays["vx"], arrays["vy"])
    return _digits(*training), _digits(*test)


def _digits(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> Digits:
    return Digits(images, labels.astype(np.int64))


def _cached() -> bool:
    home = os.environ.get("KERAS_HOME") or Path.home() / ".keras"
    return Path(home, "datasets", "mnist.npz").is_file()


def _probe() -> None:
    """Whether the download would start: Keras itself would wait and retry much longer."""
    try:
        with urllib.request.urlopen(_URL, timeout=_PROBE_SECONDS):
            pass
    except (urllib.error.URLError, OSError) as error:
        raise _unavailable(f"no way to the download ({getattr(error, 'reason', error)})") from error


def _run_keras(target: Path) -> None:
    command = [sys.executable, "-c", _SCRIPT, str(target)]
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_LOAD_SECONDS, env=quiet)
    except subprocess.TimeoutExpired as error:
        raise _unavailable(f"the download took longer than {_LOAD_SECONDS:.0f} s") from error
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-1:] or ["no message"]
        raise _unavailable(f"keras.datasets failed ({last[0]})") from error


def _unavailable(reason: str) -> MnistUnavailableError:
    return MnistUnavailableError(f"MNIST is not available: {reason}", hint="--source digits works without a network")
