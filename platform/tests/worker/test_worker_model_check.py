"""What a run would find before its first update is found in one process, without a run."""

from __future__ import annotations

import contextlib
import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.repetition import repetition, repetitions
from support.text_keys import missing_keys
from worker.loop_harness import LEASE, TOKEN, PsServers, ScriptedChannel, ScriptedMaster

from edl.api.cluster_port import Role
from edl.core.events import DatasetDescribed, EndJob, PodsSynced, Tick
from edl.core.job import JobStateMachine
from edl.core.shuffle import BlockLayout
from edl.core.state import JobSettings
from edl.jobfile.loader import dump_job_spec, load_job_file
from edl.storage.run_directory import create_run
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import BulkClient
from edl.transport.process_identity import ProcessIdentity
from edl.worker.graceful_shutdown import ShutdownGate

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

MODEL = """
import keras, tensorflow as tf

def custom_model():
    numbers, ids = keras.Input((2,), name="numbers"), keras.Input((1,), dtype="int64", name="ids")
    rows = keras.layers.Flatten()(keras.layers.Embedding(50, 4, name="emb")(ids))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8)(keras.layers.Concatenate()([numbers, rows])))
    return keras.Model({"numbers": numbers, "ids": ids}, keras.layers.Dense(1)(hidden))

def loss(labels, predictions):
    return tf.square(labels - predictions)

def optimizer():
    return keras.optimizers.Adam(0.01)

def eval_metrics_fn():
    return {"mae": keras.metrics.MeanAbsoluteError()}

def feed(dataset, mode, metadata):
    def parse(row):
        row = tf.strings.to_number(row)
        features = {"numbers": row[:2], "ids": tf.cast(row[3:], tf.int64)}
        return features if mode == "prediction" else (features, row[2:3])
    return dataset.map(parse)
"""
SERVED = {"ps": {"embedding_threshold": 1, "count": 2}}
LOCAL = {"strategy": {"name": "Local"}}

Result = dict[str, Any]


