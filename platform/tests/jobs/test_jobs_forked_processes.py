"""Processes that `support.fork_server` forks are as those that are started, as far as the model of a job can see."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.job_folder import JobFolder, write_module
from support.job_process import JobProcess, edl

pytestmark = [pytest.mark.jobs, pytest.mark.tensorflow, pytest.mark.timeout(400)]

MODULE = """
import json
import logging
import os
import signal
import sys

import keras
import tensorflow as tf


def feed(dataset, mode, metadata):
    def parse(row):
        row = tf.strings.to_number(row, tf.float32)
        return row[:1], row[1:]

    return dataset.map(parse)


def custom_model():
    state = {
        "argv": [os.path.basename(word) for word in sys.argv],
        "directory": os.getcwd(),
        "environment": {name: value for name, value in os.environ.items() if name not in OWN},
        "handlers": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGCHLD)],
        "leads_session": os.getsid(0) == os.getpid() == os.getpgid(0),
        "log": [handler.stream.fileno() for handler in logging.root.handlers if hasattr(handler, "stream")],
        "module": sys.modules["__main__"].__spec__.name,
        "parent": open(f"/proc/{os.getppid()}/cmdline").read().split("\\0"),
        "path": [path for path in sys.path if path],
        "streams": [(each.fileno(), each.encoding, each.errors) for each in (sys.stdin, sys.stdout, sys.stderr)],
        "unbuffered": [sys.stdout.write_through, sys.stderr.write_through],
    }
    with open(STATE, "w") as file:
        json.dump(state, file)
    return keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])


def loss(labels, predictions):
    return keras.ops.mean(keras.ops.square(labels - predictions))


def optimizer():
    return keras.optimizers.SGD()
"""
OWN = ["EDL_UID", "EDL_RUNTIME_DIR", "EDL_TOKEN_FILE", "EDL_CLUSTER_SOCKET", "EDL_MASTER_ADDRESS", "EDL_RUN_DIR"]
"""Of each process its own."""
OF_TERMINAL = ["LINES", "COLUMNS"]
"""The tests' process may have them in its environment without `os.environ`."""


def state_of_worker(folder: Path, *, started: bool) -> dict[str, Any]:
    (folder / "data.csv").write_text("1.0,2.0\n" * 8)
    zoo = write_module(folder, "state", MODULE, {"STATE": str(folder / "state.json"), "OWN": OWN + OF_TERMINAL})
    data = {"training": str(folder / "data.csv"), "reader": {"header": False}}
    job = JobFolder.make(folder, "state", "state.custom_model", zoo=zoo, data=data, train={"minibatch_size": 4})
    with JobProcess(job.file, cwd=folder, started=started) as run:
        assert run.summary()["records_done"] == 8
    return dict(json.loads((folder / "state.json").read_bytes()))


@pytest.mark.repetition
def test_a_forked_worker_finds_what_a_started_one_finds(tmp_path: Path) -> None:
    started = state_of_worker(tmp_path, started=True)
    forked = state_of_worker(tmp_path, started=False)
    assert started.pop("parent")[1:4] == ["-P", "-m", "edl.cluster.local"]
    assert forked.pop("parent")[2].endswith("fork_server.py")
    assert forked == started


def test_commands_end_as_they_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", os.devnull)
    bad = edl("run", "missing.yaml", cwd=tmp_path)
    assert (bad.returncode, bad.stdout, bad.stderr) == (2, "", "missing.yaml: no such file\n")
    good = edl("--version", cwd=tmp_path)
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.startswith("edl ")
