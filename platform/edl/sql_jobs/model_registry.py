"""Models by name: a folder with a folder for each model, in which each version is a folder.

A version is complete when its folder has its number: it is written under another name and renamed. So a reader never
sees half of one, and of two writers each gets a number.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from uuid import uuid4

from edl.api.errors import BadInputError, StorageError
from edl.sql_jobs.column_plan import list_names
from edl.sql_jobs.model_inputs import InputColumn, ModelInputs
from edl.sql_jobs.statement_parser import StatementError
from edl.sql_jobs.statements import ModelName
from edl.sql_jobs.undefined_metrics import Metrics, format_metric

DEFAULT_FOLDER = Path("~/.edl/models")
FOLDER_VARIABLE = "EDL_MODELS"
MODEL_FILE = "model.keras"
DESCRIPTION_FILE = "model.json"
_FORMAT = 1
_LONGEST_FOLDER = 255
"""Bytes of a file's name, which most file systems allow."""
_LEFT_BEHIND_SECONDS = 24 * 3600.0
"""Age from which what is being written or removed is that of a killed process."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What is stored beside a model.

    Args:
        name: of the model.
        version: from 1.
        created: unix seconds.
        statement: that trained it.
        estimator: of EDL's, or the definition in a module of the user. Of a small table, what was kept.
        database: its address, without a password.
        digest: of the rows.
        rows: number of them.
        label: column of the label.
        label_type: of it in Parquet.
        label_kind: name of the ``LabelKind``.
        classes: as texts, in the order of their numbers.
        columns: of the query with their types.
        inputs: of the model.
        prepared_label: column of the label in prepared rows.
        metrics: of the validation rows; None: undefined on these.
        history: step, metrics of each evaluation.
        plan: column, use and reason.
        stream: ``snapshot`` if the rows stayed in the database and were read in one state of it, ``inconsistent`` if
            they may be of several; empty: they were read once.
        choice: of a network or a linear model, with its reason; empty: there was none.
        refit_epochs: of the training on all rows after the metrics were measured; 0: there was none.
        validation_rows: that the metrics were measured on; 0: an earlier version of EDL did not say.
        unmeasured_classes: that none of these rows has, as far as they were looked for.
        folder: of this version.
    """

    name: str
    version: int
    created: float
    statement: str
    estimator: str
    database: str
    digest: str
    rows: int
    label: str
    label_type: str
    label_kind: str
    classes: tuple[str, ...]
    columns: Mapping[str, str]
    inputs: tuple[InputColumn, ...]
    prepared_label: str
    metrics: Metrics
    history: Sequence[tuple[int, Metrics]]
    plan: Sequence[tuple[str, str, str]]
    stream: str = ""
    choice: str = ""
    refit_epochs: int = 0
    validation_rows: int = 0
    unmeasured_classes: Sequence[str] = field(default_factory=list)
    folder: Path = Path()

    @property
    def model_inputs(self) -> ModelInputs:
        """The inputs, for ``prepared_rows``."""
        return ModelInputs(self.inputs, self.prepared_label)