@pytest.fixture
def check_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Checks a job of MODEL with ``source`` behind it, which defines again what is to be another."""
    monkeypatch.chdir(tmp_path)

    def check(source: str = "", ids: Any = None, **spec: Any) -> Result:
        from edl.worker.model_check import main

        rng = np.random.default_rng(0)
        ids = rng.integers(0, 50, 40) if ids is None else ids
        rows = [f"{a:.4f},{b:.4f},{a - b:.4f},{i}" for (a, b), i in zip(rng.normal(size=(40, 2)), ids, strict=True)]
        Path("data.csv").write_text("\n".join(rows) + "\n")
        Path("zoo").mkdir(exist_ok=True)
        Path("zoo/small.py").write_text(MODEL + source)
        job = {
            "apiVersion": "edl.dev/v1",
            "name": "job",
            "model": {"zoo": str(tmp_path / "zoo"), "definition": "small.custom_model"},
            "data": {"training": "data.csv", "validation": "data.csv", "reader": {"header": False}},
            "train": {"minibatch_size": 8},
            **spec,
        }
        Path("job.json").write_text(json.dumps(job))
        Path("spec.json").write_text(json.dumps(dump_job_spec(load_job_file("job.json"))))
        code = main(Path("spec.json"), Path("result.json"))
        result: Result = json.loads(Path("result.json").read_text())
        assert code == result["exit_code"]
        return result

    return check


# ---------------------------------------------------------------- the runs that it is compared with

Refusal = tuple[str, int]
"""Why a job ended, and its exit code."""


class DecidingMaster(ScriptedMaster):
    """Lets the worker describe the data set and train its first minibatch, unless the core ends the job before."""

    def __init__(self, spec: Any) -> None:
        super().__init__()
        self._spec = spec
        self.decided: list[Refusal] = []
        self.on_call = self._look
        self._grant("describe", "", 1)

    def _grant(self, kind: str, source: str, end: int) -> None:
        number = LEASE + len(self.log)
        self.grant(pb.Task(lease=number, kind=kind, source=source, end=end, minibatch=end, expires_seconds=60))

    def _lease(self) -> pb.LeaseReply:
        if self.answers:
            return self.answers.popleft()
        time.sleep(0.01)
        return pb.LeaseReply(incarnation=1, wait=pb.Wait(reason="what was described is not judged yet"))

    def _look(self, method: str, request: Any) -> None:
        if method == "Report" and request.result:
            described = json.loads(request.result)
            (source, _), *_ = described["training"]
            self.decided += self._decide(described)
            if not self.decided:
                self._grant("training", source, self._spec.train.minibatch_size)
            self.stop()

    def _decide(self, described: Any) -> list[Refusal]:
        blocks, train = described.pop("blocks", None), self._spec.train
        parts = {name: tuple(map(tuple, rows)) for name, rows in described.items()}
        records = train.minibatch_size * train.minibatches_per_task
        state = JobStateMachine(
            JobSettings(
                minibatch=train.minibatch_size,
                task_records=records,
                epochs=train.epochs,
                shuffle=train.shuffle.window,
            )
        )
        state.begin_incarnation(1)
        events = (DatasetDescribed(**parts, blocks=blocks and BlockLayout.from_json(blocks)), PodsSynced(), Tick())
        commands = [command for event in events for command in state.handle(event, 0.0)]
        return [(end.reason, {"input": 2}[end.failure_kind]) for end in commands if isinstance(end, EndJob)]


def by_servers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Refusal:
    """A worker with parameter servers, up to its first minibatch."""
    from edl.worker import training_setup
    from edl.worker.runtime import WorkerRuntime
    from edl.worker.worker_process import ImportSlot, _run_tasks

    spec = load_job_file(folder / "spec.json")
    servers, master = PsServers(spec.ps.count), DecidingMaster(spec)
    master.placement = servers.placement()
    identity = ProcessIdentity(folder, Role.WORKER, 0, "uid-0", TOKEN, folder, "unix:none")
    coordination = WorkerRuntime(identity, spec, ShutdownGate(), ScriptedChannel(master))  # type: ignore[arg-type]
    coordination.start()
    with ExitStack() as closing:
        closing.callback(servers.close)

        def connect(*arguments: Any, **options: Any) -> BulkClient:
            return closing.enter_context(contextlib.closing(BulkClient(*arguments, **options)))

        monkeypatch.setattr(training_setup, "BulkClient", connect)  # a process that ends closes none
        code = _run_tasks(coordination, ImportSlot(None))
        coordination.leases.stop()
        coordination.progress.stop()
    failed = [(request.message, code) for request in master.requests("Fail")]
    return next(iter([*master.decided, *failed]))


def by_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Refusal:
    """A run of strategy Local."""
    from edl.worker import worker_process
    from edl.worker.local_strategy.local_main import main

    monkeypatch.setattr(worker_process, "set_thread_counts", lambda workers: None)  # once a process only
    run = create_run(folder / "runs" / "local" / "job")
    run.spec.write_bytes((folder / "spec.json").read_bytes())
    code = main({"EDL_RUN_DIR": str(run.path), "EDL_JSON": "1"})
    return json.loads(run.status.read_text())["reason"], code


@pytest.fixture
def refuse_job(check_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Checks a job, then runs it: both refuse it in the same words and with the same exit code."""

    def refuse(source: str = "", **spec: Any) -> Result:
        result: Result = check_job(source, **spec)
        ran = by_itself if spec.get("strategy") == LOCAL["strategy"] else by_servers
        assert (result["failure"], result["exit_code"]) == ran(tmp_path, monkeypatch)
        return result

    return refuse


# ---------------------------------------------------------------- what is told


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("spec", [{}, SERVED, LOCAL], ids=["dense", "served", "Local"])
def test_a_good_job_is_described_by_its_first_minibatch(check_job: Any, tmp_path: Path, spec: Any) -> None:
    result = check_job(**spec)
    assert (result["failure"], result["exit_code"]) == ("", 0)
    model, training, evaluation = result["lines"]
    assert model.startswith("model: Functional, ")
    assert ("on the parameter servers: emb/embeddings 50 x 4" in model) == (spec is SERVED)
    assert not missing_keys(training, "minibatch", "records 0 to 7", "data.csv", "loss")
    assert not missing_keys(evaluation, "evaluation", "records 0 to 7", "data.csv")
    assert " mae " in evaluation
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "data.csv",
        "job.json",
        "result.json",
        "spec.json",
        "zoo",
    ]


@pytest.mark.parametrize("spec", [{}, repetition(LOCAL)], ids=["dense", "Local"])
def test_what_a_workers_log_would_warn_of_is_told_once(check_job: Any, spec: Any) -> None:
    result = check_job(
        """
class Mine(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        pass

def callbacks():
    return [Mine()]
""",
        **spec,
    )
    assert (result["failure"], result["exit_code"]) == ("", 0)
    (warning,) = [line for line in result["lines"] if line.startswith("warning: ")]
    assert "on_test_batch_end()" in warning


