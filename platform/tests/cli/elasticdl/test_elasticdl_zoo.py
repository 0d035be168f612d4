"""elasticdl zoo: the Dockerfile of ``init``, and what ``build`` and ``push`` give to those of edl."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.cli_harness import exit_code_of
from support.text_keys import missing_keys

from edl.cli.elasticdl import app
from edl.ops.image_build import INSTALL_COMPAT


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model_zoo").mkdir()
    (tmp_path / "model_zoo/model.py").write_text("def custom_model(): ...\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def elasticdl(*words: str) -> int:
    return exit_code_of(lambda: app.main(["zoo", *words]))


def test_the_dockerfile_installs_what_the_zoo_needs(folder: Path) -> None:
    (folder / "wheels").mkdir()
    (folder / "model_zoo/requirements.txt").write_text("pandas\n")
    (folder / "model_zoo/model.py").write_text("import recordio\n")
    index = "--extra_pypi_index=http://index.example/simple"
    assert elasticdl("init", "--model_zoo=model_zoo", "--local_pkg_dir=wheels", index) == 0
    assert (folder / "Dockerfile").read_text().splitlines()[1:] == [
        "FROM ${BASE}",
        "USER root",
        INSTALL_COMPAT,
        "COPY wheels/*.whl /tmp/wheels/",
        "RUN pip install --extra-index-url=http://index.example/simple /tmp/wheels/*.whl && rm -r /tmp/wheels",
        "COPY model_zoo/requirements.txt /model_zoo/requirements.txt",
        "RUN pip install --extra-index-url=http://index.example/simple -r /model_zoo/requirements.txt",
        "COPY model_zoo /model_zoo",
        "USER 1000:1000",
    ]


def test_the_dockerfile_of_before_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "Dockerfile").write_text("FROM mine\n")
    assert elasticdl("init", "--model_zoo=model_zoo") == 0
    assert (folder / "Dockerfile.old").read_text() == "FROM mine\n"
    assert "Dockerfile.old" in capsys.readouterr().err
    assert elasticdl("init", "--model_zoo=model_zoo") == 0
    assert (folder / "Dockerfile.old").read_text() == "FROM mine\n"
    assert capsys.readouterr().err == ""


def test_a_second_init_keeps_both_dockerfiles(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "Dockerfile").write_bytes(b"FROM mine # caf\xe9\n")
    assert elasticdl("init", "--model_zoo=model_zoo") == 0
    first = (folder / "Dockerfile").read_text()
    capsys.readouterr()
    assert elasticdl("init", "--model_zoo=model_zoo", "--base_image=registry.example/edl:2") == 0
    assert (folder / "Dockerfile.old").read_bytes() == b"FROM mine # caf\xe9\n"
    assert (folder / "Dockerfile.old.2").read_text() == first
    assert "Dockerfile.old.2" in capsys.readouterr().err


def test_packages_that_no_index_has_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "model_zoo/requirements.txt").write_text("elasticdl_preprocessing\npandas\nelasticdl==0.2\n")
    assert elasticdl("init", "--model_zoo=model_zoo") == 0
    assert not missing_keys(capsys.readouterr().err, "elasticdl_preprocessing and elasticdl", "remove the lines")


@pytest.mark.parametrize("words", [["--model_zoo=nowhere"], ["--model_zoo=.."], ["--local_pkg_dir=nowhere"]])
def test_folders_that_cannot_be_copied(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert elasticdl("init", *words) == 2
    assert words[0] in capsys.readouterr().err
    assert not (folder / "Dockerfile").exists()


def test_build_and_push_are_those_of_edl(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[object] = []
    monkeypatch.setattr("edl.cli.zoo.build_zoo_image", lambda path, image: calls.append((path, image)) or image)
    monkeypatch.setattr("edl.cli.zoo.push", calls.append)
    assert elasticdl("build", "--image=registry.example/mnist:1", ".") == 0
    assert elasticdl("push", "registry.example/mnist:1") == 0
    assert calls == [(Path(), "registry.example/mnist:1"), "registry.example/mnist:1"]
    assert "elasticdl zoo push registry.example/mnist:1" in capsys.readouterr().out


@pytest.mark.parametrize("wheels", [[], ["--local_pkg_dir=wheels"]])
def test_an_index_without_packages_to_install_is_mentioned(
    wheels: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "wheels").mkdir()
    index = "--extra_pypi_index=http://index.example/simple"
    assert elasticdl("init", "--model_zoo=model_zoo", index, *wheels) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if index in line]
    assert len(lines) == (0 if wheels else 1)
    assert not missing_keys("".join(lines), *([] if wheels else ["no effect", "model_zoo/requirements.txt"]))
