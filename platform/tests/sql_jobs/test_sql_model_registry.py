"""Models by name: versions, what is stored with them, and names that are no file names."""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from edl.api.errors import BadInputError, StorageError
from edl.sql_jobs.model_inputs import InputColumn
from edl.sql_jobs.model_registry import ModelDescription, ModelRegistry
from edl.sql_jobs.statements import ModelName, TextPosition

PLACE = TextPosition(3, 7)
DESCRIPTION = ModelDescription(
    "m", 0, 1.0, "SELECT 1", "dnn", "sqlite:///x.db", "abc", 9, "y", "string", "BINARY", ("a", "b"), {"x": "int64"},
    (InputColumn("x", "x", "float32", "integer"),), "y", {"loss": 0.5}, [(1, {"loss": 0.5})], [("x", "scaled", "so")],
)  # fmt: skip


def name(text: str, version: int | None = None) -> ModelName:
    return ModelName(text, version, PLACE)


@pytest.fixture
def model(tmp_path: Path) -> list[Path]:
    file = tmp_path / "model.keras"
    file.write_text("weights", encoding="utf-8")
    return [file]


def test_each_training_makes_the_next_version_and_old_ones_stay(tmp_path: Path, model: list[Path]) -> None:
    registry = ModelRegistry(tmp_path / "models")
    assert [registry.save(DESCRIPTION, model).version for _ in range(3)] == [1, 2, 3]
    assert registry.find(name("m")).version == 3
    stored = registry.find(name("m", 1))
    assert stored == replace(
        DESCRIPTION, version=1, folder=tmp_path / "models" / "m" / "1", history=[[1, {"loss": 0.5}]],
        plan=[["x", "scaled", "so"]],
    )  # fmt: skip
    assert (stored.folder / "model.keras").read_text(encoding="utf-8") == "weights"
    assert [(each.name, each.version) for each in registry.list_models()] == [("m", 3)]


def test_one_version_or_all_of_a_model_are_dropped(tmp_path: Path, model: list[Path]) -> None:
    registry = ModelRegistry(tmp_path / "models")
    for _ in range(3):
        registry.save(DESCRIPTION, model)
    assert registry.drop(name("m", 3)) == [3]
    assert registry.versions("m") == [1, 2]
    assert registry.drop(name("m")) == [1, 2]
    assert registry.list_models() == []
    assert not list((tmp_path / "models").iterdir())


@pytest.mark.parametrize("text", ["../../etc", "a/b", ".hidden", "..", "größe", "a b", '"; DROP', "%2E", "1"])
def test_any_name_is_one_folder_of_the_registry(tmp_path: Path, model: list[Path], text: str) -> None:
    registry = ModelRegistry(tmp_path / "models")
    saved = registry.save(replace(DESCRIPTION, name=text), model)
    assert saved.folder.parent.parent == tmp_path / "models"
    assert saved.folder.resolve().is_relative_to(tmp_path / "models")
    assert [each.name for each in registry.list_models()] == [text]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    registry = ModelRegistry(tmp_path / "models")
    with pytest.raises(StorageError, match="cannot be stored"):
        registry.save(DESCRIPTION, [tmp_path / "absent"])
    assert registry.versions("m") == []
    assert not list((tmp_path / "models" / "m").iterdir())


def test_models_that_are_not_there_are_named_with_their_place(tmp_path: Path, model: list[Path]) -> None:
    registry = ModelRegistry(tmp_path / "models")
    with pytest.raises(BadInputError, match="no model incme") as error:
        registry.find(name("incme"))
    assert "has none" in str(error.value.hint)
    registry.save(replace(DESCRIPTION, name="income"), model)
    with pytest.raises(BadInputError) as error:
        registry.find(name("incme"))
    assert "did you mean income" in str(error.value.hint)
    assert "line 3, column 7" in str(error.value.where)
    with pytest.raises(BadInputError, match="no version 2"):
        registry.find(name("income", 2))


