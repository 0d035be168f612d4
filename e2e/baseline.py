"""Where an undisturbed job ends: what "within noise" is measured against, by number of workers.

Five jobs with the same spec and the same seed: they differ by the order in which asynchronous workers push, which is
what a fault may change. Beside them a job with a tenth fewer updates: what the absolute cap must tell apart.

`make e2e-all` measures, and what it found is committed: the baselines of two and four workers start more pods than all
faults together, and scenarios wait for them. When the job, its model, its data's size or the versions of what computes
change, whoever asks measures it anew. A change of EDL itself is not noticed: whether it still trains as well is what a
comparison with the older figures tells.
"""

from __future__ import annotations

import ast
import fcntl
import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from e2e.images import JobImages
from e2e.jobs import END_SECONDS, RECORDS, STEPS, UNDISTURBED_SECONDS, ClusterJob, digits
from e2e.ledger import finish_and_count
from e2e.namespaces import Namespace, new_namespace
from e2e.programs import ROOT
from e2e.site import TargetSite
from support.noise import RunNoise

STATE, RESULTS = (Path(__file__).parent / name for name in (".state", "results"))
ZOO = Path(__file__).parent / "zoo"
COMPUTES_WITH = ("tensorflow", "keras==", "numpy==")
RUNS = 5
METRIC = "loss"
CAP = 0.03
"""Of the loss; a tenth fewer updates exceed it, and so does any run without training (2.3)."""


@dataclass(frozen=True)
class UndisturbedBaseline:
    """What undisturbed runs came to.

    Attributes:
        noise: of the final loss.
        loss_with_fewer_updates: the loss after a tenth fewer updates.
    """

    noise: RunNoise
    loss_with_fewer_updates: float

    def check_summary(self, summary: Mapping[str, Any]) -> None:
        """A disturbed run ended where undisturbed ones do."""
        value = summary["metrics"][METRIC]
        assert self.noise.allows(value), f"{METRIC} {value:.4f} is not within {self.noise}"


def baseline(site: TargetSite, images: JobImages, data: Path, folder: Path, workers: int) -> UndisturbedBaseline:
    """The baseline for a number of workers; whoever asks first runs it if there is none, others wait."""
    STATE.mkdir(exist_ok=True)
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"baseline-{workers}.json"
    with (STATE / f"baseline-{workers}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        of = _fingerprint(workers)
        stored = json.loads(file.read_text()) if file.exists() else {}
        if stored.get("of") != of:
            with new_namespace(site, images, folder / f"undisturbed-{workers}") as namespace:
                namespace.copy_to_claim(data, "/mnist")
                stored = {"of": of, **_run_undisturbed(namespace, workers)}
            file.write_text(json.dumps(stored, indent=1) + "\n")
    return UndisturbedBaseline(RunNoise(stored["values"], CAP), stored["fewer"])


def _fingerprint(workers: int) -> str:
    """Of what decides where a job ends: its file but for the image, its model, its data, what it computes with.

    Comments and the layout of the model's code are not part of it.
    """
    files = (ZOO / "paced.py", ROOT / "model_zoo" / "mnist" / "records.py")
    model = [ast.dump(ast.parse(file.read_text())) for file in files]
    versions = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith(COMPUTES_WITH)]
    facts = json.dumps([_undisturbed_spec("", "seeded", workers), RECORDS, RUNS, model, versions])
    return sha256(facts.encode()).hexdigest()[:16]


def _run_undisturbed(namespace: Namespace, workers: int) -> dict[str, Any]:
    specs = [_undisturbed_spec(namespace.images.zoo, f"seeded-{number}", workers) for number in range(RUNS)]
    fewer = _undisturbed_spec(namespace.images.zoo, "fewer", workers)
    fewer["train"]["max_steps"] = STEPS * 9 // 10
    values = []
    for spec in specs:
        job = ClusterJob.write(namespace, spec)
        job.submit()
        summary, _ = finish_and_count(job, seconds=END_SECONDS)
        values.append(summary["metrics"][METRIC])
    short = ClusterJob.write(namespace, fewer)
    short.submit()
    short.wait_end()
    return {
        "values": values,
        "fewer": short.wait_for("its summary", lambda: short.page("summary.json"), 10)["metrics"][METRIC],
    }


def _undisturbed_spec(image: str, name: str, workers: int) -> dict[str, Any]:
    return digits(name, image=image, seconds=UNDISTURBED_SECONDS, workers=workers)
