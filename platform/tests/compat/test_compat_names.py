"""Every name that ElasticDL's model modules import is there, and one that is not there points to the migration page."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.elasticdl.imports import IMPORTS, Import

pytestmark = pytest.mark.tensorflow

from edl.api.errors import BadInputError  # noqa: E402
from edl.keras.model_contract import FEED_MODES  # noqa: E402
from elasticdl.python.common import constants, log_utils  # noqa: E402
from elasticdl.python.data import odps_io  # noqa: E402
from elasticdl.python.data.reader.odps_reader import ODPSDataReader  # noqa: E402
from elasticdl.python.worker.prediction_outputs_processor import BasePredictionOutputsProcessor  # noqa: E402
from elasticdl_preprocessing.utils import analyzer_utils  # noqa: E402
from elasticdl_preprocessing.utils.decorators import declare_model_inputs  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
PAGE = "docs/migrating-from-elasticdl.md"
IMPORTED = {
    "elasticdl.python.common.constants": ["Mode", "MaxComputeConfig"],
    "elasticdl.python.common.log_utils": ["default_logger"],
    "elasticdl.python.data.odps_io": ["ODPSWriter", "is_odps_configured"],
    "elasticdl.python.data.reader.data_reader": ["AbstractDataReader", "Metadata"],
    "elasticdl.python.data.reader.odps_reader": ["ODPSDataReader"],
    "elasticdl.python.data.reader.recordio_reader": ["RecordIODataReader"],
    "elasticdl.python.elasticdl.callbacks": ["LearningRateScheduler", "MaxStepsStopping", "SavedModelExporter"],
    "elasticdl.python.elasticdl.feature_column": ["feature_column"],
    "elasticdl.python.elasticdl.feature_column.feature_column": ["embedding_column"],
    "elasticdl.python.elasticdl.layers.embedding": ["Embedding"],
    "elasticdl.python.worker.prediction_outputs_processor": ["BasePredictionOutputsProcessor"],
    "elasticdl_preprocessing.feature_column.feature_column": ["concatenated_categorical_column"],
    "elasticdl_preprocessing.layers": ["ConcatenateWithOffset", "Discretization", "Hashing", "SparseEmbedding"],
    "elasticdl_preprocessing.utils.decorators": ["declare_model_inputs"],
    "recordio": ["Writer", "Index", "Scanner"],
}
"""What the modules of ElasticDL's zoo import."""


@pytest.mark.parametrize("module", IMPORTED)
def test_what_model_modules_import_is_there(module: str) -> None:
    for name in IMPORTED[module]:
        assert getattr(importlib.import_module(module), name) is not None


def test_it_is_imported_in_a_fresh_process_without_the_preprocessing_layers() -> None:
    """Python looks for a submodule as an attribute of its package first."""
    program = (
        "from elasticdl.python.data.reader import data_reader, recordio_reader\n"
        "import elasticdl.python.common.constants as constants\n"
        "import sys\n"
        "assert constants.Mode.TRAINING == 'training'\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    paths = os.pathsep.join([str(ROOT / "elasticdl-compat"), str(ROOT / "platform")])
    environment = {**os.environ, "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=60)


@pytest.mark.parametrize(
    "statement",
    [
        "import elasticdl.python.master",
        "import elasticdl.proto",
        "from elasticdl.python import ps",
        "from elasticdl import api",
        "from elasticdl.python.common.constants import Redis",
        "from elasticdl.python.elasticdl.callbacks import EarlyStopper",
        "from elasticdl_preprocessing.layers import Bucketing",
        "import elasticdl_preprocessing.layers.bucketing",
        "from recordio import File",
        "import recordio.file",
    ],
)
def test_what_is_not_there_points_to_the_migration_page(statement: str) -> None:
    with pytest.raises(ImportError, match=re.escape(PAGE)) as caught:
        exec(statement, {})
    missing = statement.split()[-1] if statement.startswith("from") else statement.rpartition(".")[-1]
    assert missing in str(caught.value)
    assert (ROOT / PAGE).is_file()


def test_a_missing_attribute_with_an_underscore_is_an_attribute_error() -> None:
    assert not hasattr(constants, "__path__")
    assert not hasattr(constants, "_private")


def test_other_missing_modules_keep_their_error() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'no_such_module'$"):
        importlib.import_module("no_such_module")


def test_modes_equal_those_of_edl() -> None:
    assert FEED_MODES == (constants.Mode.TRAINING, constants.Mode.EVALUATION, constants.Mode.PREDICTION)


def test_the_log_has_elasticdls_format(capfd: pytest.CaptureFixture[str]) -> None:
    program = "from elasticdl.python.common.log_utils import default_logger, get_logger\n"
    program += "default_logger.info('loaded'); get_logger('elasticdl.logger'); default_logger.debug('hidden')"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "elasticdl-compat")}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=60)
    line = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\] \[INFO\] \[<string>:2:<module>\] loaded\n"
    assert re.fullmatch(line, capfd.readouterr().err)
    assert log_utils.get_logger("elasticdl.logger") is log_utils.default_logger