def test_a_job_that_only_evaluates_is_checked_with_its_validation_data(check_job: Any) -> None:
    data = {"validation": "data.csv", "training": "nowhere.csv", "reader": {"header": False}}
    result = check_job(task="evaluate", data=data)
    assert (result["exit_code"], result["failure"]) == (0, "")
    assert any("evaluation" in line for line in result["lines"]), result["lines"]


UNDESCRIBED = """
import numpy as np

class Strict(keras.layers.Layer):
    def __init__(self, table):
        super().__init__(name="strict")
        self.table = table

    def call(self, x):
        return x * tf.constant(self.table)

    def get_config(self):
        raise ValueError("no config")

def custom_model(base=custom_model):
    model = base()
    return keras.Model(model.inputs, Strict(np.ones(1, np.float32))(model.outputs[0]))
"""
STRATEGIES = [{}, LOCAL, {"strategy": {"name": "AllReduce"}}]
"""Beside that with served tables."""


@pytest.mark.parametrize("spec", [SERVED, *repetitions(STRATEGIES)], ids=["served", "dense", "Local", "AllReduce"])
def test_a_layer_that_the_exports_keras_file_will_lack_is_named_before_training(check_job: Any, spec: Any) -> None:
    result = check_job(UNDESCRIBED, **spec, export={"path": "export"})
    (warning,) = [line for line in result["lines"] if line.startswith("warning: ")]
    assert not missing_keys(warning, "no .keras file", "the layer 'strict' (Strict)", "no config", "SavedModel")
    assert result["exit_code"] == 0


@pytest.mark.parametrize("spec", [SERVED, *repetitions(STRATEGIES)], ids=["served", "dense", "Local", "AllReduce"])
def test_nothing_is_warned_of_a_model_of_keras_layers(check_job: Any, spec: Any) -> None:
    result = check_job("", **spec, export={"path": "export"})
    assert not [line for line in result["lines"] if line.startswith("warning: ")]


def test_both_strategies_have_the_same_first_loss(check_job: Any) -> None:
    served, local = (check_job(**spec)["lines"][1] for spec in ({}, LOCAL))
    assert served == local


def test_a_job_that_only_predicts_is_tried_as_well(check_job: Any) -> None:
    result = check_job(data={"prediction": "data.csv", "reader": {"header": False}})
    assert result["failure"] == ""
    assert not missing_keys(result["lines"][-1], "prediction", "records 0 to 7", "data.csv", "ok")


@pytest.mark.parametrize("spec", [{}, repetition(LOCAL)], ids=["ParameterServer", "Local"])
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nowhere", "ModuleNotFoundError"),
        repetition("raise SystemExit(0)", "SystemExit"),
        ("def custom_model():\n    return keras.layers.Dense(1, 2, 3, nothing=4)", "custom_model() raised "),
        repetition("def custom_model():\n    return 7", "keras.Model"),
        repetition(
            "made = custom_model\ndef custom_model():\n    m = made(); m.compile('sgd', 'mse'); return m", "is compiled"
        ),
        ("def loss(labels, predictions):\n    return tf.reshape(predictions, [3, 7])", "eshape"),
        repetition("def optimizer():\n    return 'no such thing'", "'no such thing'"),
        ("def feed(dataset, mode, metadata):\n    return dataset.batch(4)", "feed yields"),
        ("def feed(dataset, mode, metadata):\n    return dataset.map(lambda row: (row[9], row[2]))", "feed() raised"),
        repetition("def callbacks():\n    return [keras.callbacks.BackupAndRestore('b')]", "BackupAndRestore"),
    ],
)
def test_what_ends_a_run_is_found(refuse_job: Any, spec: Any, source: str, said: str) -> None:
    result = refuse_job(source, **spec)
    assert said in result["failure"]
    assert result["exit_code"] == 2


@pytest.mark.parametrize("spec", [{}, repetition(LOCAL)], ids=["ParameterServer", "Local"])
@pytest.mark.parametrize("method", ["on_train_batch_begin", *repetitions(("on_train_begin", "on_epoch_begin"))])
def test_what_a_callback_raises_before_the_first_update_is_found(refuse_job: Any, spec: Any, method: str) -> None:
    result = refuse_job(
        f"class Mine(keras.callbacks.Callback):\n"
        f"    def {method}(self, *arguments, **logs):\n"
        f"        raise RuntimeError('mine')\n"
        f"def callbacks():\n"
        f"    return [Mine()]",
        **spec,
    )
    assert not missing_keys(result["failure"], method, "RuntimeError", "mine")
    assert result["exit_code"] == 2


