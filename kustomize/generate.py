"""Writes the manifests of base/ and components/ from the chart helm/edl: ``make kustomize``.

One source for both ways to install. What only Helm needs is taken out: its labels and annotations, and the namespace,
which ``kubectl apply -n`` or an overlay gives. Patches, overlays and every kustomization.yaml are written by hand.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import FoldedScalarString, LiteralScalarString

HERE = Path(__file__).parent
CHART = HERE.parent / "helm" / "edl"
NAMESPACE = "namespace"
"""Stands for the team's namespace, where something of the whole cluster must name it: PersistentVolumes."""

HELM_LABELS = frozenset(
    {
        "app.kubernetes.io/instance",
        "app.kubernetes.io/managed-by",
        "app.kubernetes.io/version",
        "helm.sh/chart",
    }
)
"""Labels that say by which release of which chart an object was installed."""
HEADER = "# Written by `make kustomize` from helm/edl; what differs from it belongs into an overlay.\n"
_SOURCE = re.compile(r"^# Source: edl/templates/(.+)\n", re.MULTILINE)
_VOLUMES = ("PersistentVolume", "PersistentVolumeClaim")

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A directory, and which of the chart's objects are in it.

    Attributes:
        team: what ``teamDefaults`` say for the one team that the chart is rendered for; None: the chart without values.
    """

    directory: str
    belongs: Callable[[Manifest], bool]
    team: Manifest | None = None


PARTS = (
    Part("base/cluster", lambda found: "namespace" not in found["metadata"]),
    Part("base/team", lambda found: "namespace" in found["metadata"]),
    Part(
        "components/volume-nfs",
        lambda found: found["kind"] in _VOLUMES,
        team={"volume": {"nfs": {"server": "nfs.example.internal", "path": "/export/edl"}}},
    ),
    Part(
        "components/volume-filestore",
        lambda found: found["kind"] in _VOLUMES,
        team={
            "volume": {
                "size": "1Ti",
                "filestore": {"volumeHandle": "modeInstance/ZONE/INSTANCE/SHARE", "ip": "192.0.2.2", "share": "SHARE"},
            }
        },
    ),
)


def generated() -> dict[Path, str]:
    """Every file that is written, with its text. Runs ``helm template``."""
    files: dict[Path, str] = {}
    for part in PARTS:
        for source, documents in _by_source(part).items():
            text = "---\n".join(documents)
            files[HERE / part.directory / source] = HEADER + text
    return files


def plain(found: Manifest) -> Manifest:
    """An object of the chart without what only Helm needs; changed in place, so that comments stay where they are."""
    metadata = found["metadata"]
    metadata.pop("namespace", None)
    _drop(metadata, "labels", lambda key: key in HELM_LABELS)
    _drop(metadata, "annotations", lambda key: key.startswith("helm.sh/"))
    for subject in found.get("subjects") or ():
        # a subject without a namespace is of the binding's own
        if subject.get("namespace") == NAMESPACE:
            del subject["namespace"]
    return found


def _drop(metadata: Manifest, field: str, unwanted: Callable[[str], bool]) -> None:
    for key in list(metadata.get(field) or ()):
        if unwanted(key):
            del metadata[field][key]
    if not metadata.get(field):
        metadata.pop(field, None)


def _by_source(part: Part) -> dict[str, list[str]]:
    """Documents of a part by the name of the template that they come from."""
    found: dict[str, list[str]] = {}
    for source, manifest in _rendered(part):
        hook = "helm.sh/hook" in manifest["metadata"].get("annotations", {})
        if not hook and part.belongs(manifest):
            found.setdefault(source, []).append(_text(plain(manifest)))
    return found


def _rendered(part: Part) -> Iterator[tuple[str, Manifest]]:
    command = ["helm", "template", "edl", str(CHART), "--namespace", NAMESPACE]
    if part.team is not None:
        values = {"teams": [{"namespace": NAMESPACE}], "teamDefaults": part.team}
        command += [
            argument for key, value in values.items() for argument in ("--set-json", f"{key}={json.dumps(value)}")
        ]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for document in re.split(r"^---\n", text, flags=re.MULTILINE):
        if (source := _SOURCE.search(document)) is not None:
            yield source[1], _yaml().load(_SOURCE.sub("", document).strip() + "\n")


def _text(manifest: Manifest) -> str:
    written = StringIO()
    _yaml().dump(_unfolded(manifest), written)
    return written.getvalue()


def _unfolded(node: Any) -> Any:
    """Folded text of several lines as literal text: ruamel.yaml puts a blank line too many into what it folds."""
    if isinstance(node, FoldedScalarString) and "\n" in node:
        return LiteralScalarString(str(node))
    entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in list(entries):
        node[key] = _unfolded(value)
    return node


def _yaml() -> YAML:
    """With comments, which say why the chart's objects are as they are."""
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def stale(files: dict[Path, str]) -> list[Path]:
    """Files that are not as they would be written, those that would not be written at all included."""
    directories = {HERE / part.directory for part in PARTS}
    there = {path for directory in directories for path in directory.glob("*.yaml")} - {
        directory / "kustomization.yaml" for directory in directories
    }
    different = {path for path, text in files.items() if not path.exists() or path.read_text() != text}
    return sorted(different | (there - files.keys()))


def main(arguments: list[str]) -> int:
    """Writes what is stale and says which files these were; with ``--check`` it only says so, and fails."""
    files = generated()
    found = stale(files)
    for path in found:
        sys.stdout.write(f"{path.relative_to(HERE.parent)}\n")
        if "--check" in arguments:
            continue
        if path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path])
        else:
            path.unlink()
    return 1 if found and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
