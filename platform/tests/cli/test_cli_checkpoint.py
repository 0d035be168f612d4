"""edl checkpoint: finds the run that is meant, says what is wrong with files, and writes what other programs read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.cli_harness import run_edl
from support.text_keys import missing_keys

from edl.storage.checkpoint_manifest import CheckpointManifest, commit_checkpoint, cut_directory
from edl.storage.checkpoint_shards import write_shard
from edl.storage.durable_files import write_json
from edl.storage.run_directory import RunDirectory, create_run, locate_job_dir

DECLARED = {
    "dense": [["dense/kernel", [2, 2], False], ["norm/moving_mean", [2], True]],
    "tables": [["items", 1000, 2, {"name": "zeros"}, 0]],
    "optimizer": {"name": "adagrad", "hyperparameters": {"epsilon": 1e-7}},
    "fingerprint": "model",
}
LEDGER = {
    "epoch": 1,
    "index": 3,
    "returned": [[1, "part-0", 128, 256]],
    "leases": [],
    "done_records": 12_800,
    "done_steps": 100,
    "quarantined": [],
}


def cut(run: RunDirectory, number: int, *, commits: bool = True) -> Path:
    """A checkpoint of two parameter servers."""
    directory = cut_directory(run.checkpoints, number)
    kernel = {"dense/dense/kernel": np.array([[1, 2], [3, np.nan]], np.float32)}
    kernel["slot/accumulator/dense/kernel"] = np.ones((2, 2), np.float32)
    rows = lambda *ids: {  # noqa: E731
        "rows/items/ids": np.array(ids, np.int64),
        "rows/items/values": np.full((len(ids), 2), number, np.float32),
        "rows/items/slot/accumulator": np.ones((len(ids), 2), np.float32),
    }
    statistic = {"dense/norm/moving_mean": np.zeros(2, np.float32)}
    shards = []
    for index, arrays in enumerate([{**kernel, **rows(900, 3)}, {**statistic, **rows(5)}]):
        own = [each for each in DECLARED["dense"] if f"dense/{each[0]}" in arrays]
        text = json.dumps({**DECLARED, "dense": own})
        shards.append(write_shard(directory, index, arrays, {"declaration": text}))
    if commits:
        created = "2026-01-01T00:00:00+00:00"
        commit_checkpoint(
            directory,
            CheckpointManifest(number, 100 * number, created, tuple(shards), {**LEDGER, "done_steps": 100 * number}),
        )
    return directory


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run of the job ``mnist`` with the checkpoints 1 and 2, in the current folder."""
    monkeypatch.chdir(tmp_path)
    run = create_run(locate_job_dir(Path(".edl"), "mnist"))
    write_json(run.spec, {})
    cut(run, 1)
    cut(run, 2)
    return RunDirectory(tmp_path / run.path)


