"""``edl data cp`` and ``ls``: a process of this machine in the pod's place."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cli.cli_harness import CliHarness, cli_with_job
from cli.pod_files import serve
from hypothesis import given
from hypothesis import strategies as st
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.cluster.kubernetes.resource_kinds import PODS
from edl.ops import file_transfer
from edl.ops.file_transfer import VolumeEntry

LARGE = os.urandom(900_000)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    cli = cli_with_job(monkeypatch, capsys)
    cli.cluster.claim("files")
    cli.cluster.admissions.append(lambda thing: thing.update(status={"phase": "Running"}))
    (tmp_path / "claim").mkdir()
    mnist = tmp_path / "mnist"
    (mnist / "train").mkdir(parents=True)
    (mnist / "empty").mkdir()
    (mnist / "train" / "0.rec").write_bytes(LARGE)
    (mnist / "labels").write_bytes(b"abc")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDL_SUBMITTER_IMAGE", "registry.example/submitter:1")
    return cli


@pytest.fixture
def claim(cli: CliHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    serve(tmp_path / "claim", monkeypatch)
    return tmp_path / "claim"


def tree(folder: Path) -> dict[str, bytes | None]:
    return {p.relative_to(folder).as_posix(): None if p.is_dir() else p.read_bytes() for p in folder.rglob("*")}


def test_no_image_is_the_default_since_none_is_public(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDL_SUBMITTER_IMAGE")
    for command in (("cp", "mnist", "files:/data"), ("ls", "files:/data")):
        assert cli.edl("data", *command) == 2
        assert not missing_keys(cli.err, "--image", "EDL_SUBMITTER_IMAGE")
    assert cli.cluster.objects_of_kind(PODS) == []


def test_there_and_back(cli: CliHarness, claim: Path) -> None:
    assert cli.edl("data", "cp", "mnist", "files:/data") == 0
    assert not missing_keys(cli.out, "2 files", "879 KiB", "files:/data")
    assert tree(claim / "data") == tree(Path("mnist"))
    assert cli.edl("data", "cp", "files:/data", "back") == 0
    assert tree(Path("back")) == tree(Path("mnist"))
    assert cli.cluster.objects_of_kind(PODS) == []


def test_what_is_there_does_not_travel_again(cli: CliHarness, claim: Path) -> None:
    cli.edl("data", "cp", "mnist", "files:/data")
    (claim / "data" / "labels").write_bytes(b"xyz")
    assert cli.edl("data", "cp", "mnist", "files:/data", "--json") == 0
    assert json.loads(cli.out)["travelled"] == 3
    assert (claim / "data" / "labels").read_bytes() == b"abc"


def test_a_file_of_the_same_size_and_other_content_is_fetched(cli: CliHarness, claim: Path) -> None:
    cli.edl("data", "cp", "mnist", "files:/data")
    Path("mnist/labels").write_bytes(b"xyz")
    assert cli.edl("data", "cp", "files:/data", "mnist", "--json") == 0
    assert json.loads(cli.out)["travelled"] == 3
    assert Path("mnist/labels").read_bytes() == b"abc"


def test_a_copy_goes_on_where_its_connection_broke(
    cli: CliHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = serve(tmp_path / "claim", monkeypatch, 10**9, 600_000, 300_000)
    assert cli.edl("data", "cp", "mnist/train/0.rec", "files:/", "--json") == 0
    assert (tmp_path / "claim" / "0.rec").read_bytes() == LARGE
    assert len(pods) == 4
    assert len(set(pods)) == 1
    assert json.loads(cli.out)["travelled"] < len(LARGE) // 2


def test_a_connection_that_always_breaks_ends_with_how_to_go_on(
    cli: CliHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(tmp_path / "claim", monkeypatch, 10**9, *[1000] * 9)
    assert cli.edl("data", "cp", "mnist", "files:/") == 2
    assert not missing_keys(cli.err, "connection", "same command")
    assert cli.cluster.objects_of_kind(PODS) == []


def test_listing(cli: CliHarness, claim: Path) -> None:
    (claim / "a").mkdir()
    (claim / "a" / "b").write_bytes(b"123")
    for path in (claim / "a" / "b", claim / "a"):
        os.utime(path, (0, 0))
    assert cli.edl("data", "ls", "files:/", "-R") == 0
    assert cli.out == "               -  1970-01-01 00:00  a/\n               3  1970-01-01 00:00  a/b\n"
    assert cli.edl("data", "ls", "files", "--json") == 0
    assert [entry["path"] for entry in json.loads(cli.out)] == ["a"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("cp", "a", "b"), ("claim",)),
        (("cp", "files:/a", "files:/b"), ("claim",)),
        (("cp", "nosuch", "files:/b"), ("nosuch",)),
        (("cp", "files:/nosuch", "b"), ("files:/nosuch", "edl data ls files:/")),
        (("cp", "mnist", "other:/b"), ("PersistentVolumeClaim other", "namespace team", "files")),
        (("ls", "/a/b"), ("claim",)),
        (("ls", "files:/no/such"), ("files:/no/such", "edl data ls files:/no")),
    ],
)
def test_bad_input(cli: CliHarness, claim: Path, args: tuple[str, ...], said: tuple[str, ...]) -> None:
    assert cli.edl("data", *args) == 2
    assert not missing_keys(cli.err, *said)
    assert cli.cluster.objects_of_kind(PODS) == []


def test_an_image_that_cannot_be_pulled_is_another_option_of_the_command(cli: CliHarness) -> None:
    waiting = {"image": "edl/submitter:0", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    pending = {"phase": "Pending", "containerStatuses": [waiting]}
    cli.cluster.admissions[:] = [lambda thing: thing.update(status=pending)]
    assert cli.edl("data", "ls", "files:/") == 2
    assert not missing_keys(cli.err, "pod", "edl/submitter:0", "--image", "EDL_SUBMITTER_IMAGE")
    assert "job file" not in cli.err + cli.out


def test_who_may_not_exec_starts_no_pod(cli: CliHarness) -> None:
    cli.cluster.denied.add(("get", "pods/exec"))
    assert cli.edl("data", "cp", "mnist", "files:/data") == 2
    assert not missing_keys(cli.err, "get pods/exec", "namespace team", "ClusterRole edl-data-copy")
    assert cli.cluster.created == []


def test_a_directory_in_the_place_of_a_file(cli: CliHarness, claim: Path) -> None:
    (claim / "data").write_bytes(b"")
    assert cli.edl("data", "cp", "mnist", "files:/data") == 2
    assert not missing_keys(cli.err, "file", "directory")
    assert (claim / "data").is_file()


def test_a_path_that_cannot_be_written(cli: CliHarness, claim: Path) -> None:
    (claim / "data").write_bytes(b"no directory")
    assert cli.edl("data", "cp", "mnist/labels", "files:/data/labels") == 1
    assert "/data/labels: cannot write" in cli.err


@pytest.mark.parametrize(("target", "there"), [("/d/", "/d/labels"), ("/d", "/d"), ("/", "/labels")])
def test_where_a_file_goes(cli: CliHarness, target: str, there: str) -> None:
    kind = "directory" if target == "/" else "missing"
    (item,) = file_transfer.plan_upload(Path("mnist/labels"), target, kind).pending_items
    assert item.volume_path == there


def test_links_are_left_out(cli: CliHarness) -> None:
    Path("mnist/link").symlink_to("/etc/passwd")
    plan = file_transfer.plan_upload(Path("mnist"), "/d", "missing")
    assert plan.skipped_files == ("link",)
    assert sorted(item.volume_path for item in plan.pending_items) == ["/d/labels", "/d/train/0.rec"]


NAMES = st.sampled_from(["a", "b", "..", "c/d", "c/../../x", "/etc/x", "a..b"])


@given(st.lists(st.builds(VolumeEntry, NAMES, st.sampled_from(["file", "directory"]), st.just(1), st.just(0.0))))
def test_nothing_is_written_outside_the_target(entries: list[VolumeEntry]) -> None:
    try:
        plan = file_transfer.plan_download("/d", entries, Path("/t"), is_file=False, into_directory=True)
    except BadInputError:
        return
    for path in (*plan.local_directories, *(item.local_path for item in plan.pending_items)):
        assert Path(os.path.normpath(path)).is_relative_to("/t")
