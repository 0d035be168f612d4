"""Model code is found without running it, and errors say what is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.jobfile.zoo_lookup import (
    STAR_IMPORT,
    ZooModule,
    check_misnamed,
    defined_names,
    find_misnamed,
    find_model_function,
    find_unknown_params,
    may_return_compiled_model,
)

SOURCE = """
import os.path
from keras import layers as L
from .other import shared
LIMIT: int = 3
UNSET: int
a, (b, *c) = 1, (2, 3)
if True:
    try:
        def guarded(): ...
    except ImportError as error:
        class Fallback: ...
else:
    for i in range(3):
        with open("x") as stream:
            inner = 1
async def custom_model():
    local = 1
raise RuntimeError("never run")
"""


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    folder = tmp_path / "model_zoo" / "mnist"
    folder.mkdir(parents=True)
    (folder / "cnn.py").write_text(SOURCE)
    (folder / "__init__.py").write_text("from x import *")
    (folder / "broken.py").write_text("def f(:\n")
    return tmp_path / "model_zoo"


def test_names_are_those_that_the_top_level_binds(zoo: Path) -> None:
    assert defined_names(zoo / "mnist/cnn.py") == (
        "os", "L", "shared", "LIMIT", "a", "b", "c", "guarded", "Fallback", "i", "stream", "inner", "custom_model",
    )  # fmt: skip


def test_locate_gives_file_import_name_and_function(zoo: Path) -> None:
    module = find_model_function(zoo, "mnist.cnn.custom_model")
    assert (module.path, module.name, module.function) == (zoo / "mnist/cnn.py", "model_zoo.mnist.cnn", "custom_model")


def test_a_zoo_whose_name_is_no_identifier_is_itself_on_the_path(zoo: Path) -> None:
    zoo = zoo.rename(zoo.with_name("my-zoo"))
    assert find_model_function(zoo, "mnist.cnn.custom_model").name == "mnist.cnn"


def test_a_module_called_like_the_zoo_is_found_without_the_zoo_as_package(tmp_path: Path) -> None:
    """``edl zoo init digits`` writes ``digits/digits.py``."""
    zoo = tmp_path / "digits"
    zoo.mkdir()
    (zoo / "digits.py").write_text("def custom_model(): ...\n")
    assert find_model_function(zoo, "digits.custom_model").name == "digits"
    (zoo / "__init__.py").write_text("")
    assert find_model_function(zoo, "digits.custom_model").name == "digits.digits"


def test_a_package_is_a_module_and_a_star_import_may_define_anything(zoo: Path) -> None:
    assert defined_names(zoo / "mnist/__init__.py") == (STAR_IMPORT,)
    assert find_model_function(zoo, "mnist.anything").path == zoo / "mnist/__init__.py"


def test_a_star_import_from_the_zoo_defines_what_its_module_does(zoo: Path) -> None:
    (zoo / "shared.py").write_text("from .mnist.parts import *\ndef custom_data_reader(): ...\n_hidden = 1\n")
    (zoo / "mnist" / "parts.py").write_text("from model_zoo.shared import *\nfeed = 1\n")
    for star in ("shared", "model_zoo.shared", "..shared"):
        (zoo / "mnist" / "mine.py").write_text(f"from {star} import *\n")
        module = find_model_function(zoo, "mnist.mine.feed")
        assert module.names == ("feed", "custom_data_reader")
        assert module.may_define("custom_data_reader")
        assert not module.may_define("callbacks")
    (zoo / "mnist" / "mine.py").write_text("from keras.layers import *\nfeed = 1\n")
    assert find_model_function(zoo, "mnist.mine.feed").may_define("callbacks"), "nobody knows"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class_weights = {0: 2.0}", [("class_weights", "class_weight")]),
        ("def callback(): ...\nloss_weight = 1", [("callback", "callbacks"), ("loss_weight", "loss_weights")]),
        ("metrics = ['auc']\ndef eval_metrics_fn(): return metrics", []),
        ("epochs = 3\nbatch_size: int = 8", [("epochs", "train.epochs"), ("batch_size", "train.minibatch_size")]),
        (
            "validation_data = 'x.csv', 'y.csv'\nsteps_per_epoch = -1",
            [
                ("validation_data", "data.validation"),
                ("steps_per_epoch", "train.max_steps"),
            ],
        ),
        ("def calbacks(): ...", [("calbacks", "callbacks")]),
        (
            "def learning_rate_scheduler(model_version): ...",
            [("learning_rate_scheduler", "give the optimizer a Keras schedule as its learning rate")],
        ),
        ("def eval_metric_fn(): ...", [("eval_metric_fn", "eval_metrics_fn")]),
        ("def Callbacks(): ...\ndef callbacks(): ...", []),
        ("def _calbacks(): ...\ndef calback(): ...\nx = calback", []),
        ("losses = 1\ndef custom_model2(): ...\ndef make_reader(): ...\nclass Feeder: ...", []),
        ("batch_size = 8\ndef feed(d, m, i): return d.shuffle(batch_size)", []),
        ("from other import epochs\nshuffle = None\nvalidation_split = some()\ndef batch_size(): ...", []),
        ("from other import callback\ncallbacks = 1\nEPOCHS = 7", []),
    ],
)
def test_names_that_nothing_uses_are_told_by_what_was_meant(
    tmp_path: Path, source: str, found: list[tuple[str, str]]
) -> None:
    (tmp_path / "m.py").write_text(source)
    assert list(find_misnamed(tmp_path / "m.py")) == found
    if found:
        with pytest.raises(BadInputError, match=f"'{found[0][0]}'"):
            check_misnamed(ZooModule(tmp_path / "m.py", "m", ""))


@pytest.mark.parametrize("name", ["jit_compile", "run_eagerly", "steps_per_execution", "auto_scale_loss"])
def test_an_argument_of_compile_in_a_module_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "m.py").write_text(f"{name} = True")
    with pytest.raises(BadInputError, match=f"'{name}'") as refused:
        check_misnamed(ZooModule(tmp_path / "m.py", "m", ""))
    assert "_" + name in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("source", "unknown"),
    [
        ("def custom_model(hidden=1, *, rate=2): ...", ["'hiden'"]),
        ("def custom_model(**more): ...", []),
        ("@wrapped\ndef custom_model(): ...", []),
        ("class custom_model: ...", []),
        ("from x import custom_model", []),
    ],
)
def test_params_that_the_model_does_not_accept(tmp_path: Path, source: str, unknown: list[str]) -> None:
    (tmp_path / "m.py").write_text(source)
    errors = list(find_unknown_params(tmp_path, "m.custom_model", ["hiden", "hidden"] if unknown else ["hiden"]))
    assert all(name in error.message for name, error in zip(unknown, errors, strict=True))
    assert all("did you mean hidden?" in (error.hint or "") for error in errors)


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("mnist.cmn.custom_model", "'mnist.cmn'[\\s\\S]*mnist.cnn"),
        ("iris.model", "'iris'[\\s\\S]*mnist.broken, mnist.cnn"),
        ("mnist.cnn.custommodel", "'custommodel'[\\s\\S]*custom_model"),
        ("mnist.cnn.zzzzzz", "'zzzzzz'[\\s\\S]*os, L, shared"),
        ("mnist.broken.custom_model", "broken.py:1: "),
        ("custom_model", "names no module"),
    ],
)
def test_errors_say_what_is_there(zoo: Path, definition: str, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        find_model_function(zoo, definition)


def test_a_missing_module_is_not_looked_for_where_none_can_be(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment beside the modules has tens of thousands of files."""
    modules = zoo / ".venv" / "lib" / "python3.11" / "site-packages" / "keras"
    modules.mkdir(parents=True)
    (modules / "cn.py").write_text("")
    looked_into, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (looked_into.append(Path(path).name), scandir(path))[1])
    with pytest.raises(BadInputError, match=r"the zoo has no module 'mnist\.cn'") as refused:
        find_model_function(zoo, "mnist.cn.custom_model")
    assert refused.value.hint == "did you mean mnist.cnn?"
    assert looked_into == [zoo.name, "mnist"]