@pytest.fixture
def edl(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Exit code and both outputs of ``edl checkpoint``."""

    def call(*args: str) -> tuple[int, str, str]:
        code = run_edl("checkpoint", *args)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


# ---------------------------------------------------------------------------- which run


@pytest.mark.parametrize(
    "word",
    ["mnist", "mnist/r1", ".edl/local/mnist", ".edl/local/mnist/r1", ".edl/local/mnist/r1/checkpoints", "job.yaml"],
)
def test_a_run_has_many_names(run: RunDirectory, edl: Any, word: str) -> None:
    Path("job.yaml").write_text(
        "name: mnist\nmodel: {definition: small.model}\ndata: {training: train.csv}\ntrain: {epochs: 3}\n"
    )
    code, out, _ = edl("ls", word, "--json")
    assert code == 0
    assert [each["checkpoint"] for each in json.loads(out)] == [1, 2]


def test_a_checkpoint_of_a_volume_is_named_by_its_path(run: RunDirectory, edl: Any, tmp_path: Path) -> None:
    uid = tmp_path / "volume/team-a/mnist/5d41-uid"
    uid.parent.mkdir(parents=True)
    run.path.rename(uid)
    for word in (uid, uid.parent, uid / "checkpoints"):
        assert edl("inspect", str(word), "--json")[1] == edl("inspect", str(uid), "--json")[1]
    inspected = json.loads(edl("inspect", str(uid / "checkpoints/cut-00000001"), "--json")[1])
    assert inspected["checkpoint"] == 1


def test_a_copy_is_not_said_to_be_of_a_run(run: RunDirectory, edl: Any, tmp_path: Path) -> None:
    copy = tmp_path / "copies/cut-00000002"
    copy.parent.mkdir()
    cut_directory(run.checkpoints, 2).rename(copy)
    (tmp_path / "spec.json").touch()  # a file of this name alone makes no run of the folder around it
    out = edl("inspect", str(copy))[1]
    assert out.splitlines()[0] == f"Checkpoint 2 of {copy.parent}, {copy}"
    code, _, err = edl("inspect", str(copy.rename(tmp_path / "best")))
    assert (code, "such as cut-00000004" in err) == (2, True)


def test_the_newest_run_that_has_checkpoints_is_meant(run: RunDirectory, edl: Any) -> None:
    create_run(run.job_dir)
    assert "Run r1 of mnist" in edl("ls", "mnist")[1]
    code, out, _ = edl("ls", "mnist/r2")
    assert (code, "has no checkpoint yet" in out) == (0, True)
    code, _, err = edl("inspect", "mnist/r2")
    assert (code, "has no checkpoint" in err) == (2, True)


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("minst", ("minst", ".edl/local", "mnist")),
        ("mnist/r99", (".edl/local/mnist", "'r99'", "r1")),
        (".edl/local/mnist/r99", (".edl/local/mnist", "'r99'", "r1")),
        ("mnist/r99/checkpoints", ("mnist/r99/checkpoints",)),
        ("text.txt/r1", ("text.txt/r1",)),
        ("failed", ("failed", ".edl/local", "mnist")),
        (".edl", (".edl", "not a run")),
        ("text.txt", ("text.txt", "job file")),
        (".edl/local/mnist/r1/checkpoints/cut-00000001/ps-0.safetensors", ("ps-0.safetensors", "file")),
        (".edl/local/mnist/r1/checkpoints/cut-00000001/manifest.json", ("manifest.json", "file")),
        (".edl/local/mnist/r1/checkpoints/cut-00000009", ("cut-00000009",)),
        ("job.yaml", ("no run",)),
    ],
)
def test_what_is_no_run_is_said_to_be_none(run: RunDirectory, edl: Any, word: str, named: tuple[str, ...]) -> None:
    Path("text.txt").touch()
    Path(".edl/local/failed").mkdir()  # its lock was taken, and no run came of it
    Path(".edl/local/failed/LOCK").touch()
    Path("job.yaml").write_text(
        "name: other\nmodel: {definition: small.model}\ndata: {training: train.csv}\ntrain: {epochs: 3}\n"
    )
    for command in ("ls", "inspect"):
        code, _, err = edl(command, word)
        assert code == 2
        assert not missing_keys(err, *named)


# ---------------------------------------------------------------------------- ls


def test_ls_tells_how_far_each_is_and_which_is_the_newest_usable(run: RunDirectory, edl: Any) -> None:
    cut(run, 3, commits=False)
    code, out, _ = edl("ls", "mnist")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == f"Run r1 of mnist, {run.checkpoints}"
    assert lines[2].split() == ["CHECKPOINT", "STEP", "RECORDS", "SIZE", "SHARDS", "AGE", "STATE"]
    assert lines[3].split()[:3] == ["1", "100", "12,800"]
    assert lines[3].endswith("complete")
    assert lines[4].endswith("complete, newest usable")
    assert not missing_keys(lines[5], "unfinished", "manifest")


def test_only_verify_finds_a_changed_byte(run: RunDirectory, edl: Any) -> None:
    flip(cut_directory(run.checkpoints, 2) / "ps-1.safetensors")
    plain = json.loads(edl("ls", "mnist", "--json")[1])
    assert [each["newest_usable"] for each in plain] == [False, True]
    code, out, _ = edl("ls", "mnist", "--verify")
    assert code == 0
    assert "intact, newest usable" in out
    assert not missing_keys(out, "damaged", "ps-1.safetensors", "checksum")


def test_ls_fails_when_nothing_can_be_used(run: RunDirectory, edl: Any) -> None:
    (cut_directory(run.checkpoints, 1) / "manifest.json").write_text("[" * 100_000)
    (cut_directory(run.checkpoints, 2) / "ps-0.safetensors").unlink()
    code, out, _ = edl("ls", "mnist", "--json")
    assert code == 2
    assert [each["state"] for each in json.loads(out)] == ["damaged", "damaged"]
    code, _, err = edl("inspect", "mnist")
    assert code == 2
    first, second = sorted(line for line in err.splitlines() if line.lstrip().startswith("checkpoint "))
    assert not missing_keys(first, "checkpoint 1", "manifest", "damaged")
    assert not missing_keys(second, "checkpoint 2", "ps-0.safetensors", "missing")


def test_the_light_client_lists_and_verifies_without_numpy(run: RunDirectory) -> None:
    without = (
        "import sys; sys.modules['numpy'] = sys.modules['safetensors'] = None; from edl.cli import app; app.main()"
    )

    def call(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", without, "checkpoint", *args], capture_output=True, text=True)

    listed = call("ls", "mnist", "--verify")
    assert (listed.returncode, "intact, newest usable" in listed.stdout) == (0, True)
    refused = call("inspect", "mnist")
    assert refused.returncode == 2
    assert "pip install 'edl-platform[train]'" in refused.stderr


# ---------------------------------------------------------------------------- inspect


def test_inspect_shows_values_optimizer_and_position(run: RunDirectory, edl: Any) -> None:
    code, out, _ = edl("inspect", "mnist")
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == f"Checkpoint 2 of run r1 of mnist, {run.checkpoints}/cut-00000002"
    assert lines[2].startswith("files 2 shards, ")
    assert not missing_keys(lines[3], "step 200", "12,800 records", "epoch 2", "128 records")
    assert not missing_keys(lines[4], "optimizer adagrad", "epsilon 1e-07", "accumulator")
    assert "dense/kernel 2x2 float32 trained 1 2 3 1" in lines
    assert "norm/moving_mean 2 float32 statistic 0 0 0 0" in lines
    assert "items 3 1,000 2 float32 accumulator 2 2 2 0" in lines


def test_facts_are_broken_between_words_where_the_terminal_is_narrow(
    run: RunDirectory, edl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edl.cli.checkpoint._PIPE_WIDTH", 60)
    out = edl("inspect", "mnist")[1]
    assert f"of mnist, {run.checkpoints}/cut-00000002\n" in out
    facts = [line for line in out.splitlines() if line.startswith("  ")]
    assert any(line.startswith("            ") for line in facts), "one goes on in a line of its own"
    assert all(len(line) <= 60 for line in facts if str(run.checkpoints) not in line)


def test_inspect_tells_programs_the_same(run: RunDirectory, edl: Any) -> None:
    inspected = json.loads(edl("inspect", "mnist", "--json", "-c", "1")[1])
    assert inspected["ledger"] == LEDGER
    assert inspected["optimizer"] == DECLARED["optimizer"]
    kernel = inspected["variables"][0]
    assert (kernel["name"], kernel["shape"], kernel["nan"], kernel["slots"]) == (
        "dense/kernel",
        [2, 2],
        1,
        ["accumulator"],
    )
    table = inspected["tables"][0]
    assert (table["rows"], table["vocabulary"], table["width"], table["mean"]) == (3, 1000, 2, 1)


def test_a_damaged_newest_is_left_out_and_a_damaged_one_that_was_asked_for_is_refused(
    run: RunDirectory, edl: Any
) -> None:
    flip(cut_directory(run.checkpoints, 2) / "ps-0.safetensors")
    code, out, err = edl("inspect", "mnist")
    assert (code, out.split(",")[0]) == (0, "Checkpoint 1 of run r1 of mnist")
    assert not missing_keys(err, "checkpoint 2", "skipped", "ps-0.safetensors", "damaged")
    code, _, err = edl("inspect", "mnist", "-c", "2")
    assert code == 2
    assert err.startswith(f"{run.checkpoints}/cut-00000002: ")
    assert not missing_keys(err, "ps-0.safetensors", "damaged", "checksum", "--checkpoint 1")
    code, _, err = edl("inspect", "mnist", "-c", "7")
    assert (code, missing_keys(err, "checkpoint 7", "1, 2")) == (2, [])


def test_a_foreign_file_with_a_right_checksum_is_refused(run: RunDirectory, edl: Any) -> None:
    directory = cut_directory(run.checkpoints, 3)
    shard = write_shard(directory, 0, {"dense/w": np.ones(2)}, {"declaration": "[]"})
    commit_checkpoint(directory, CheckpointManifest(3, 3, "", (shard,), None))
    code, _, err = edl("inspect", "mnist")
    assert code == 2
    assert not missing_keys(err, "ps-0.safetensors", "shard")


@pytest.mark.parametrize("ledger", [None, [], {"done_steps": "many"}, {"returned": [3]}, {"epoch": {}}])
def test_a_ledger_of_another_kind_is_shown_as_it_is(run: RunDirectory, edl: Any, ledger: Any) -> None:
    directory = cut_directory(run.checkpoints, 3)
    commit_checkpoint(directory, CheckpointManifest(3, 7, "yesterday", (write_shard(directory, 0, {}),), ledger))
    for command in ("ls", "inspect"):
        for option in ((), ("--json",)):
            assert edl(command, "mnist", *option)[0] == 0


def test_checkpoints_of_strategy_local_are_shown_too(run: RunDirectory, edl: Any) -> None:
    directory = cut_directory(run.checkpoints, 30)
    others = ("slot/0", "slot/1", "state/0", "carried/0", "best/0/0", "newer/0")
    shard = write_shard(directory, 0, {"dense/w": np.ones(2), **{name: np.array(3, np.int64) for name in others}})
    commit_checkpoint(directory, CheckpointManifest(30, 30, "", (shard,), {"records_done": 64, "records_skipped": 0}))
    out = edl("inspect", "mnist")[1]
    assert not missing_keys(out, "step 30", "64 records", "Local")
    counts = {
        words[0]: int(words[1]) for line in out.splitlines() if len(words := line.split()) > 2 and "/…" in words[0]
    }
    assert counts == {"best/…": 1, "carried/…": 1, "newer/…": 1, "slot/…": 2, "state/…": 1}
    assert not missing_keys(out, "stateful layers", "train_step()", "random generators", "restore_best_weights")
    assert [each["records"] for each in json.loads(edl("ls", "mnist", "--json")[1])] == [12800, 12800, 64]


# ---------------------------------------------------------------------------- export


def test_export_puts_the_shards_together(run: RunDirectory, edl: Any) -> None:
    code, out, _ = edl("export", "mnist", "out.npz")
    assert (code, missing_keys(out, "Checkpoint 2", "2 variables", "1 table", "3 rows", "out.npz")) == (0, [])
    with np.load("out.npz", allow_pickle=False) as exported:
        assert sorted(exported) == ["dense/kernel", "items/ids", "items/rows", "norm/moving_mean"]
        assert exported["items/ids"].tolist() == [3, 5, 900]
    code, _, err = edl("export", "mnist", "out.npz")
    assert (code, "already exists" in err) == (2, True)
    assert edl("export", "mnist", "out.npz", "--force", "--slots", "-c", "1")[0] == 0
    with np.load("out.npz", allow_pickle=False) as exported:
        assert exported["items/slot/accumulator"].shape == (3, 2)
        assert exported["items/rows"].max() == 1


@pytest.mark.parametrize(("file", "message"), [("out.h5", "neither a .npz nor"), ("nowhere/out.npz", "no such folder")])
def test_export_refuses_what_it_cannot_write(run: RunDirectory, edl: Any, file: str, message: str) -> None:
    code, _, err = edl("export", "mnist", file)
    assert (code, message in err) == (2, True)


def test_export_of_a_damaged_checkpoint_writes_nothing(run: RunDirectory, edl: Any) -> None:
    for number in (1, 2):
        flip(cut_directory(run.checkpoints, number) / "ps-0.safetensors")
    assert edl("export", "mnist", "out.npz")[0] == 2
    assert not Path("out.npz").exists()
