"""What the user's errors look like to the user: their file, their lines, the cause; nothing of EDL."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.text_keys import missing_keys

from edl.api.errors import EdlError, JobFailedError, StorageError
from edl.jobfile.keras_version import LEGACY_VARIABLE
from edl.keras.user_code import UserCodeError, user_code
from edl.worker import task_loop

GRAPH = """Graph execution error:

Detected at node ParseExample defined at (most recent call last):
{frames}
Error in user-defined function passed to MapDataset:1 transformation with iterator: Iterator::BatchV2::Map: \
Key: image.  Can't parse serialized Example.
\t [[{{{{node ParseExample}}}}]]
\t [[DatasetToSingleElement]] [Op:__inference__window_31]"""
CAUSE = "Key: image.  Can't parse serialized Example."


class InvalidArgumentError(Exception):
    pass


@pytest.fixture
def feed(tmp_path: Path) -> Callable[..., Any]:
    file = tmp_path / "module.py"
    file.write_text("def feed(error):\n    raise error\n")
    spec = importlib.util.spec_from_file_location("user_module", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.feed  # type: ignore[no-any-return]


def throw(error: Exception) -> None:
    raise error


def raised(zoo: Path, error: Exception, *, of: Callable[..., Any] | None = None, by: Any = throw) -> UserCodeError:
    with pytest.raises(UserCodeError) as caught, user_code(zoo, "feed()", function=of):
        by(error)
    return caught.value


def test_the_users_frames_and_the_error_are_all_there_is(tmp_path: Path, feed: Callable[..., Any]) -> None:
    error = raised(tmp_path, KeyError("lable"), by=feed)
    file = tmp_path / "module.py"
    assert str(error) == f"{file}:2: feed() raised KeyError: 'lable'"
    assert error.detail == (
        "Traceback (most recent call last), your code:\n"
        f'  File "{file}", line 2, in feed\n    raise error\n'
        "KeyError: 'lable'\n"
    )


def test_an_error_of_a_graph_names_its_cause_and_the_users_file(tmp_path: Path, feed: Callable[..., Any]) -> None:
    error = raised(tmp_path, InvalidArgumentError(GRAPH.format(frames="<stack traces unavailable>")), of=feed)
    assert str(error) == f"{tmp_path / 'module.py'}: feed() raised InvalidArgumentError: {CAUSE}"
    _heading, cause = error.detail.splitlines()
    assert cause == f"InvalidArgumentError: {CAUSE}"


def test_an_error_of_a_graph_names_the_line_where_the_operation_was_made(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    frames = f'  File "/edl/worker/task_loop.py", line 7, in run\n\n  File "{file}", line 2, in feed\n'
    error = raised(tmp_path, InvalidArgumentError(GRAPH.format(frames=frames)))
    assert str(error) == f"{file}:2: feed() raised InvalidArgumentError: {CAUSE}"
    _heading, frame, *_ = error.detail.splitlines()
    assert frame == f'  File "{file}", line 2, in feed'
    assert "loop.py" not in error.detail


def test_an_object_that_is_called_has_no_file(tmp_path: Path) -> None:
    """A ``keras.losses.Loss`` as ``loss``."""

    class CallableObject:
        def __call__(self) -> None: ...

    assert str(raised(tmp_path, KeyError("lable"), of=CallableObject())) == "feed() raised KeyError: 'lable'"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{{function_node __inference_f_45}} indices[0] = 9 is not in [0, 2)\n [[{{node Gather}}]]", "indices[0] = 9"),
        ("Exception encountered when calling Dense.call().\n\n\x1b[1mInput 0 is bad\x1b[0m", "Input 0 is bad"),
        ("Graph execution error:", "Graph execution error:"),
    ],
)
def test_the_headline_is_the_cause(tmp_path: Path, text: str, cause: str) -> None:
    assert raised(tmp_path, ValueError(text)).message.startswith(f"feed() raised ValueError: {cause}")
    assert raised(tmp_path, ValueError("")).message == "feed() raised ValueError"


def test_errors_of_edl_pass(tmp_path: Path) -> None:
    with pytest.raises(StorageError), user_code(tmp_path, "export"):
        raise StorageError("full")


@pytest.mark.parametrize(("error", "kind"), [(StorageError("full"), "storage"), (JobFailedError("over"), "crash")])
def test_an_error_that_says_all_has_no_traceback(error: EdlError, kind: str) -> None:
    failure = task_loop.describe_failure(error)
    assert (failure.kind, failure.message, failure.detail, failure.exit_code) == (kind, error.message, "", 1)


def test_an_error_that_nobody_foresaw_has_one() -> None:
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError as error:
        failure = task_loop.describe_failure(error)
    assert (failure.kind, failure.message) == ("crash", "ZeroDivisionError: by zero")
    assert "Traceback" in failure.detail


@pytest.mark.parametrize(
    ("error", "said"), [(KeyboardInterrupt(), "KeyboardInterrupt"), (SystemExit(0), "SystemExit: 0")]
)
def test_what_would_end_the_process_is_an_error_of_the_code_where_ctrl_c_is_ignored(
    tmp_path: Path, feed: Callable[..., Any], error: Any, said: str
) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        caught = raised(tmp_path, error, by=feed)
    finally:
        signal.signal(signal.SIGINT, before)
    assert str(caught) == f"{tmp_path / 'module.py'}:2: feed() raised {said}"


def test_ctrl_c_is_no_error_of_the_code(tmp_path: Path, feed: Callable[..., Any]) -> None:
    with pytest.raises(KeyboardInterrupt), user_code(tmp_path, "feed()"):
        feed(KeyboardInterrupt())


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("elasticdl", "elasticdl-compat"),
        ("elasticdl_preprocessing.layers", "elasticdl-compat"),
        ("recordio", "elasticdl-compat"),
        ("elasticai_api.common", "elasticai_api"),
    ],
)
def test_a_missing_package_of_elasticdl_has_a_hint(tmp_path: Path, module: str, said: str) -> None:
    error = raised(tmp_path, ModuleNotFoundError(f"No module named '{module}'", name=module))
    assert error.hint is not None
    assert missing_keys(error.hint, said, "docs/migrating-from-elasticdl.md") == []


def test_other_missing_packages_have_none(tmp_path: Path) -> None:
    for module in ("elasticdlx", "edl.recordio", "pandas"):
        assert raised(tmp_path, ModuleNotFoundError(f"No module named '{module}'")).hint is None


KERAS2_SIGNS = (
    "module 'keras._tf_keras.keras.layers' has no attribute 'DenseFeatures'",
    "module 'tensorflow.keras.layers' has no attribute 'DenseFeatures'",
    "module 'tensorflow.python.keras.layers' has no attribute 'BatchNormalization'",
    "cannot import name 'DenseFeatures' from 'keras._tf_keras.keras.layers' (/a/b.py)",
    "No module named 'tensorflow.keras.layers.experimental'",
    "A KerasTensor cannot be used as input to a TensorFlow function. A KerasTensor is a symbolic placeholder",
    "`name` must be passed as a keyword argument. Received: add_weight('kernel', ...).",
)


@pytest.mark.parametrize("text", KERAS2_SIGNS)
def test_what_only_keras_2_has_points_to_it(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LEGACY_VARIABLE, raising=False)
    assert "model.keras: 2" in (raised(tmp_path, ValueError(text)).hint or "")
    monkeypatch.setenv(LEGACY_VARIABLE, "1")
    assert raised(tmp_path, ValueError(text)).hint is None


MIXED_KERAS = """
import json, keras
X, OLD = keras.Input((6,)), keras2.layers.Dense(1)

