"""edl zoo: the files of a new zoo, the Dockerfile and the context of a build, what is said when something is wrong."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.cli_harness import run_edl
from cli.scripted_engine import ScriptedEngine
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.cli.zoo import TEMPLATE_FILES, model_definitions
from edl.jobfile.loader import load_job_file
from edl.jobfile.zoo_lookup import find_model_function
from edl.ops.image_build import (
    DOCKERFILE,
    IGNORE_FILE,
    INSTALL_COMPAT,
    choose_dockerfile,
    default_base_image,
    pack_context,
)

ZOO = Path(__file__).parents[3] / "model_zoo"

TRAINING = {"Config": {"Entrypoint": ["edl-role"], "Labels": {"dev.edl.image": "training"}}, "Size": 1_400_000_000}


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    folder = tmp_path / "zoo"
    (folder / "mnist").mkdir(parents=True)
    (folder / "mnist" / "mlp.py").write_text("def custom_model(): ...\n", encoding="utf-8")
    return folder


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedEngine]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with ScriptedEngine(tmp_path / "engine.sock") as running:
        monkeypatch.setenv("DOCKER_HOST", running.address)
        yield running


def packed(zoo: Path, dockerfile: str = "FROM x\n") -> dict[str, tarfile.TarInfo]:
    into = io.BytesIO()
    assert pack_context(zoo, dockerfile, into) == len(into.getvalue())
    with tarfile.open(fileobj=into) as archive:
        return {entry.name: entry for entry in archive.getmembers()}


# ---------------------------------------------------------------------- init


def test_a_new_zoo_has_a_job_that_names_a_model_in_it(tmp_path: Path) -> None:
    assert run_edl("zoo", "init", str(tmp_path / "new")) == 0
    spec = load_job_file(tmp_path / "new" / "job.yaml")
    assert find_model_function(tmp_path / "new", spec.model.definition).function == "custom_model"
    assert {path.name for path in (tmp_path / "new").iterdir()} == set(TEMPLATE_FILES.values())
    assert model_definitions(tmp_path / "new") == [spec.model.definition]


def test_a_new_job_uses_the_claim_of_the_charts_and_says_how_the_data_comes_there(tmp_path: Path) -> None:
    run_edl("zoo", "init", str(tmp_path))
    (volume,) = load_job_file(tmp_path / "job.yaml").volumes
    assert volume.claim == "fileserver-claim"
    copies = f"edl data cp data/mnist {volume.claim}:/mnist --image REGISTRY/digits:1\n"
    assert copies in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_pods_of_a_new_job_are_no_larger_than_those_of_the_zoo(tmp_path: Path) -> None:
    """Two CPUs and 2 GiB each, the default, would not fit a small cluster."""
    run_edl("zoo", "init", str(tmp_path))
    new, known = load_job_file(tmp_path / "job.yaml"), load_job_file(ZOO / "mnist" / "job.yaml")
    for role in ("master", "ps", "workers"):
        assert getattr(new, role).resources == getattr(known, role).resources


def test_a_new_dockerfile_starts_from_this_version_and_obeys_base(tmp_path: Path) -> None:
    run_edl("zoo", "init", str(tmp_path))
    text, arguments = choose_dockerfile(tmp_path, base=None, file=None)
    assert f"ARG BASE={default_base_image()}\nFROM ${{BASE}}\n" in text
    assert arguments == {}
    assert choose_dockerfile(tmp_path, base="edl/edl:dev", file=None)[1] == {"BASE": "edl/edl:dev"}


def test_a_new_dockerfile_installs_the_list_of_packages(tmp_path: Path) -> None:
    run_edl("zoo", "init", str(tmp_path))
    text, _ = choose_dockerfile(tmp_path, base=None, file=None)
    assert "COPY requirements.txt /model_zoo/\nRUN pip install -r /model_zoo/requirements.txt\nCOPY . " in text
    assert all(line.startswith("#") for line in (tmp_path / "requirements.txt").read_text("utf-8").splitlines())


def test_init_keeps_a_list_of_packages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "requirements.txt").write_text("pandas\n", encoding="utf-8")
    assert run_edl("zoo", "init", str(tmp_path)) == 0
    assert (tmp_path / "requirements.txt").read_text(encoding="utf-8") == "pandas\n"
    assert "requirements.txt" not in capsys.readouterr().out
    assert (tmp_path / "Dockerfile").is_file()


def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text("mine", encoding="utf-8")
    assert run_edl("zoo", "init", str(tmp_path)) == 2
    assert "exists already: job.yaml" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


# ---------------------------------------------------------------------- what is sent


def test_the_dockerfile_is_made_where_the_zoo_has_none(zoo: Path) -> None:
    text, _ = choose_dockerfile(zoo, "edl/edl:dev", None)
    assert text == "ARG BASE=edl/edl:dev\nFROM ${BASE}\nCOPY . /model_zoo\nUSER 1000:1000\n"
    (zoo / "requirements.txt").write_text("pandas\n", encoding="utf-8")
    assert "RUN pip install -r /model_zoo/requirements.txt" in choose_dockerfile(zoo, None, None)[0]


@pytest.mark.parametrize(
    ("line", "has_it"),
    [
        ("from elasticdl.python.common.constants import Mode", True),
        ("import recordio", True),
        ("    from elasticdl_preprocessing.layers import Hashing", True),
        ("import elasticdl_things", False),
        ("x = 'import elasticdl'", False),
    ],
)
def test_models_that_import_elasticdls_names_get_them(zoo: Path, line: str, has_it: bool) -> None:
    (zoo / "theirs.py").write_text(f"if True:\n    pass\n    {line.strip()}\n", encoding="utf-8")
    text, _ = choose_dockerfile(zoo, "edl/edl:dev", None)
    assert (INSTALL_COMPAT in text) == has_it
    assert text.endswith("COPY . /model_zoo\nUSER 1000:1000\n")


def test_the_zoos_own_dockerfile_is_used_and_decides_on_its_base(zoo: Path, tmp_path: Path) -> None:
    (zoo / "Dockerfile").write_text("FROM mine\n", encoding="utf-8")
    assert choose_dockerfile(zoo, None, None) == ("FROM mine\n", {})
    with pytest.raises(BadInputError, match="base"):
        choose_dockerfile(zoo, "edl/edl:dev", None)
    (tmp_path / "Other").write_text("FROM other\n", encoding="utf-8")
    assert choose_dockerfile(zoo, None, tmp_path / "Other")[0] == "FROM other\n"
    with pytest.raises(BadInputError, match="cannot be read"):
        choose_dockerfile(zoo, None, tmp_path / "nowhere")


def test_the_context_leaves_out_what_is_no_model_and_what_the_zoo_ignores(zoo: Path) -> None:
    for name in ("mnist/__pycache__/mlp.pyc", ".git/HEAD", "data/train.rio", "README.md"):
        (zoo / name).parent.mkdir(parents=True, exist_ok=True)
        (zoo / name).write_text("", encoding="utf-8")
    (zoo / IGNORE_FILE).write_text("# no data\ndata\n", encoding="utf-8")
    files = {name for name, entry in packed(zoo).items() if entry.isfile()}
    assert files == {"mnist/mlp.py", "README.md", DOCKERFILE, IGNORE_FILE}


def test_every_uid_can_read_what_is_in_the_image(zoo: Path) -> None:
    (zoo / "mnist" / "mlp.py").chmod(0o600)
    (zoo / "tool.sh").write_text("#!/bin/sh\n", encoding="utf-8")
    (zoo / "tool.sh").chmod(0o700)
    entries = packed(zoo)
    modes = {name: entries[name].mode for name in ("mnist", "mnist/mlp.py", "tool.sh")}
    assert modes == {"mnist": 0o755, "mnist/mlp.py": 0o644, "tool.sh": 0o755}
    assert {(entry.uid, entry.gid) for entry in entries.values()} == {(0, 0)}


def test_a_folder_without_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="not a directory"):
        packed(tmp_path / "nowhere")
    with pytest.raises(BadInputError, match="no Python file"):
        packed(tmp_path)


# ---------------------------------------------------------------------- build


def test_build_shows_the_engines_words_and_what_to_write(
    zoo: Path, engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.build = [{"stream": "Step 1/2 : FROM edl"}, {"stream": "/edl\n"}, {"stream": "Successfully built 1\n"}]
    engine.image = TRAINING
    assert run_edl("zoo", "build", str(zoo), "--image", "team/mnist:1") == 0
    out = capsys.readouterr().out
    assert "Step 1/2 : FROM edl/edl\nSuccessfully built 1\n" in out
    assert "image: team/mnist:1\n  model: {zoo: ., definition: mnist.mlp.custom_model}\n" in out
    [query] = [request.query for request in engine.requests if request.path.endswith("/build")]
    assert (query["t"], query["dockerfile"]) == ("team/mnist:1", DOCKERFILE)


@pytest.mark.parametrize(
    ("dockerfile", "warns"),
    [
        ("FROM mine\n# COPY requirements.txt /model_zoo/\nCOPY . /model_zoo\n", True),
        ("FROM mine\nCOPY . /model_zoo\nRUN pip install -r /model_zoo/requirements.txt\n", False),
        (None, False),
    ],
)
def test_build_warns_of_packages_that_the_dockerfile_leaves_out(
    zoo: Path, engine: ScriptedEngine, capsys: pytest.CaptureFixture[str], dockerfile: str | None, warns: bool
) -> None:
    engine.image = TRAINING
    if dockerfile is not None:
        (zoo / "Dockerfile").write_text(dockerfile, encoding="utf-8")
    (zoo / "requirements.txt").write_text("pandas\n", encoding="utf-8")
    assert run_edl("zoo", "build", str(zoo), "--image", "mnist") == 0
    assert (f"warning: {zoo / 'requirements.txt'} is not installed" in capsys.readouterr().err) == warns


def test_a_base_that_cannot_be_had(zoo: Path, engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.build = [{"stream": "Step 2/4 : FROM ${BASE}\n"}, {"error": "pull access denied for edl/edl"}]
    assert run_edl("zoo", "build", str(zoo), "--image", "mnist") == 1
    err = capsys.readouterr().err
    assert not missing_keys(err, "base image", "--base")


def test_a_step_that_fails_is_named(zoo: Path, engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.build = [{"stream": "Step 3/4 : RUN false\n"}, {"error": "The command 'false' returned a non-zero code: 1"}]
    assert run_edl("zoo", "build", str(zoo), "--image", "mnist") == 1
    assert "Step 3/4 : RUN false: The command 'false' returned" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"Entrypoint": ["edl-role"], "Labels": None}, "not contain EDL"),
        ({"Entrypoint": ["edl-role"], "Labels": {"dev.edl.image": "submitter"}}, "cannot train"),
        ({"Entrypoint": ["bash"], "Labels": {"dev.edl.image": "training"}}, "['bash']"),
        ({"Entrypoint": None, "Labels": {"dev.edl.image": "training"}}, "entry point"),
    ],
)
def test_an_image_that_no_job_can_run(
    zoo: Path, engine: ScriptedEngine, capsys: pytest.CaptureFixture[str], config: dict[str, object], reason: str
) -> None:
    engine.image = {"Config": config, "Size": 1}
    assert run_edl("zoo", "build", str(zoo), "--image", "mnist") == 2
    assert reason in capsys.readouterr().err


def test_an_image_name_is_checked_before_anything_is_sent(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("zoo", "build", str(zoo), "--image", "Team/MNIST") == 2
    assert not missing_keys(capsys.readouterr().err, "Team/MNIST")


@pytest.mark.parametrize(
    ("host", "said"),
    [("unix:///nowhere/docker.sock", "/nowhere/docker.sock"), ("ssh://host", "unix://")],
)
def test_no_engine(
    zoo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str, said: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    assert run_edl("zoo", "build", str(zoo), "--image", "mnist") == 2
    err = capsys.readouterr().err
    assert said in err
    assert "start Docker" in err


# ---------------------------------------------------------------------- push


def test_push_ends_with_the_digest(engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.push = [
        {"status": "Preparing", "id": "a1"},
        {"status": "Pushing", "id": "a1", "progressDetail": {"current": 5, "total": 4}},
        {"status": "Pushed", "id": "a1"},
        {"aux": {"Tag": "1", "Digest": "sha256:abc", "Size": 9}},
    ]
    assert run_edl("zoo", "push", "registry.example.com/mnist:1") == 0
    captured = capsys.readouterr()
    assert captured.out == "Pushed registry.example.com/mnist:1, sha256:abc.\n"
    assert captured.err == "a1: done\n"


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("denied: requested access to the resource is denied", "`docker login registry.example.com`"),
        ("unauthorized: authentication required", "`docker login registry.example.com`"),
        ("An image does not exist locally with the tag: mnist", "edl zoo build"),
        ("dial tcp: connection refused", "reachable"),
    ],
)
def test_push_refused(engine: ScriptedEngine, capsys: pytest.CaptureFixture[str], reason: str, hint: str) -> None:
    engine.push = [{"error": reason}]
    assert run_edl("zoo", "push", "registry.example.com/mnist:1") == 1
    assert hint in capsys.readouterr().err


def test_the_docker_library_is_imported_on_use() -> None:
    code = "import sys; from edl.cli import app, zoo; sys.exit('docker' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