@pytest.mark.parametrize("spec", [{}, repetition(LOCAL)], ids=["ParameterServer", "Local"])
def test_the_log_files_of_a_run_are_left_alone(check_job: Any, tmp_path: Path, spec: Any) -> None:
    (tmp_path / "log.csv").write_text("epoch,loss\n")
    result = check_job(
        "def callbacks():\n    return [keras.callbacks.CSVLogger('log.csv')]",
        **spec,
    )
    assert (result["failure"], result["exit_code"]) == ("", 0)
    assert (tmp_path / "log.csv").read_text() == "epoch,loss\n"


@pytest.mark.parametrize("strategy", ["AllReduce", *repetitions(("Local", "ParameterServer"))])
def test_validation_records_of_another_schema_are_found(check_job: Any, tmp_path: Path, strategy: str) -> None:
    (tmp_path / "three.csv").write_text("0.1,0.2,0.3\n" * 8)
    data = {"training": "data.csv", "validation": "three.csv", "reader": {"header": False}}
    result = check_job(data=data, strategy={"name": strategy})
    assert result["exit_code"] == 2
    assert "data.validation" in json.dumps(result)


TWO_NUMBERS = """
def feed(dataset, mode, metadata):
    def parse(row):
        row = tf.strings.to_number(row)
        return row[:2] if mode == "prediction" else (row[:2], row[2:3])

    return dataset.map(parse)
"""
SUMMING = f"""{TWO_NUMBERS}
class Summing(keras.layers.Layer):
    def call(self, x):
        self.add_loss(tf.reduce_sum(x ** 2))
        return x

def custom_model():
    return keras.Sequential([keras.Input((2,)), Summing(), keras.layers.Dense(1)])
"""
SPACED = f"""{TWO_NUMBERS}
def custom_model():
    return keras.Sequential([keras.Input((2,), name="two numbers"), keras.layers.Dense(1)])
"""
WIDE = f"""{TWO_NUMBERS}
def custom_model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype="float64")])
"""


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (SUMMING, "sum over the records"),
        (WIDE, "exported files have float32 variables"),
        (SPACED, "a SavedModel has no input 'two numbers'"),
    ],
    ids=["a summed loss", "float64", "a space in a name"],
)
def test_what_all_reduce_would_train_or_export_otherwise_is_refused(check_job: Any, module: str, said: str) -> None:
    result = check_job(module, strategy={"name": "AllReduce"}, export={})
    assert said in result["failure"]
    assert result["exit_code"] == 2


def test_what_only_an_evaluation_would_end_with_is_found_too(check_job: Any) -> None:
    result = check_job("def eval_metrics_fn():\n    return {'k': keras.metrics.TopKCategoricalAccuracy(k='x')}")
    assert "metric 'k'" in result["failure"]
    assert result["exit_code"] == 2


@pytest.mark.parametrize("spec", [{}, repetition(LOCAL)], ids=["ParameterServer", "Local"])
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def loss(labels, predictions):\n    return {'nothing': tf.square(labels - predictions)}", "'nothing'"),
        (
            "fed = feed\n"
            "def feed(dataset, mode, metadata):\n"
            "    return fed(dataset, mode, metadata).map(lambda features, label: (features, label[0]))\n"
            "def loss(labels, predictions):\n"
            "    return tf.reduce_mean(tf.square(labels - predictions))",
            "averages",
        ),
    ],
    ids=["a loss of no output", "each label with every prediction"],
)
def test_what_the_first_minibatch_shows_is_found_under_every_strategy(
    refuse_job: Any, spec: Any, source: str, said: str
) -> None:
    result = refuse_job(source, **spec)
    assert said in result["failure"]
    assert result["exit_code"] == 2


@pytest.mark.parametrize("spec", [{}, repetition(LOCAL)], ids=["ParameterServer", "Local"])
def test_a_loss_that_is_not_finite_is_found_in_the_first_minibatch(check_job: Any, spec: Any) -> None:
    """A run of shuffled records meets others first."""
    result = check_job("def loss(labels, predictions):\n    return tf.math.log(predictions * 0 - 1)", **spec)
    assert not missing_keys(result["failure"], "loss nan", "records 0 to 7")
    assert result["exit_code"] == 1


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [({}, -1), (SERVED, 50), repetition({}, 50), repetition(SERVED, -1), repetition(LOCAL, 50), repetition(LOCAL, -1)],
    ids=["dense-low", "served-high", "dense-high", "served-low", "Local-high", "Local-low"],
)
def test_an_id_that_no_table_has_is_found_in_the_first_minibatch(check_job: Any, spec: Any, wrong: int) -> None:
    result = check_job(ids=[wrong, *range(39)], **spec)
    assert not missing_keys(result["failure"].splitlines()[0], "data.csv", "records 0 to 7", f"id {wrong}", "embedding")
    assert result["exit_code"] == 2


