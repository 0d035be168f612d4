"""Helm releases, made as admins make them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from e2e.programs import ROOT, Done, ProgramError, call, command_text
from ruamel.yaml import YAML

from edl.cluster.kubernetes.resource_kinds import Manifest

CHART = ROOT / "helm" / "edl"


@dataclass(frozen=True)
class HelmRelease:
    """One release of a chart.

    Attributes:
        name: of the release.
        namespace: of the release.
        chart: its folder.
        seconds: that a command may take; more than what Helm waits.
    """

    name: str
    namespace: str
    chart: Path = CHART
    seconds: float = 180.0

    def try_install(self, values: Manifest, *options: str) -> Done:
        """``helm install``, whatever its exit code."""
        return self._call_helm("install", self.name, str(self.chart), "--create-namespace", *options, values=values)

    def install(self, values: Manifest, *options: str) -> None:
        """``helm install``."""
        _checked_output(self.try_install(values, *options))

    def try_upgrade(self, values: Manifest, *options: str) -> Done:
        """``helm upgrade``, whatever its exit code."""
        return self._call_helm("upgrade", self.name, str(self.chart), *options, values=values)

    def upgrade(self, values: Manifest, *options: str) -> None:
        """``helm upgrade``."""
        _checked_output(self.try_upgrade(values, *options))

    def rollback(self) -> None:
        """``helm rollback``, to what was installed before."""
        _checked_output(self._call_helm("rollback", self.name))

    def test(self) -> str:
        """``helm test``; what it printed, and the logs of pods that failed (``--logs`` looks in one namespace only)."""
        return _checked_output(self._call_helm("test", self.name, "--timeout=120s"))

    def try_uninstall(self, *options: str) -> Done:
        """``helm uninstall``, whatever its exit code; what is deleted is gone afterwards."""
        return self._call_helm("uninstall", self.name, "--wait", *options)

    def uninstall(self, *options: str) -> None:
        """``helm uninstall``."""
        _checked_output(self.try_uninstall(*options))

    def template(self, values: Manifest) -> list[Manifest]:
        """``helm template``: the objects."""
        return objects(_checked_output(self._call_helm("template", self.name, str(self.chart), values=values)))

    def manifest(self) -> list[Manifest]:
        """``helm get manifest``: the objects that belong to the release now."""
        return objects(_checked_output(self._call_helm("get", "manifest", self.name)))

    def _call_helm(self, *command: str, values: Manifest | None = None) -> Done:
        options = () if values is None else ("--values", "-")
        stdin = None if values is None else json.dumps(values)
        return call("helm", *command, "--namespace", self.namespace, *options, stdin=stdin, seconds=self.seconds)


def objects(text: str) -> list[Manifest]:
    """The objects of a stream of YAML documents."""
    return [manifest for manifest in YAML(typ="safe").load_all(text) if manifest]


def _checked_output(done: Done) -> str:
    if done.returncode:
        raise ProgramError(
            f"{command_text(tuple(done.args))}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
    return done.stdout
