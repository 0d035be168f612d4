"""Remove from a virtual environment what no role needs at run time, then compile what is left.

    python images/slim.py /opt/edl

Gone are the packages' own tests, TensorFlow's C++ headers (only building custom operations needs them), libclang
(TensorFlow lists it and never loads it), the Kubernetes client's second, asynchronous self, and setuptools. Bytecode is
not compared with its source at start-up: the files never change, the root file system is read-only.
"""

from __future__ import annotations

import compileall
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from py_compile import PycInvalidationMode

UNUSED = (
    "clang",
    "libclang-*",
    "setuptools",
    "setuptools-*",
    "pkg_resources",
    "_distutils_hack",
    "distutils-precedence.pth",
    "kubernetes/aio",
    "tensorflow/include",
    "tensorflow/xla_aot_runtime_src",
)
TESTED = ("numpy", "scipy", "sklearn", "joblib", "h5py", "threadpoolctl")
"""Packages that bring folders of tests."""


def unused(packages: Path) -> Iterator[Path]:
    """Files and folders below ``site-packages`` to remove."""
    for pattern in UNUSED:
        yield from packages.glob(pattern)
    for package in TESTED:
        yield from (found for found in (packages / package).rglob("tests") if found.is_dir())


def slim(environment: Path) -> None:
    """Remove what is unused in the environment and compile the rest."""
    (packages,) = environment.glob("lib/python3*/site-packages")
    for path in list(unused(packages)):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    # quiet=2: some packages carry files for other Python versions, which do not compile and are never imported
    compileall.compile_dir(packages, quiet=2, workers=0, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)


if __name__ == "__main__":
    slim(Path(sys.argv[1]))
