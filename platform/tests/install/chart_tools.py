"""The programs that charts are checked with, from PATH, and what they print as values.

A test whose program is not there is skipped and says how to get it; with EDL_REQUIRE_CHART_TOOLS=1 it fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

Manifest = dict[str, Any]

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "edl"
JOB_CHART = ROOT / "helm" / "edl-job"
KUSTOMIZE = ROOT / "kustomize"

SOURCES = {
    "helm": "https://helm.sh/docs/intro/install/ (version 4)",
    "helm-unittest": "https://github.com/helm-unittest/helm-unittest",
    "helm-docs": "https://github.com/norwoodj/helm-docs",
    "kubectl": "https://kubernetes.io/docs/tasks/tools/",
}
"""Where the programs come from."""


def program(name: str) -> str:
    """Path of a program; the test ends here when it is not on PATH."""
    path = shutil.which(name)
    if path is None:
        reason = f"{name} is not on PATH; it comes from {SOURCES[name]}"
        if os.environ.get("EDL_REQUIRE_CHART_TOOLS") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return path


def attempt(name: str, *args: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """What a program did with these arguments."""
    command = [program(name), *map(str, args)]
    # These are programs in Go that end soon: without threads and the search for garbage they take a third less time.
    environment = {"GOMAXPROCS": "1", "GOGC": "off", **os.environ}
    return subprocess.run(
        command, cwd=ROOT, env=environment, input=stdin, capture_output=True, text=True, timeout=120, check=False
    )


def output(name: str, *args: str | Path, stdin: str | None = None) -> str:
    """What a program prints; it must succeed."""
    done = attempt(name, *args, stdin=stdin)
    assert done.returncode == 0, f"{name} {' '.join(map(str, args))}: {done.stderr}"
    return done.stdout


def manifests(text: str) -> list[Manifest]:
    """The objects of a stream of YAML documents."""
    return [manifest for manifest in yaml.load_all(text, yaml.CSafeLoader) if manifest]


def rendered(chart: Path, *args: str | Path, release: str = "edl", namespace: str = "edl-system") -> list[Manifest]:
    """What ``helm template`` renders, hooks included."""
    return manifests(output("helm", "template", release, chart, "--namespace", namespace, *args))


@cache
def rendered_case(chart: Path, case: Path) -> list[Manifest]:
    """What is rendered with a file of values that lies in the chart; for several tests, which change nothing of it."""
    return rendered(chart, "--values", case)


def built(directory: Path) -> list[Manifest]:
    """What ``kubectl kustomize`` builds."""
    return manifests(output("kubectl", "kustomize", directory))
