"""Imports of ElasticDL's packages that fail are found in a model's module, by line, without running it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.jobfile import elasticdl_imports
from edl.jobfile.elasticdl_imports import find_missing_imports

PAGE = "docs/migrating-from-elasticdl.md"
GOOD = """
import recordio
import tensorflow
import some_package_of_the_image
import elasticdl.python.common.constants as constants
from elasticdl.python.common.log_utils import default_logger as logger
from elasticdl.python.elasticdl.feature_column import feature_column
from elasticdl_preprocessing.layers import ConcatenateWithOffset, SparseEmbedding
from elasticdl_preprocessing.layers.hashing import Hashing
from recordio import *
from . import parts
from model_zoo.people import parts as same

try:
    import elasticdl.python.master
except ImportError:
    pass


def custom_model():
    from elasticdl.python.master import main
"""


def problems(folder: Path, text: str, **others: str) -> list[BadInputError]:
    package = folder / "model_zoo" / "people"
    package.mkdir(parents=True)
    for name, content in {"net": text + "\n\ndef custom_model(): ...\n", "parts": "", **others}.items():
        (package / f"{name}.py").write_text(content)
    return list(find_missing_imports(folder / "model_zoo", "people.net.custom_model"))


def test_imports_that_work_and_those_of_other_packages_are_no_problem(tmp_path: Path) -> None:
    assert problems(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("import elasticdl.python.master.main", "elasticdl.python.master.main"),
        ("from elasticdl.proto import elasticdl_pb2", "elasticdl.proto"),
        ("from elasticdl.python.common.constants import Mode, Redis", "elasticdl.python.common.constants.Redis"),
        ("from elasticdl_preprocessing.layers import Hashingg", "Hashing"),
        ("from recordio import File", "recordio.File"),
        ("if True:\n    from elasticdl.python import ps", "elasticdl.python.ps"),
    ],
)
def test_a_name_that_the_distribution_does_not_have_is_named_with_its_line(
    tmp_path: Path, statement: str, said: str
) -> None:
    (problem,) = problems(tmp_path, f"import os\n{statement}")
    assert problem.where == f"{tmp_path}/model_zoo/people/net.py:{1 + len(statement.splitlines())}"
    assert missing_keys(str(problem), said, "elasticdl-compat", PAGE) == []


def test_modules_of_the_zoo_that_it_imports_are_looked_at_once(tmp_path: Path) -> None:
    text = "from model_zoo.people.config import X\nfrom .more import Y\nimport people.config"
    more = "from . import config\nfrom elasticdl.python import api\nfrom model_zoo.people import net"
    import_problems = problems(tmp_path, text, config="from elasticdl.python.common import args", more=more)
    assert [Path(str(problem.where)).name for problem in import_problems] == ["config.py:1", "more.py:2"]


def test_a_module_of_the_zoo_may_have_the_name_of_a_package(tmp_path: Path) -> None:
    (tmp_path / "model_zoo").mkdir()
    (tmp_path / "model_zoo" / "recordio.py").write_text("")
    (tmp_path / "model_zoo" / "net.py").write_text("from recordio import File\ndef custom_model(): ...\n")
    assert list(find_missing_imports(tmp_path / "model_zoo", "net.custom_model")) == []


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("from elasticdl.python.common.constants import Mode", "elasticdl-compat"),
        ("import recordio", "elasticdl-compat"),
        ("from elasticai_api.common import data_shard_service", "elasticai_api"),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, said: str
) -> None:
    monkeypatch.setattr(elasticdl_imports, "find_spec", lambda name: None)
    (problem,) = problems(tmp_path, statement)
    assert missing_keys(str(problem), "net.py:1", said, PAGE) == []


ATTRIBUTES = """
import elasticdl_preprocessing.layers as by_alias
import elasticdl.python.common.constants
import recordio
from elasticdl_preprocessing import layers
from model_zoo.people import parts


def custom_model():
    return helper()


def helper():
    {}


def unused():
    return layers.NotThere
"""


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("return layers.Hashingg(4)", "Hashing"),
        ("return by_alias.Hashingg(4)", "elasticdl_preprocessing.layers.Hashingg"),
        ("return [by_alias.hashing.Hashingg]", "elasticdl_preprocessing.layers.hashing.Hashingg"),
        ("return elasticdl.python.common.constants.Modes.TRAINING", "Mode"),
        ("return elasticdl.python.commons.constants.Mode", "elasticdl.python.commons"),
        ("return recordio.File('x')", "recordio.File"),
    ],
)
def test_a_wrong_attribute_in_what_the_model_calls_is_named_with_its_line(
    tmp_path: Path, statement: str, said: str
) -> None:
    (problem,) = problems(tmp_path, ATTRIBUTES.format(statement))
    assert str(problem.where).endswith("net.py:14")
    assert missing_keys(str(problem), said, "elasticdl-compat", PAGE) == []


@pytest.mark.parametrize(
    "statement",
    [
        "return layers.Hashing(4).Anything, by_alias.hashing.Hashing, layers.__name__",
        "return elasticdl.python.common.constants.Mode.TRAINING.lower()",
        "return elasticdl_preprocessing.Anything, parts.Anything",
        "try:\n        return layers.NotThere\n    except ImportError:\n        return None",
        "layers = [by_alias.Hashing(4)]\n    return layers.copy()",
        "return lambda recordio: recordio.anything",
    ],
)
def test_attributes_that_work_or_are_of_something_else_are_no_problem(tmp_path: Path, statement: str) -> None:
    text = ATTRIBUTES.replace("layers.NotThere", "None") if "layers =" in statement else ATTRIBUTES
    assert problems(tmp_path, text.format(statement)) == []
