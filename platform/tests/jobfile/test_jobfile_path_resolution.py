"""What the paths of a job file mean on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edl.api.job_spec import DataSpec, ExportSpec, JobSpec, ModelSpec
from edl.api.pod_spec import StorageSpec, VolumeSpec
from edl.jobfile.path_resolution import find_volume, has_shared_storage, pod_storage_path, resolve_local_paths

HOME = Path("/home/ann/mnist")
SPEC = JobSpec(
    name="mnist",
    model=ModelSpec(definition="mnist.model.custom_model"),
    volumes=(
        VolumeSpec(mount="/data", local="./data"),
        VolumeSpec(mount="/data/big/", local="/mnt/big"),
        VolumeSpec(mount="/shared"),
    ),
)


def trained_on(*paths: str) -> tuple[str, ...]:
    return resolve_local_paths(replace(SPEC, data=DataSpec(training=paths)), HOME, cwd=Path("/tmp")).data.training


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("/data/train", "/home/ann/mnist/data/train"),
        ("/data", "/home/ann/mnist/data"),
        ("/data/big/train", "/mnt/big/train"),
        ("/data/bigger", "/home/ann/mnist/data/bigger"),
        ("/database/train", "/database/train"),
        ("/data/../etc", "/etc"),
        ("/shared/train", "/shared/train"),
        ("train", "/home/ann/mnist/train"),
        ("../train", "/home/ann/train"),
        ("odps://project/table", "odps://project/table"),
    ],
)
def test_data(written: str, meant: str) -> None:
    assert trained_on(written) == (meant,)


def test_every_set_of_records_is_resolved() -> None:
    data = DataSpec(training=("a", "/data/b"), validation=("c",), prediction=("d",))
    resolved = resolve_local_paths(replace(SPEC, data=data), HOME, cwd=Path("/tmp")).data
    assert resolved == DataSpec(
        training=("/home/ann/mnist/a", "/home/ann/mnist/data/b"),
        validation=("/home/ann/mnist/c",),
        prediction=("/home/ann/mnist/d",),
    )


def test_zoo_is_relative_to_the_file() -> None:
    assert resolve_local_paths(SPEC, HOME, cwd=Path("/tmp")).model.zoo == "/home/ann/mnist/model_zoo"
    above = replace(SPEC, model=ModelSpec(definition="mnist.model.custom_model", zoo=".."))
    assert resolve_local_paths(above, HOME, cwd=Path("/tmp")).model.zoo == "/home/ann"


def test_storage_is_where_the_command_was_called_unless_given() -> None:
    assert resolve_local_paths(SPEC, HOME, cwd=Path("/tmp")).storage.path == "/tmp/.edl"
    spec = replace(SPEC, storage=StorageSpec(path="/data/edl"))
    assert resolve_local_paths(spec, HOME, cwd=Path("/tmp")).storage.path == "/home/ann/mnist/data/edl"


def test_export() -> None:
    assert resolve_local_paths(replace(SPEC, export=None), HOME, cwd=Path("/tmp")).export is None
    assert resolve_local_paths(SPEC, HOME, cwd=Path("/tmp")).export == ExportSpec(path=None)
    spec = replace(SPEC, export=ExportSpec(path="/data/export"))
    assert resolve_local_paths(spec, HOME, cwd=Path("/tmp")).export == ExportSpec(path="/home/ann/mnist/data/export")


def test_base_directory_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    resolved = resolve_local_paths(replace(SPEC, data=DataSpec(training=("train",))), Path("jobs"))
    assert resolved.data.training == (str(tmp_path / "jobs" / "train"),)
    assert resolved.storage.path == str(tmp_path / ".edl")
    assert resolved.volumes[0].local == str(tmp_path / "jobs" / "data")


IN_PODS = replace(SPEC, volumes=(VolumeSpec(mount="/data/", claim="a"), VolumeSpec(mount="/zoo", claim="b")))


@pytest.mark.parametrize(
    ("volumes", "storage", "expected"),
    [
        (IN_PODS.volumes, StorageSpec(), "/data/edl"),
        (IN_PODS.volumes, StorageSpec(claim="b"), "/zoo/edl"),
        (IN_PODS.volumes, StorageSpec(claim="c"), "/edl"),
        (IN_PODS.volumes, StorageSpec(claim="c", path="/runs"), "/runs"),
        (IN_PODS.volumes, StorageSpec(path="/data/runs"), "/data/runs"),
        ((VolumeSpec(mount="/mnt", host_path="/disk"),), StorageSpec(), "/mnt/edl"),
        ((), StorageSpec(), "/edl"),
    ],
)
def test_storage_in_pods(volumes: tuple[VolumeSpec, ...], storage: StorageSpec, expected: str) -> None:
    assert pod_storage_path(replace(SPEC, volumes=volumes, storage=storage)) == expected


def test_pods_share_a_volume_or_nothing() -> None:
    assert has_shared_storage(IN_PODS)
    assert has_shared_storage(replace(SPEC, volumes=(), storage=StorageSpec(claim="c")))
    assert not has_shared_storage(replace(SPEC, volumes=()))


def test_the_innermost_volume_holds_a_path() -> None:
    outer, inner = VolumeSpec(mount="/data"), VolumeSpec(mount="/data/big/")
    assert find_volume("/data/big/x", (outer, inner)) is inner
    assert find_volume("/data/bigger", (outer, inner)) is outer
    assert find_volume("/data/../etc", (outer, inner)) is None


def test_every_relative_path_starts_at_the_file() -> None:
    spec = replace(
        SPEC, export=ExportSpec(path="out"), storage=StorageSpec(path="runs"), data=DataSpec(training=("train",))
    )
    resolved = resolve_local_paths(spec, HOME, cwd=Path("/tmp"))
    assert resolved.export is not None
    paths = [
        resolved.model.zoo,
        *resolved.data.training,
        resolved.export.path,
        resolved.storage.path,
        resolved.volumes[0].local,
    ]
    assert paths == [f"/home/ann/mnist/{name}" for name in ("model_zoo", "train", "out", "runs", "data")]