@pytest.mark.parametrize(
    "use",
    [lambda: odps_io.ODPSWriter("project", "id"), lambda: odps_io.ODPSReader(), lambda: ODPSDataReader(table="t")],
)
def test_max_compute_is_refused_when_it_is_used(use: Any) -> None:
    with pytest.raises(BadInputError, match="MaxCompute") as caught:
        use()
    assert "RecordIO" in str(caught.value)


def test_max_compute_is_not_configured_without_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not odps_io.is_odps_configured()
    for name in ("MAXCOMPUTE_PROJECT", "MAXCOMPUTE_AK", "MAXCOMPUTE_SK"):
        monkeypatch.setenv(name, "x")
    assert odps_io.is_odps_configured()


def test_a_processor_needs_process() -> None:
    class Printer(BasePredictionOutputsProcessor):
        def process(self, predictions: Any, worker_id: int) -> None:
            self.last = predictions

    Printer().process([1], 0)
    with pytest.raises(TypeError, match="process"):
        BasePredictionOutputsProcessor()  # type: ignore[abstract]


def test_a_model_declares_its_inputs() -> None:
    @declare_model_inputs("wide_embeddings", "deep_embeddings")
    class Model:
        pass

    assert Model._model_inputs == ["wide_embeddings", "deep_embeddings"]  # type: ignore[attr-defined]
    for names in ((), ("a", 1)):
        with pytest.raises(ValueError, match="names of the inputs"):
            declare_model_inputs(*names)  # type: ignore[arg-type]


def test_statistics_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    read = {
        "min": (analyzer_utils.get_min, "1.5", 1.5),
        "max": (analyzer_utils.get_max, "9", 9.0),
        "avg": (analyzer_utils.get_avg, "4", 4.0),
        "stddev": (analyzer_utils.get_stddev, "0.5", 0.5),
        "boundaries": (analyzer_utils.get_bucket_boundaries, "3,1,3", [1.0, 3.0]),
        "distinct_count": (analyzer_utils.get_distinct_count, "7", 7),
        "vocab": (analyzer_utils.get_vocabulary, "/terms.txt", "/terms.txt"),
    }
    for statistic, (get, text, value) in read.items():
        default: Any = object()
        assert get("age", default) is default  # type: ignore[operator]
        monkeypatch.setenv(f"_age_{statistic}", text)
        assert get("age", default) == value  # type: ignore[operator]


@pytest.mark.parametrize("listed", IMPORTS, ids=lambda listed: listed.module)
def test_what_the_page_lists_is_there(listed: Import) -> None:
    module = importlib.import_module(listed.module)
    assert [name for name in IMPORTED.get(listed.module, ()) if name not in listed.names] == []
    for name in listed.names:
        assert getattr(module, name) is not None


def test_the_page_lists_what_model_modules_import() -> None:
    packages = {"elasticdl.python.elasticdl.feature_column", "elasticdl_preprocessing.utils.decorators"}
    assert set(IMPORTED) - packages <= {listed.module for listed in IMPORTS}
