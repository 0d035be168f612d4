"""The tutorial *On kind*, word for word, from *Install* to *Clean up*.

What differs from a fresh kind cluster is put in its place: the images that the tests have built, a namespace and a
volume of this test, the cluster's part of the chart, which is installed already, and another service than nginx, which
comes from a public registry.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from e2e import capacity, evidence, namespaces, site
from e2e.images import JobImages
from e2e.namespaces import Namespace
from e2e.programs import ROOT
from e2e.site import TargetSite
from ruamel.yaml import YAML
from support.doc_commands import DOCS, DocCommand, blocks, run, script

PAGE = DOCS / "tutorials" / "on-kind.md"
SECONDS = 1200.0
ELSEWHERE = ("mkdir", "kind", "make", "edl zoo build", "kubectl apply -f docs/examples/kind-volume.yaml")
"""Commands that make what is here already."""
NODE = "edl-worker"
"""One of the two nodes of docs/examples/kind.yaml that take jobs."""


@pytest.mark.alone
@pytest.mark.breaks
@pytest.mark.long
@pytest.mark.timeout(SECONDS + 60)
def test_tutorial_on_kind(
    target_site: TargetSite, job_images: JobImages, folder: Path, installed_cluster: None
) -> None:
    """Every command does what the page says, or the script ends there."""
    nodes = site.nodes()[:2]
    with (
        capacity.restrict_new_pods(nodes),
        namespaces.new_namespace(target_site, job_images, folder, base=False) as namespace,
    ):
        commands = [
            _adapt_command(block, namespace, nodes[0]) for block in blocks(PAGE) if not block.text.startswith(ELSEWHERE)
        ]
        try:
            printed = run(script(commands), folder=_clone(folder, job_images), env=_environment(), seconds=SECONDS)
        except BaseException:
            evidence.collect_evidence(namespace)
            raise
        (folder / "printed.txt").write_text(printed)
    sections = _sections(printed)
    assert "Loss" in sections["edl logs mnist"]
    assert "Evaluation" in sections["edl logs mnist"]
    assert "edl-elastic-worker-4" in sections["kubectl get pods"], "the killed worker's successor"
    assert "cpu" in sections["edl why elastic"].lower(), "the scheduler's words"


def _adapt_command(block: DocCommand, namespace: Namespace, node: str) -> DocCommand:
    """The command for this cluster."""
    images = namespace.images
    text = block.text.replace("edl/mnist:dev", images.zoo).replace("edl/submitter:dev", images.submitter)
    for chart_value in ("tests.image", "submitter.image"):
        repository, _, tag = images.submitter.rpartition(":")
        text = text.replace(
            f"--set {chart_value}.repository=edl/submitter --set {chart_value}.tag=dev",
            f"--set {chart_value}.repository={repository} --set {chart_value}.tag={tag}",
        )
    text = (
        text.replace("team-a", namespace.name).replace(NODE, node).replace("docs/examples/nginx.yaml", "service.yaml")
    )
    if text.startswith("helm install edl helm/edl "):
        text += " --set cluster.create=false"
    return DocCommand(block.page, block.line, text, block.exits, block.not_run)


def _clone(folder: Path, images: JobImages) -> Path:
    """A folder that is for these commands what a clone is: data and files that are made do not end in this one."""
    clone = folder / "clone"
    clone.mkdir()
    for name in ("model_zoo", "helm", "kustomize", "docs"):
        (clone / name).symlink_to(ROOT / name)
    yaml = YAML()
    service = yaml.load((DOCS / "examples" / "nginx.yaml").read_text())
    pod = service["spec"]["template"]["spec"]
    pod["securityContext"]["runAsUser"] = 1000
    pod["containers"][0] |= {"image": images.submitter, "command": ["sleep", "infinity"]}
    with (clone / "service.yaml").open("w") as file:
        yaml.dump(service, file)
    return clone


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def _sections(printed: str) -> dict[str, str]:
    """What each command printed, by its first three words."""
    lines = {str(block): " ".join(block.text.split()[:3]) for block in blocks(PAGE)}
    parts = [part.partition("\n") for part in printed.split("### ")[1:]]
    return {lines[number]: text for number, _, text in parts}
