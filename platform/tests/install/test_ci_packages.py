"""Packages of the system that CI installs for tests, on machines where it can and where it cannot."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.text_keys import missing_keys

ROOT = Path(__file__).parents[3]
CASES = [
    ("databases", "EDL_REQUIRE_DATABASES", ["PostgreSQL", "MariaDB", "skipped"]),
    ("torch", "EDL_REQUIRE_TORCH", ["PyTorch", "skipped"]),
]


@dataclass
class Machine:
    """A folder with the only programs of a machine; ``installed`` is there once apt-get has installed something."""

    folder: Path

    def add(self, name: str, code: str) -> None:
        program = self.folder / name
        program.write_text(f"#!/bin/bash\n{code}\n")
        program.chmod(0o755)

    def add_apt(self, code: str = "") -> None:
        self.add("apt-get", f'echo "$@" >>{self.folder}/calls\n{code}')

    @property
    def apt_calls(self) -> list[str]:
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    def install(self, what: str, variable: str) -> tuple[str, str]:
        """What the variable is afterwards, and what was printed. The rest of ``.ci/run`` would go on."""
        script = (
            f"set -euo pipefail; . .ci/packages.sh; has_{what}() {{ [ -e {self.folder}/installed ]; }}; "
            f'postgres_settings={self.folder}/settings; install_{what}; printf %s "${{{variable}:-}}"'
        )
        done = subprocess.run(
            ["/bin/bash", "-c", script],
            cwd=ROOT,
            env={"PATH": str(self.folder)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout, done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.add("id", "echo 0")
    machine.add("mkdir", 'exec /bin/mkdir "$@"')
    return machine


@pytest.mark.parametrize(("what", "variable", "said"), CASES)
def test_what_is_installed_is_required(machine: Machine, what: str, variable: str, said: list[str]) -> None:
    machine.add_apt(f'[ "$1" = update ] || : >{machine.folder}/installed')
    assert machine.install(what, variable) == ("1", "")
    update, install = machine.apt_calls
    assert update.startswith("update")
    assert not missing_keys(install, "install", "--yes", "--no-install-recommends")
    assert machine.install(what, variable) == ("1", "")
    assert len(machine.apt_calls) == 2, "nothing is installed twice"


def test_the_package_of_postgresql_makes_no_cluster(machine: Machine) -> None:
    machine.add_apt()
    settings = machine.folder / "settings" / "createcluster.conf"
    machine.install("databases", "EDL_REQUIRE_DATABASES")
    assert settings.read_text() == "create_main_cluster = false\n"
    settings.write_text("of the machine\n")
    machine.install("databases", "EDL_REQUIRE_DATABASES")
    assert settings.read_text() == "of the machine\n"


@pytest.mark.parametrize(("what", "variable", "said"), CASES)
@pytest.mark.parametrize("reason", ["no apt-get", "not root", "no package"])
def test_what_cannot_be_installed_is_said(
    machine: Machine, what: str, variable: str, said: list[str], reason: str
) -> None:
    if reason != "no apt-get":
        machine.add_apt("exit 100")
    if reason == "not root":
        machine.add("id", "echo 1000")
    required, printed = machine.install(what, variable)
    assert required == ""
    assert not missing_keys(printed, *said)
    assert len(printed.splitlines()) == 1
    assert len(machine.apt_calls) == (reason == "no package")


def test_the_scripts_of_ci_are_bash() -> None:
    for name in ("run", "packages.sh"):
        subprocess.run(["/bin/bash", "-n", ROOT / ".ci" / name], check=True)
