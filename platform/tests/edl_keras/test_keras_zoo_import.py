"""The zoo that a job names wins over every other module of its names: no other's code is run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edl.api.errors import BadInputError
from edl.jobfile.zoo_lookup import find_model_function
from edl.keras.zoo_import import import_zoo_module

PLACES = ("the current folder", "PYTHONPATH", "the folder above the zoo is on PYTHONPATH, too")
IMPORT = """
import sys
from pathlib import Path
from edl.jobfile.zoo_lookup import find_model_function
from edl.keras.zoo_import import import_zoo_module
zoo = Path(sys.argv[1])
print(import_zoo_module(zoo, find_model_function(zoo, sys.argv[2])).SAYS)
"""


def package(folder: Path, name: str, says: str, *, init: bool = True) -> None:
    """A package with a module ``mine.sub``, a helper beside it, and a top-level module that each says whose it is."""
    root = folder / name
    for part in (root, root / "mine", root / "layers_of_job"):
        part.mkdir(parents=True)
        if init:
            (part / "__init__.py").write_text(f"print('ran {says}')\n" if says != "job" else "")
    (root / "mine" / "helper.py").write_text(f"SAYS = '{says}'\n")
    (root / "mine" / "sub.py").write_text(
        f"from {name}.mine import helper\nfrom layers_of_job import dense\n"
        f"SAYS = ['{says}', helper.SAYS, dense.SAYS]\ndef custom_model(): ...\n"
    )
    (root / "layers_of_job" / "dense.py").write_text(f"SAYS = '{says}'\n")


@pytest.mark.parametrize("init", [True, False], ids=["a package", "a folder"])
@pytest.mark.parametrize("place", PLACES)
def test_the_zoo_of_the_job_wins_over_a_package_of_its_name(tmp_path: Path, init: bool, place: str) -> None:
    package(tmp_path / "job", "model_zoo", "job", init=init)
    package(tmp_path / "here", "model_zoo", "other")
    package(tmp_path / "here", "layers_of_job", "other")
    (tmp_path / "here" / "layers_of_job" / "dense.py").write_text("SAYS = 'other'\n")
    paths = {PLACES[0]: [], PLACES[1]: [tmp_path / "here"], PLACES[2]: [tmp_path / "here", tmp_path / "job"]}[place]
    zoo = tmp_path / "job" / "model_zoo"
    (tmp_path / "import.py").write_text(IMPORT)
    start = [sys.executable, "-c", f"import sys; sys.path.insert(0, '')\n{IMPORT}", str(zoo), "mine.sub.custom_model"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    ended = subprocess.run(
        start, cwd=tmp_path / "here", env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.stdout == "['job', 'job', 'job']\n", ended.stderr


def test_a_zoo_whose_name_is_no_module_name_wins_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-zoo" / "cats").mkdir(parents=True)
    (tmp_path / "my-zoo" / "cats" / "net.py").write_text("SAYS = 'job'\ndef custom_model(): ...\n")
    (tmp_path / "here" / "cats").mkdir(parents=True)
    (tmp_path / "here" / "cats" / "__init__.py").write_text("")
    (tmp_path / "here" / "cats" / "net.py").write_text("SAYS = 'other'\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "here"), *sys.path])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    zoo = tmp_path / "my-zoo"
    assert import_zoo_module(zoo, find_model_function(zoo, "cats.net.custom_model")).SAYS == "job"


@pytest.mark.parametrize("definition", ["crossing.net.custom_model", "other.custom_model"])
@pytest.mark.parametrize("zoo_init", [True, False], ids=["zoo is a package", "zoo is a folder"])
@pytest.mark.parametrize("init", [True, False], ids=["a package", "a folder"])
def test_a_folder_with_the_name_of_an_installed_package_has_its_modules_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, init: bool, zoo_init: bool, definition: str
) -> None:
    """ElasticDL's zoo has a folder deepctr, whose module imports deepctr.models."""
    installed, zoo = tmp_path / "site" / "crossing", tmp_path / "a_zoo"
    (installed / "layers").mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    (installed / "layers" / "__init__.py").write_text("from ..both import SAYS\n")
    (installed / "both.py").write_text("SAYS = 'installed'\n")
    (zoo / "crossing").mkdir(parents=True)
    source = "from crossing.layers import SAYS\ndef custom_model(): ...\n"
    (zoo / "crossing" / "net.py").write_text(source)
    (zoo / "other.py").write_text(source)
    for folder, is_package in ((zoo, zoo_init), (zoo / "crossing", init)):
        if is_package:
            (folder / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("crossing", "a_zoo", "other")]:
        monkeypatch.delitem(sys.modules, name)
    assert import_zoo_module(zoo, find_model_function(zoo, definition)).SAYS == "installed"


def test_an_installed_package_of_a_folders_name_is_still_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo = tmp_path / "zoo_with_folders"
    (zoo / "yaml").mkdir(parents=True)
    (zoo / "yaml" / "jobs.py").write_text("")
    (zoo / "net.py").write_text("import jsonschema, rich.text\ndef custom_model(): ...\n")
    (zoo / "rich").mkdir()
    (zoo / "rich" / "notes.py").write_text("")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    assert import_zoo_module(zoo, find_model_function(zoo, "net.custom_model")).rich.text.__name__ == "rich.text"


@pytest.mark.parametrize("name", ["keras", "tensorflow", "edl"])
def test_a_zoo_that_would_hide_what_every_model_needs_is_refused(tmp_path: Path, name: str) -> None:
    zoo = tmp_path / name
    zoo.mkdir()
    (zoo / "net.py").write_text("def custom_model(): ...\n")
    with pytest.raises(BadInputError, match=f"called {name}"):
        import_zoo_module(zoo, find_model_function(zoo, "net.custom_model"))
