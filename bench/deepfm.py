"""DeepFM, samples a second: one PS and two workers, beside what bounds them and what else a TensorFlow user could take.

13 numbers and 26 ids a record, a vocabulary of a million ids that follow a Zipf law, rows of 16 floats and of one, a
network of 256, 128 and 64 units, Adagrad. Four sides, which take turns in every round:

* EDL: ``edl run``, asynchronous, a push for every minibatch; the ledger's rate between two moments in the middle;
* the limit: two processes with a worker's step function that has its rows in memory and throws gradients away. Its
  records are parsed as a worker parses them; beside it with minibatches in memory, too;
* ``tf.distribute.ParameterServerStrategy`` with one PS and two workers (parameter_server_strategy.py); beside it the
  same with a function scheduled for every step, as TensorFlow's guide has it;
* plain ``keras.fit`` in one process that has the whole machine (deepfm_fit.py), at the smaller batch.

Ways to tune a peer are tried before the first round, and each takes part with the fastest. Ratios are medians of the
ratios of one round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from click_job import BLOCKS, ClickLogFolder, click_log_folder, records_of
from figures import BenchFigure, ScriptResult, steady_rate
from mnist_job import ZOO
from peer import PeerScript, ask_all
from script import main, print_progress
from support.job_process import JobProcess

WORKERS = 2
POLL_SECONDS = 0.05
WARM_STEPS, WARM_SECONDS = 60, 1.5
TASK_RECORDS = 32_768
FITS = tuple({"execution": execution, "jit": jit} for execution in (1, 16) for jit in (False, True))
UNROLLS = tuple({"unroll": count} for count in (1, 4, 16))
Rates = dict[str, float]


@contextmanager
def in_its_middle(clicks: ClickLogFolder, batch: int, changes: Sequence[str] = ()) -> Iterator[JobProcess]:
    """The job at a batch, with ``changes`` (FIELD=VALUE) of it, once all workers train and have for a while."""
    train = {
        "epochs": 100_000,
        "minibatch_size": batch,
        "minibatches_per_task": max(1, TASK_RECORDS // batch),
    }
    job = clicks.job(f"deepfm-{batch}", train=train, checkpoint=None, workers={"max": WORKERS})
    with JobProcess(job, *(word for change in changes for word in ("--set", change)), cwd=clicks.folder) as run:
        run.wait_status(lambda status: status["step"] >= WARM_STEPS and _at_work(status) == WORKERS)
        time.sleep(WARM_SECONDS)
        yield run
        run.interrupt()
        run.wait()


def edl_rate(clicks: ClickLogFolder, batch: int, given: argparse.Namespace) -> float:
    """Samples a second of a job in its middle."""
    samples: list[tuple[float, int]] = []
    with in_its_middle(clicks, batch, given.set) as run:
        until = time.monotonic() + given.seconds
        while time.monotonic() < until:
            status = run.status()
            samples.append((status["updated"], status["records_done"]))
            time.sleep(POLL_SECONDS)
    return steady_rate(samples, 0)


def _at_work(status: Mapping[str, Any]) -> int:
    """How many workers train."""
    return sum(worker["state"] == "training" for worker in status["workers"])


class ComparedSides:
    """The peers, started and tuned.

    Args:
        place: with the log.
        given: of the command line.
    """

    def __init__(self, clicks: ClickLogFolder, given: argparse.Namespace, running: ExitStack) -> None:
        self._clicks, self._arguments, self._running = clicks, given, running
        vocabulary = ["--vocabulary", str(clicks.vocabulary)]
        folder = str(tf_records(clicks))
        self._limits = {batch: self._limit_scripts(batch, vocabulary) for batch in given.batches}
        self._strategy = running.enter_context(PeerScript("parameter_server_strategy.py", folder, *vocabulary))
        smallest = ["--batch", str(min(given.batches))]
        self._fit = running.enter_context(PeerScript("deepfm_fit.py", folder, *vocabulary, *smallest))
        self.tried_options: dict[str, list[dict[str, Any]]] = {}
        self._best = {batch: self._tune_peer(self._strategy, UNROLLS, batch=batch) for batch in given.batches}
        self._best_fit = self._tune_peer(self._fit, FITS)

    def _limit_scripts(self, batch: int, vocabulary: list[str]) -> list[PeerScript]:
        arguments = [str(self._clicks.training_folder), str(ZOO), *vocabulary]
        arguments += ["--batch", str(batch), "--workers", str(WORKERS)]
        return [self._running.enter_context(PeerScript("compute_only.py", *arguments)) for _ in range(WORKERS)]

    def _tune_peer(self, peer: PeerScript, ways: tuple[dict[str, Any], ...], **question: Any) -> dict[str, Any]:
        """The fastest of some ways."""
        tried = [
            question | way | peer.ask_question(seconds=self._arguments.seconds / 4, **question, **way) for way in ways
        ]
        self.tried_options.setdefault(peer.name, []).extend(tried)
        print_progress(f"{peer.name}: " + ", ".join(_options_text(one) for one in tried))
        best = max(tried, key=lambda one: one["rate"])
        return {name: value for name, value in best.items() if name != "rate"}

    def measure_round(self, batch: int) -> Rates:
        """One round at one batch."""
        seconds = self._arguments.seconds
        rates = {"edl": edl_rate(self._clicks, batch, self._arguments)}
        for name, fed in (("limit", True), ("limit_in_memory", False)):
            answers = ask_all(self._limits[batch], seconds=seconds / 2, fed=fed)
            rates[name] = sum(answer["rate"] for answer in answers)
        rates["strategy"] = self._strategy.ask_question(seconds=seconds / 2, **self._best[batch])["rate"]
        rates["strategy_by_step"] = self._strategy.ask_question(seconds=seconds / 2, batch=batch, unroll=1)["rate"]
        if batch == min(self._arguments.batches):
            rates["fit"] = self._fit.ask_question(seconds=seconds / 2, **self._best_fit)["rate"]
        return rates

    @property
    def peer_settings(self) -> dict[str, Any]:
        """With which the peers take part."""
        return {"strategy": list(self._best.values()), "fit": self._best_fit}


def _options_text(tried: dict[str, Any]) -> str:
    way = " ".join(f"{name}={value}" for name, value in tried.items() if name != "rate")
    return f"{way} {tried['rate']:,.0f}/s"


def tf_records(clicks: ClickLogFolder) -> Path:
    """The training records again, as TensorFlow reads them fastest."""
    import tensorflow as tf

    folder = clicks.folder / "tfrecord"
    folder.mkdir()
    with tf.io.TFRecordWriter(str(folder / "train.tfrecord")) as writer:
        for record in records_of(clicks.training_folder):
            writer.write(record)
    return folder


@contextmanager
def open_sides(given: argparse.Namespace) -> Iterator[ComparedSides]:
    with (
        click_log_folder(max(given.records, BLOCKS * max(given.batches)), given.vocabulary) as clicks,
        ExitStack() as running,
    ):
        yield ComparedSides(clicks, given, running)


def measure(given: argparse.Namespace) -> ScriptResult:
    rounds: dict[int, list[Rates]] = {batch: [] for batch in given.batches}
    with open_sides(given) as taking_turns:
        for number in range(given.rounds):
            for batch, batch_rounds in rounds.items():
                batch_rounds.append(taking_turns.measure_round(batch))
                rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in batch_rounds[-1].items())
                print_progress(f"round {number + 1} of {given.rounds}, batch {batch}: {rates}")
        settings = taking_turns.peer_settings | {"set": given.set, "vocabulary": given.vocabulary}
        tried = taking_turns.tried_options
    return ScriptResult("deepfm", tuple(figures(rounds)), {"rounds": rounds, "settings": settings, "tried": tried})


REQUIRED = {
    ("limit", 512): (0.80, 0.88),
    ("limit", 4096): (0.92, 0.96),
    ("strategy", 512): (1.6, 2.0),
    ("strategy", 4096): (1.35, 1.5),
    ("fit", 512): (2.0, 4.0),
}
NAMES = {
    "limit": "of the same without a PS (rows in memory, gradients thrown away)",
    "strategy": "of `ParameterServerStrategy`'s",
    "strategy_by_step": "of `ParameterServerStrategy`'s with a function scheduled for every step",
    "fit": "of `keras.fit`'s in one process",
}


def figures(rounds: Mapping[int, list[Rates]]) -> Iterator[BenchFigure]:
    """Ratios, then the rates themselves."""
    for other, name in NAMES.items():
        for batch, batch_rounds in rounds.items():
            if other not in batch_rounds[0]:
                continue
            required, aim = REQUIRED.get((other, batch), (None, None))
            share = median(one["edl"] / one[other] for one in batch_rounds)
            yield BenchFigure(f"DeepFM, batch {batch}: samples/s, {name}", share, "x", required, at_least=True, aim=aim)
    for batch, batch_rounds in rounds.items():
        share = median(one["edl"] / one["limit_in_memory"] for one in batch_rounds)
        yield BenchFigure(f"DeepFM, batch {batch}: of the step function alone, minibatches in memory too", share, "x")
        for side, name in (("edl", "1 PS + 2 workers"), ("limit", "without a PS"), ("strategy", "PS strategy")):
            yield BenchFigure(f"DeepFM, batch {batch}: {name}", median(one[side] for one in batch_rounds), "samples/s")
        if "fit" in batch_rounds[0]:
            yield BenchFigure(
                f"DeepFM, batch {batch}: `keras.fit`", median(one["fit"] for one in batch_rounds), "samples/s"
            )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=6.0, help="of EDL in a round; the others have half; default 6")
    parser.add_argument("--records", type=int, default=200_000, help="of the log; default 200,000")
    parser.add_argument("--vocabulary", type=int, default=1_000_000, help="default a million")
    parser.add_argument("--batches", type=int, nargs="+", default=[512, 4096], help="default 512 and 4096")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="of the job, for `edl run`")


if __name__ == "__main__":
    main(__doc__, measure, rounds=5, options=options)
