"""Where an undisturbed job ends: what "within noise" is measured against, once per suite and number of workers.

Five jobs with the same spec and the same seed: they differ by the order in which asynchronous workers push, which is
what a fault may change. Beside them a job with a tenth fewer updates: what the absolute cap must tell apart.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.images import Images
from e2e.jobs import END_SECONDS, STEPS, Job, digits
from e2e.ledger import finished
from e2e.namespaces import Namespace, namespace
from e2e.site import Site

from edl.testing.noise import Noise

STATE = Path(__file__).parent / ".state"
RUNS = 5
METRIC = "loss"
CAP = 0.03
"""Of the loss; a tenth fewer updates exceed it, and so does any run without training (2.3)."""
SECONDS = 12.0


@dataclass(frozen=True)
class Baseline:
    """What undisturbed runs came to.

    Attributes:
        noise: of the final loss.
        fewer: the loss after a tenth fewer updates.
    """

    noise: Noise
    fewer: float

    def check(self, summary: Mapping[str, Any]) -> None:
        """A disturbed run ended where undisturbed ones do."""
        value = summary["metrics"][METRIC]
        assert self.noise.allows(value), f"{METRIC} {value:.4f} is not within {self.noise}"


def baseline(site: Site, images: Images, data: Path, folder: Path, workers: int) -> Baseline:
    """The baseline for a number of workers; whoever asks first runs it, others wait."""
    STATE.mkdir(exist_ok=True)
    file = STATE / f"baseline-{workers}.json"
    with (STATE / f"baseline-{workers}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            with namespace(site, images, folder / f"undisturbed-{workers}") as place:
                place.bring(data, "/mnist")
                file.write_text(json.dumps(_run(place, workers)))
        found = json.loads(file.read_text())
    return Baseline(Noise(found["values"], CAP), found["fewer"])


def _run(place: Namespace, workers: int) -> dict[str, Any]:
    specs = [_spec(place, f"seeded-{number}", workers) for number in range(RUNS)]
    fewer = _spec(place, "fewer", workers)
    fewer["train"]["max_steps"] = STEPS * 9 // 10
    values = []
    for spec in specs:
        job = Job.write(place, spec)
        job.submit()
        summary, _ = finished(job, seconds=END_SECONDS)
        values.append(summary["metrics"][METRIC])
    short = Job.write(place, fewer)
    short.submit()
    short.wait_end()
    return {
        "values": values,
        "fewer": short.wait("its summary", lambda: short.page("summary.json"), 10)["metrics"][METRIC],
    }


def _spec(place: Namespace, name: str, workers: int) -> dict[str, Any]:
    return digits(name, image=place.images.zoo, seconds=SECONDS, workers=workers)
