"""What jobs look like on Kubernetes: golden/NAME.job.yaml gives golden/NAME.yaml, which is meant to be read.

``pytest platform/tests/cluster --update-golden`` writes them anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.api.cluster_port import PodOptions, Role
from edl.cli.render import manifests_yaml
from edl.cluster.kubernetes.job_manifests import render_job, render_pod
from edl.cluster.kubernetes.spec_validation import find_spec_problems
from edl.jobfile.loader import load_job_file

GOLDEN = Path(__file__).with_name("golden")
CASES = sorted(path.name.removesuffix(".job.yaml") for path in GOLDEN.glob("*.job.yaml"))

JOB_UID = "5a0c2b8e-3f2d-4f6a-9a53-0d6b2f1d9a77"
RUN_DIR = "/data/edl/team-a/run"


def rendered(name: str) -> str:
    """The job, a parameter server, a worker, and the worker's successor after it ran out of memory."""
    spec = load_job_file(GOLDEN / f"{name}.job.yaml", extra_rules=find_spec_problems)

    def pod(role: Role, index: int, wish: PodOptions) -> dict[str, object]:
        return render_pod(spec, role, index, namespace="team-a", job_uid=JOB_UID, run_dir=RUN_DIR, options=wish)

    manifests = [
        *render_job(spec, namespace="team-a", token="0123456789abcdef"),
        pod(Role.PS, 1, PodOptions()),
        pod(Role.WORKER, 3, PodOptions()),
        pod(Role.WORKER, 4, PodOptions(memory_factor=1.5, elevated=True)),
    ]
    return manifests_yaml(manifests)


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, pytestconfig: pytest.Config) -> None:
    file = GOLDEN / f"{name}.yaml"
    now = rendered(name)
    if pytestconfig.getoption("update_golden"):
        file.write_text(now, encoding="utf-8")
    assert now == file.read_text(encoding="utf-8"), (
        "if this is what it should be now: pytest platform/tests/cluster --update-golden, and read the difference"
    )


def test_there_are_cases() -> None:
    assert {"mnist", "no_volume", "everything"} <= set(CASES)