def test_a_missing_zoo_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="not a directory"):
        find_model_function(tmp_path / "no", "a.b")


@pytest.mark.parametrize(
    ("rest", "compiled"),
    [
        ("    model.compile('adam', 'mse')\n", True),
        ("    pass\n", False),
        ("    model.compile('adam', 'mse')\nloss = 'mse'\n", False),
    ],
)
def test_a_module_that_compiles_its_model_needs_no_loss_and_optimizer(
    tmp_path: Path, rest: str, *, compiled: bool
) -> None:
    (tmp_path / "m.py").write_text(f"def custom_model():\n    model = make()\n{rest}")
    assert may_return_compiled_model(find_model_function(tmp_path, "m.custom_model")) == compiled


def test_functions_of_other_names(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def custom_model(): ...\ndef my_loss(): ...\ndef custom_reader(): ...\n")
    (tmp_path / "readers.py").write_text("def read(): ...\n")
    functions = {"loss": "my_loss", "custom_data_reader": "custom_reader", "feed": "readers.read"}
    module = find_model_function(tmp_path, "m.custom_model", functions)
    assert all(module.may_define(name) for name in functions)
    check_misnamed(module)
    assert [name for name, _ in find_misnamed(module.path, "custom_model")] == ["custom_reader"], "chosen, it is used"
    for wrong in ("my_los", "readers.reed", "reeders.read"):
        with pytest.raises(BadInputError, match=r"model\.functions\.loss: .*") as refused:
            find_model_function(tmp_path, "m.custom_model", {"loss": wrong})
        assert "did you mean" in (refused.value.hint or "")


def test_a_module_without_its_function_is_told_what_to_add(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/__init__.py").touch()
    (tmp_path / "own/deep.py").write_text("def custom_model(): ...\n")
    with pytest.raises(BadInputError) as caught:
        find_model_function(tmp_path, "own.deep")
    assert not missing_keys(str(caught.value), "own.deep.custom_model", "is a module")