class ModelRegistry:
    """The models of a folder.

    Args:
        folder: by default that of ``EDL_MODELS``, else ``~/.edl/models``.
    """

    def __init__(self, folder: Path | None = None) -> None:
        chosen = folder or Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER)
        self.folder = chosen.expanduser().absolute()  # jobs have working folders of their own

    def list_names(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        names = sorted(unquote(path.name) for path in self.folder.iterdir() if not path.name.startswith("."))
        return [name for name in names if self.versions(name)]

    def list_models(self) -> list[ModelDescription]:
        """The newest version of each model, by name."""
        newest = (self._read_newest(name) for name in self.list_names())
        return [each for each in newest if each is not None]

    def versions(self, name: str) -> list[int]:
        """The versions of a model, oldest first."""
        with suppress(OSError):  # a name that is too long for a file, or a model that is dropped meanwhile
            return sorted(int(path.name) for path in self._model_folder(name).iterdir() if path.name.isdecimal())
        return []

    def find(self, wanted: ModelName) -> ModelDescription:
        """A model, or one version of it.

        Raises:
            BadInputError: there is none; names the place, and what was probably meant.
        """
        while True:
            version = self._find_versions(wanted)[-1]
            # None: it was dropped meanwhile
            if (description := self._read(wanted.name, version)) is not None:
                return description

    def _find_versions(self, wanted: ModelName) -> list[int]:
        """All versions of a model, or the one that is wanted. Their descriptions may be unreadable.

        Raises:
            BadInputError: there is none; see ``find``.
        """
        versions = self.versions(wanted.name)
        if not versions:
            known = self.list_names()
            near = get_close_matches(wanted.name, known, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            there = f"models there: {list_names(known)}" if known else f"{self.folder} has none"
            raise StatementError(f"there is no model {wanted.name}", wanted.place, f"{hint}{there}")
        if wanted.version is None:
            return versions
        if wanted.version not in versions:
            raise StatementError(
                f"the model {wanted.name} has no version {wanted.version}",
                wanted.place,
                f"it has {', '.join(map(str, versions))}",
            )
        return [wanted.version]

    def check_new(self, wanted: ModelName, *, replace_model: bool) -> None:
        """Refuse what could not be stored after the training.

        Raises:
            BadInputError: a model of this name exists, and gets no new version; or no folder can have the name.
            StorageError: the folder of models cannot be written.
        """
        if len(self._model_folder(wanted.name).name.encode()) > _LONGEST_FOLDER:
            raise StatementError(
                "the name of the model is too long",
                wanted.place,
                f"at most {_LONGEST_FOLDER} letters; others than those of English count several times",
            )
        if (versions := self.versions(wanted.name)) and not replace_model:
            raise StatementError(
                f"the model {wanted.name} exists, with version {versions[-1]}",
                wanted.place,
                "choose another name; or --replace makes a new version, and keeps the old ones",
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise self._cannot_store(error, self.folder) from error

    def save(self, description: ModelDescription, files: Sequence[Path]) -> ModelDescription:
        """Add a version, whose number is the next one.

        Args:
            description: its version is ignored.
            files: files and folders that become part of it, among them ``model.keras``.

        Raises:
            StorageError: it cannot be written; nothing of it stays.
        """
        folder = self._model_folder(description.name)
        temporary = folder / f".{uuid4().hex}.tmp"
        try:
            while not temporary.exists():
                with suppress(FileNotFoundError):  # another program dropped the last version, and the folder with it
                    folder.mkdir(parents=True, exist_ok=True)
                    temporary.mkdir()
            for file in files:
                (shutil.copytree if file.is_dir() else shutil.copy2)(file, temporary / file.name)
            while True:
                version = max(self.versions(description.name), default=0) + 1
                stored = replace(description, version=version, folder=folder / str(version))
                write_description(stored, temporary / DESCRIPTION_FILE)
                try:
                    temporary.rename(stored.folder)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                    continue  # another writer was faster
                return stored
        except OSError as error:
            raise self._cannot_store(error, folder) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _cannot_store(self, error: OSError, folder: Path) -> StorageError:
        return StorageError(
            f"the model cannot be stored: {error.strerror or error}",
            where=str(folder),
            hint=f"{FOLDER_VARIABLE} names another folder for models",
        )

    def drop(self, wanted: ModelName) -> list[int]:
        """Remove a model, or one version of it; returns the versions.

        Raises:
            BadInputError: there is none.
        """
        folder = self._model_folder(wanted.name)
        dropped = list[int]()
        for version in self._find_versions(wanted):
            # Gone under its number at once; what a killed process leaves is no version.
            gone = folder / f".{uuid4().hex}.dropped"
            with suppress(FileNotFoundError):  # another program was faster
                (folder / str(version)).rename(gone)
                dropped.append(version)
            shutil.rmtree(gone, ignore_errors=True)
        _remove_left_behind(folder)
        with suppress(OSError):  # others write versions
            folder.rmdir()
        return dropped

    def _model_folder(self, name: str) -> Path:
        # A name may be anything: no slash, and no dot at its beginning.
        plain = quote(name, safe=" ")
        return self.folder / (plain.replace(".", "%2E", 1) if plain.startswith(".") else plain)

    def _read(self, name: str, version: int) -> ModelDescription | None:
        """A version; None: it was dropped meanwhile."""
        file = self._model_folder(name) / str(version) / DESCRIPTION_FILE
        try:
            return read_description(file)
        except StorageError:
            if file.parent.exists():
                raise
            return None

    def _read_newest(self, name: str) -> ModelDescription | None:
        while versions := self.versions(name):
            if (description := self._read(name, versions[-1])) is not None:
                return description
        return None


def _remove_left_behind(folder: Path) -> None:
    """Remove what killed processes left of versions that they wrote or removed."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.suffix in (".tmp", ".dropped") and time.time() - path.stat().st_mtime > _LEFT_BEHIND_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def write_description(description: ModelDescription, file: Path) -> None:
    """Write a description, but for its folder, which is where the file lies."""
    content = {"format": _FORMAT, **asdict(description)}
    del content["folder"]
    file.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def read_description(file: Path) -> ModelDescription:
    """Read what ``write_description`` wrote.

    Raises:
        BadInputError: another version of EDL wrote it.
        StorageError: it cannot be read.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.pop("format") != _FORMAT:
            raise BadInputError(
                "another version of EDL wrote this model",
                where=str(file.parent),
                hint="use that version, or train again",
            )
        inputs = tuple(InputColumn(**each) for each in content.pop("inputs"))
        classes = tuple(content.pop("classes"))
        return ModelDescription(**content, inputs=inputs, classes=classes, folder=file.parent)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"the description of a model cannot be read: {error}", where=str(file)) from error


def describe_model(description: ModelDescription, metrics: int = 3) -> dict[str, Any]:
    """A row of ``SHOW MODELS``."""
    shown = list(description.metrics.items())[:metrics]
    return {
        "model": description.name,
        "version": description.version,
        "label": description.label,
        "estimator": description.estimator,
        "rows": description.rows,
        "metrics": ", ".join(f"{name} {format_metric(value, 4)}" for name, value in shown),
    }