def optimizer_of(other):
    model = (keras2 if other is keras else keras).Sequential([])
    model.compile(other.optimizers.SGD(0.1), "mse")

MIXED = [
    lambda: keras.Sequential([X, OLD]),
    lambda: keras2.Sequential([keras.layers.Dense(1)]),
    lambda: OLD(X),
    lambda: keras2.Model(X, keras.layers.Dense(1)(X)),
    lambda: optimizer_of(keras),
    lambda: optimizer_of(keras2),
]
texts = []
for mix in MIXED:
    try:
        mix()
    except Exception as error:
        texts.append(str(error))
print(json.dumps(texts))
"""
LEGACY_TF_KERAS = 'import os\nos.environ["TF_USE_LEGACY_KERAS"] = "1"\nfrom tensorflow import keras as keras2\n'
BESIDE_KERAS = "import tf_keras as keras2\n"


@pytest.mark.repetition
@pytest.mark.parametrize("beginning", [LEGACY_TF_KERAS, BESIDE_KERAS], ids=["tf.keras", "tf_keras"])
def test_what_mixes_the_versions_of_keras_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beginning: str
) -> None:
    """The errors are those that the versions at hand raise, in a process with both of them."""
    pytest.importorskip("tf_keras")
    program = beginning + MIXED_KERAS
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    texts = json.loads(done.stdout)
    assert len(texts) == MIXED_KERAS.count("lambda:")
    for text in texts:
        monkeypatch.delenv(LEGACY_VARIABLE, raising=False)
        monkeypatch.delitem(sys.modules, "tf_keras", raising=False)
        assert raised(tmp_path, ValueError(text)).hint is None, text
        if beginning == LEGACY_TF_KERAS:
            monkeypatch.setenv(LEGACY_VARIABLE, "1")
        else:
            monkeypatch.setitem(sys.modules, "tf_keras", sys)
        hint = raised(tmp_path, ValueError(text)).hint or ""
        assert not missing_keys(hint, "mixes", "tf.keras everywhere"), text
        assert ("model.keras: 2 in the job file" in hint) == (beginning == BESIDE_KERAS)


def test_a_misspelt_name_of_another_module_is_no_sign_of_keras_2(tmp_path: Path) -> None:
    assert raised(tmp_path, AttributeError("module 'tensorflow' has no attribute 'reduce_man'")).hint is None
