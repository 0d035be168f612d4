"""Who uses a namespace of these tests: the account ``edl-data-scientist``, with the rights that are shipped for it.

Whatever a user does is done with these rights, so that a right that is missing in what admins install fails a scenario.
What admins, drains and faults do is done, and what happens is observed, with those of ``KUBECONFIG``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from e2e import install
from e2e.install import InstallMethod
from e2e.programs import ROOT, Done, apply, call, edl, kubectl, run_program

ACCOUNT = "edl-data-scientist"
COPY = "edl-data-copy"
LIFETIME = "4h"


@dataclass(frozen=True)
class UserAccount:
    """Somebody who trains in one namespace.

    Attributes:
        namespace: theirs.
        kubeconfig: says so, with their token. None: nothing is installed there, and they act as who runs the tests.
    """

    namespace: str
    kubeconfig: Path | None = None

    @property
    def _env(self) -> dict[str, str]:
        return {} if self.kubeconfig is None else {"KUBECONFIG": str(self.kubeconfig)}

    def edl(self, *arguments: str | Path, seconds: float = 120.0) -> Done:
        """``edl`` in their namespace, whatever its exit code."""
        return edl(*arguments, "--namespace", self.namespace, seconds=seconds, env=self._env)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """``kubectl`` in their namespace; its standard output."""
        return run_program("kubectl", "-n", self.namespace, *arguments, stdin=stdin, env=self._env)

    def try_kubectl(self, *arguments: str, stdin: str | None = None) -> Done:
        """``kubectl`` in their namespace, unless the arguments name another, whatever its exit code."""
        return call("kubectl", "-n", self.namespace, *arguments, stdin=stdin, env=self._env)


def data_scientist(namespace: str) -> UserAccount:
    """The account of a namespace that has a team's part; it may copy data, too."""
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": COPY}
    if install.install_method() is InstallMethod.KUSTOMIZE:  # the chart binds it where a team has `dataCopy`
        binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": COPY}}
        apply({**binding, "roleRef": role, "subjects": [subject]}, "-n", namespace)
    token = kubectl("-n", namespace, "create", "token", ACCOUNT, f"--duration={LIFETIME}").strip()
    config = json.loads(kubectl("config", "view", "--minify", "--flatten", "--raw", "-o", "json"))
    config["users"][0]["user"] = {"token": token}
    file = _kubeconfig_file(namespace)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    file.write_text(json.dumps(config))
    return UserAccount(namespace, file)


def forget_account(namespace: str) -> None:
    """Remove the kubeconfig of a namespace, if there is one; the token ends with its account."""
    _kubeconfig_file(namespace).unlink(missing_ok=True)


def _kubeconfig_file(namespace: str) -> Path:
    return ROOT / "e2e" / ".state" / "people" / f"{namespace}.json"