def test_a_model_that_exists_is_refused_unless_it_is_to_be_replaced(tmp_path: Path, model: list[Path]) -> None:
    registry = ModelRegistry(tmp_path / "models")
    registry.check_new(name("m"), replace_model=False)
    registry.save(DESCRIPTION, model)
    with pytest.raises(BadInputError, match="exists, with version 1") as error:
        registry.check_new(name("m"), replace_model=False)
    assert "--replace" in str(error.value.hint)
    registry.check_new(name("m"), replace_model=True)


def test_models_of_a_relative_folder_are_found_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run in folders of their own."""
    monkeypatch.chdir(tmp_path)
    assert ModelRegistry(Path("models")).folder == tmp_path / "models"
    monkeypatch.setenv("EDL_MODELS", "others")
    assert ModelRegistry().folder == tmp_path / "others"


@pytest.mark.parametrize("text", ["x" * 300, "ё" * 45])
def test_a_name_that_no_folder_can_have_is_refused_at_its_place(tmp_path: Path, text: str) -> None:
    registry = ModelRegistry(tmp_path / "models")
    with pytest.raises(BadInputError, match="too long") as error:
        registry.check_new(name(text), replace_model=False)
    assert "line 3, column 7" in str(error.value.where)
    with pytest.raises(BadInputError, match="there is no model"):
        registry.find(name(text))


def test_a_folder_that_cannot_be_written_is_refused_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be stored") as error:
        ModelRegistry(tmp_path / "file").check_new(name("m"), replace_model=False)
    assert "EDL_MODELS" in str(error.value.hint)


def test_a_model_that_is_dropped_leaves_a_version_that_is_being_written(
    tmp_path: Path, model: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = ModelRegistry(tmp_path / "models")
    registry.save(DESCRIPTION, model)
    copy = shutil.copy2

    def drop_first(source: object, target: object) -> object:
        registry.drop(name("m"))
        return copy(source, target)  # type: ignore[call-overload]

    monkeypatch.setattr(shutil, "copy2", drop_first)
    assert registry.save(DESCRIPTION, model).version == 1
    assert registry.versions("m") == [1]


def test_programs_that_write_drop_and_list_one_model_do_not_disturb_each_other(
    tmp_path: Path, model: list[Path]
) -> None:
    registry, errors, dropped, end = (
        ModelRegistry(tmp_path / "models"),
        list[Exception](),
        list[int](),
        threading.Event(),
    )

    def repeat(action: str) -> None:
        while not end.is_set():
            try:
                if action == "list":
                    registry.list_models()
                else:
                    dropped.extend(registry.drop(name("m")))
            except BadInputError as error:
                if "there is no model m" not in error.message:
                    errors.append(error)
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=repeat, args=(action,)) for action in ("list", "drop")]
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):
            registry.save(DESCRIPTION, model)
    finally:
        end.set()
        for thread in threads:
            thread.join()
    assert not errors
    assert len(dropped) + len(registry.versions("m")) == 15


def test_a_version_that_cannot_be_read_can_be_dropped(tmp_path: Path, model: list[Path]) -> None:
    registry = ModelRegistry(tmp_path / "models")
    saved = registry.save(DESCRIPTION, model)
    (saved.folder / "model.json").write_text("{", encoding="utf-8")
    with pytest.raises(StorageError, match="cannot be read"):
        registry.list_models()
    assert registry.drop(name("m")) == [1]
    assert registry.list_models() == []


def test_what_a_killed_process_left_goes_with_the_model(tmp_path: Path, model: list[Path]) -> None:
    registry = ModelRegistry(tmp_path / "models")
    saved = registry.save(DESCRIPTION, model)
    old, new = saved.folder.with_name(".a.tmp"), saved.folder.with_name(".b.tmp")
    old.mkdir()
    new.mkdir()
    os.utime(old, (0, 0))
    registry.drop(name("m"))
    assert not old.exists()
    assert new.exists()
    assert registry.list_models() == []
