"""DeepFM and Wide & Deep on a click log with a known best AUC: plain Keras, synchronous and asynchronous jobs.

The log is drawn from a planted model; AUC is that on its held-back part. The same model, optimizer and records for all:

* Keras: ``fit`` in one process;
* synchronous: two workers with half a minibatch each, an update for every two pushes;
* asynchronous: two workers with a minibatch each; one is SIGKILLed soon after the start, the other when the successor
  of the first is at work, and two are added in their places.

Synchronous training is to equal Keras to noise: the difference of the means is set beside three standard errors of it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from signal import SIGKILL
from statistics import fmean, stdev
from typing import Any

from click_job import ClickLogFolder, click_log_folder
from figures import BenchFigure, ScriptResult, noise_of_difference
from peer import PeerScript
from script import main, print_progress
from support.job_process import JobProcess, JobStuckError
from support.journal_bytes import MalformedJournalError, read_entries

MODELS = {"deepfm": "DeepFM", "wide_and_deep": "Wide & Deep"}
PARAMS = {"dim": 16, "hidden": [64, 32]}
BATCH, EPOCHS, HELD_BACK, TASK_RECORDS = 256, 1, 0.1, 4096
KILL_FROM, KILL_UNTIL = 0.05, 0.5
"""Shares of the records: from where the first worker is killed, up to where the second is at the latest."""
LONGEST_SECONDS = 240.0
POLL_SECONDS = 0.5
Aucs = dict[str, list[float]]


def job(clicks: ClickLogFolder, model: str, mode: str, seed: int) -> Any:
    """A job file of one run."""
    batch = BATCH // 2 if mode == "sync" else BATCH
    strategy = {"mode": mode} | ({"grads_to_wait": 2} if mode == "sync" else {})
    return clicks.job(
        f"{mode}-{model.replace('_', '-')}",
        model,
        params=PARAMS,
        strategy=strategy,
        data={"training": str(clicks.training_folder), "validation": str(clicks.held_back)},
        train={
            "epochs": EPOCHS,
            "seed": seed,
            "minibatch_size": batch,
            "minibatches_per_task": TASK_RECORDS // batch,
        },
        checkpoint=None,
        ps={"count": 1, "embedding_threshold": "64Ki"},
    )


def synchronous_auc(clicks: ClickLogFolder, model: str, seed: int) -> float:
    """AUC of an undisturbed synchronous job."""
    with JobProcess(job(clicks, model, "sync", seed), cwd=clicks.folder) as run:
        auc: float = run.summary(LONGEST_SECONDS)["metrics"]["auc"]
    return auc


def asynchronous_auc(clicks: ClickLogFolder, model: str, seed: int) -> tuple[float, int]:
    """AUC of a job that loses two workers and gets two; and how many of those that were added made steps."""
    with JobProcess(job(clicks, model, "async", seed), cwd=clicks.folder) as run:
        run.wait_status(lambda status: _done_share(status) >= KILL_FROM and len(_training_workers(status)) == 2)
        first = _training_workers(run.status())
        run.send("worker", min(first), SIGKILL)
        _wait_successor(run)
        run.send("worker", max(first), SIGKILL)
        auc: float = run.summary(LONGEST_SECONDS)["metrics"]["auc"]
        if run.lines[-1]["workers_lost"] != 2:
            raise JobStuckError(f"{run.lines[-1]['workers_lost']} workers were lost, not 2")
        return auc, len(_workers_with_steps(read_entries(run.run_dir / "journal"))) - len(first)


def _wait_successor(run: JobProcess) -> None:
    """Until a third worker has made steps: one is called training while it still imports TensorFlow."""
    until = time.monotonic() + LONGEST_SECONDS
    while _done_share(run.status()) < KILL_UNTIL:
        with suppress(MalformedJournalError, FileNotFoundError):  # a segment is just being begun
            if len(_workers_with_steps(read_entries(run.run_dir / "journal"))) > 2:
                return
        if time.monotonic() > until:
            raise JobStuckError(f"no third worker made steps in {LONGEST_SECONDS:.0f} s\n{run.errors}")
        time.sleep(POLL_SECONDS)


def _done_share(status: Mapping[str, Any]) -> float:
    return status["records_done"] / status["records_total"] if status["records_total"] else 0.0


def _training_workers(status: Mapping[str, Any]) -> list[int]:
    return [worker["index"] for worker in status["workers"] if worker["state"] == "training"]


def _workers_with_steps(entries: Sequence[Mapping[str, Any]]) -> set[str]:
    """Workers that made steps, by their uids."""
    holders = {entry["lease"]: entry["worker"] for entry in entries if entry["kind"] == "leased"}
    return {holders[entry["lease"]] for entry in entries if entry["kind"] in ("progress", "done")}


def measure(given: argparse.Namespace) -> ScriptResult:
    aucs: dict[str, Aucs] = {model: {"keras": [], "sync": [], "async": []} for model in MODELS}
    added: list[int] = []
    params = PARAMS | {"vocabulary": given.vocabulary}
    with click_log_folder(given.records, given.vocabulary, HELD_BACK) as clicks:
        arguments = [str(clicks.training_folder), str(clicks.held_back), "--batch", str(BATCH), "--epochs", str(EPOCHS)]
        for seed in range(given.rounds):
            with PeerScript("convergence_fit.py", *arguments) as keras:  # gone while jobs have the machine
                for model, model_aucs in aucs.items():
                    model_aucs["keras"].append(keras.ask_question(model=model, seed=seed, params=params)["auc"])
            for model, model_aucs in aucs.items():
                model_aucs["sync"].append(synchronous_auc(clicks, model, seed))
                if seed < given.disturbed:
                    auc, count = asynchronous_auc(clicks, model, seed)
                    model_aucs["async"].append(auc)
                    added.append(count)
                print_progress(
                    f"seed {seed}, {MODELS[model]}: "
                    + ", ".join(f"{k} {v[-1]:.4f}" for k, v in model_aucs.items() if v)
                )
        best = clicks.best_auc
    details = {"aucs": aucs, "best": best, "added_that_made_steps": added, "settings": _fit_settings(given)}
    return ScriptResult("convergence", tuple(figures(aucs, best)), details)


def _fit_settings(given: argparse.Namespace) -> dict[str, Any]:
    return PARAMS | {"batch": BATCH, "epochs": EPOCHS, "records": given.records, "vocabulary": given.vocabulary}


def figures(aucs: Mapping[str, Aucs], best: float) -> Iterator[BenchFigure]:
    """Differences to Keras, then what they are made of."""
    for model, name in MODELS.items():
        keras, sync, disturbed = (aucs[model][side] for side in ("keras", "sync", "async"))
        apart = abs(fmean(sync) - fmean(keras))
        yield BenchFigure(
            f"{name}, synchronous: AUC apart from Keras', {len(sync)} seeds",
            apart,
            "AUC",
            noise_of_difference(keras, sync),
            note="three standard errors",
        )
        behind = fmean(keras) - fmean(disturbed)
        yield BenchFigure(
            f"{name}, asynchronous, 2 workers killed and 2 added: AUC behind Keras', {len(disturbed)} seeds",
            behind,
            "AUC",
            0.002,
        )
    yield BenchFigure("the best AUC on this log (planted)", best, "AUC")
    for model, name in MODELS.items():
        for side, label in (("keras", "Keras"), ("sync", "synchronous"), ("async", "asynchronous")):
            yield BenchFigure(f"{name}, {label}: AUC", fmean(aucs[model][side]), "AUC")
        if len(aucs[model]["keras"]) > 1:
            yield BenchFigure(f"{name}, Keras: standard deviation over seeds", stdev(aucs[model]["keras"]), "AUC")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--disturbed", type=int, default=5, help="seeds of asynchronous jobs; default 5")
    parser.add_argument("--records", type=int, default=450_000, help="of the log; default 450,000")
    parser.add_argument("--vocabulary", type=int, default=10_400, help="default 10,400: 400 for each feature")


if __name__ == "__main__":
    main(__doc__, measure, rounds=5, options=options)
