"""What the paths of a job file mean on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edl.jobfile.job_spec import Data, Export, JobSpec, Model
from edl.jobfile.path_resolution import is_shared, pod_storage, resolve_local, volume_of
from edl.jobfile.pod_spec import Storage, Volume

HOME = Path("/home/ann/mnist")
SPEC = JobSpec(
    name="mnist",
    model=Model(definition="mnist.model.custom_model"),
    volumes=(
        Volume(mount="/data", local="./data"),
        Volume(mount="/data/big/", local="/mnt/big"),
        Volume(mount="/shared"),
    ),
)


def trained_on(*paths: str) -> tuple[str, ...]:
    return resolve_local(replace(SPEC, data=Data(training=paths)), HOME, cwd=Path("/tmp")).data.training


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
    data = Data(training=("a", "/data/b"), validation=("c",), prediction=("d",))
    resolved = resolve_local(replace(SPEC, data=data), HOME, cwd=Path("/tmp")).data
    assert resolved == Data(
        training=("/home/ann/mnist/a", "/home/ann/mnist/data/b"),
        validation=("/home/ann/mnist/c",),
        prediction=("/home/ann/mnist/d",),
    )


def test_zoo_is_relative_to_the_file() -> None:
    assert resolve_local(SPEC, HOME, cwd=Path("/tmp")).model.zoo == "/home/ann/mnist/model_zoo"
    above = replace(SPEC, model=Model(definition="mnist.model.custom_model", zoo=".."))
    assert resolve_local(above, HOME, cwd=Path("/tmp")).model.zoo == "/home/ann"


def test_storage_is_where_the_command_was_called_unless_given() -> None:
    assert resolve_local(SPEC, HOME, cwd=Path("/tmp")).storage.path == "/tmp/.edl"
    given = replace(SPEC, storage=Storage(path="/data/edl"))
    assert resolve_local(given, HOME, cwd=Path("/tmp")).storage.path == "/home/ann/mnist/data/edl"


def test_export() -> None:
    assert resolve_local(replace(SPEC, export=None), HOME, cwd=Path("/tmp")).export is None
    assert resolve_local(SPEC, HOME, cwd=Path("/tmp")).export == Export(path=None)
    given = replace(SPEC, export=Export(path="/data/export"))
    assert resolve_local(given, HOME, cwd=Path("/tmp")).export == Export(path="/home/ann/mnist/data/export")


def test_base_directory_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    resolved = resolve_local(replace(SPEC, data=Data(training=("train",))), Path("jobs"))
    assert resolved.data.training == (str(tmp_path / "jobs" / "train"),)
    assert resolved.storage.path == str(tmp_path / ".edl")
    assert resolved.volumes[0].local == str(tmp_path / "jobs" / "data")


IN_PODS = replace(SPEC, volumes=(Volume(mount="/data/", claim="a"), Volume(mount="/zoo", claim="b")))


@pytest.mark.parametrize(
    ("volumes", "storage", "expected"),
    [
        (IN_PODS.volumes, Storage(), "/data/edl"),
        (IN_PODS.volumes, Storage(claim="b"), "/zoo/edl"),
        (IN_PODS.volumes, Storage(claim="c"), "/edl"),
        (IN_PODS.volumes, Storage(claim="c", path="/runs"), "/runs"),
        (IN_PODS.volumes, Storage(path="/data/runs"), "/data/runs"),
        ((Volume(mount="/mnt", host_path="/disk"),), Storage(), "/mnt/edl"),
        ((), Storage(), "/edl"),
    ],
)
def test_storage_in_pods(volumes: tuple[Volume, ...], storage: Storage, expected: str) -> None:
    assert pod_storage(replace(SPEC, volumes=volumes, storage=storage)) == expected


def test_pods_share_a_volume_or_nothing() -> None:
    assert is_shared(IN_PODS)
    assert is_shared(replace(SPEC, volumes=(), storage=Storage(claim="c")))
    assert not is_shared(replace(SPEC, volumes=()))


def test_the_innermost_volume_holds_a_path() -> None:
    outer, inner = Volume(mount="/data"), Volume(mount="/data/big/")
    assert volume_of("/data/big/x", (outer, inner)) is inner
    assert volume_of("/data/bigger", (outer, inner)) is outer
    assert volume_of("/data/../etc", (outer, inner)) is None