@pytest.mark.parametrize(
    ("source", "spec", "said"),
    [
        ("def optimizer():\n    return keras.optimizers.Ftrl()", {"strategy": {"get_model_steps": 4}}, "Ftrl"),
        ("def optimizer():\n    return keras.optimizers.SGD(use_ema=True)", {}, "use_ema=True"),
        ("def optimizer():\n    return keras.optimizers.Lamb()", SERVED, "2 parameter servers"),
        (
            "class Remat(keras.Model):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.inner, self.head = keras.layers.Dense(3), keras.layers.Dense(1)\n"
            "    def call(self, given):\n"
            "        if not self.inner.built:\n"
            "            self.inner.build(given['numbers'].shape)\n"
            "        return self.head(keras.remat(lambda x: self.inner(x))(given['numbers']))\n"
            "def custom_model():\n"
            "    return Remat()",
            {},
            "keras.remat",
        ),
    ],
    ids=["local steps", "optimizer", "several PS", "hidden use"],
)
@pytest.mark.first_cases(2)
def test_what_parameter_servers_refuse_is_found_without_one(refuse_job: Any, source: str, spec: Any, said: str) -> None:
    result = refuse_job(source, **spec)
    assert said in result["failure"]
    assert result["exit_code"] == 2


def test_a_model_that_an_export_could_not_make_again_is_found(check_job: Any) -> None:
    result = check_job(
        "made, count = custom_model, iter(range(99))\n"
        "def custom_model():\n"
        "    made_so = made()\n"
        "    return keras.Model(made_so.input, keras.layers.Dense(1, name=f'head{next(count)}')(made_so.output))"
    )
    assert "export" in result["failure"]
    assert result["exit_code"] == 2


READER = """
from edl.data import BlockSizes, Metadata, Source
class Reader:
    metadata = Metadata("own")
    def sources(self):
        return [Source("own", RECORDS)]
    def read(self, source, start, end, on_corrupt=None):
        return [["1", "2", "-1", "3"]] * (end - start)
def custom_data_reader(origin, **options):
    return Reader()
RECORDS = 40
"""
WRONG_BLOCKS = READER + "Reader.blocks = lambda self, source: BlockSizes([RECORDS - 1], 100)\n"
STOPPING = "def callbacks():\n    return [keras.callbacks.EarlyStopping({}, patience=1)]\n"
EVALUATING = {"train": {"minibatch_size": 8, "evaluation_steps": 2}}


@pytest.mark.parametrize("strategy", [{}, repetition(LOCAL)], ids=["ParameterServer", "Local"])
@pytest.mark.parametrize(
    ("source", "spec", "said"),
    [
        (STOPPING.format("'val_accuracy'"), EVALUATING, "'val_accuracy'"),
        repetition(STOPPING.format("'loss'"), EVALUATING, "'loss'"),
        (STOPPING.format("'val_mae'"), {}, "at the end"),
        (
            STOPPING.format("'val_mae'"),
            {"data": {"training": "data.csv", "reader": {"header": False}}},
            "no records",
        ),
        (
            "def eval_metrics_fn():\n    return {'own': keras.metrics.Mean()}\n" + STOPPING.format("'val_own'"),
            EVALUATING,
            "better",
        ),
        repetition("def callbacks():\n    return [keras.callbacks.BackupAndRestore('b')]", {}, "BackupAndRestore"),
        (
            READER,
            {"train": {"minibatch_size": 8, "shuffle": {"window": 100}}},
            "no random access",
        ),
        (WRONG_BLOCKS, {}, "39 records"),
        repetition(READER + "RECORDS = 0\n", {}, "no records"),
        (READER + "RECORDS = 7\n", {}, "train.minibatch_size is 8"),
        (READER, {"train": {"minibatch_size": 8, "epochs": 2**62}}, "train.epochs"),
    ],
    ids=[
        "no such metric",
        "a value of training",
        "one evaluation",
        "no evaluation",
        "no direction",
        "a refused callback",
        "no random access",
        "wrong blocks",
        "no records",
        "few records",
        "epochs beyond 64 bits",
    ],
)
@pytest.mark.first_cases(2)
def test_what_a_job_asks_and_its_model_cannot_is_found(
    refuse_job: Any, strategy: Any, source: str, spec: Any, said: str
) -> None:
    result = refuse_job(source, **spec, **strategy)
    assert said in result["failure"]
    assert result["exit_code"] == 2
