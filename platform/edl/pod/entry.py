"""``edl-role master|ps|worker|submit SPEC``: the entry point of EDL's images.

Exit codes: those of the role (128 + n when signal n killed it); 2 for a wrong command line, spec, environment or
volume, with a message on standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from edl.pod.init_process import AnnounceLog, InitProcess

ROLES = ("master", "ps", "worker")
USAGE = """usage: edl-role master|ps|worker|submit SPEC

What a container of a job runs: SPEC is the JobSpec, mounted by the pod. master, ps and worker are started in pods that
edl submit and the master make. submit does what edl submit SPEC --yes --watch does, or what the submitter of a release
of the chart edl-job does.
"""
BAD_INPUT_EXIT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    problem = _usage_problem(given)
    if problem is not None:
        print(f"edl-role: {problem}\n{USAGE}", end="", file=sys.stderr)
        return BAD_INPUT_EXIT
    role, spec = given
    if role == "submit":
        _exec_submitter(spec)
    return InitProcess(lambda say: _exec_role(role, spec, say)).run()


def _usage_problem(given: Sequence[str]) -> str | None:
    if len(given) != 2:
        return f"takes a role and a spec, not {len(given)} arguments"
    if given[0] not in (*ROLES, "submit"):
        return f"{given[0]!r} is no role"
    return None


def _exec_submitter(spec: str) -> NoReturn:
    os.execv(sys.executable, [sys.executable, "-P", "-m", "edl.cli.submitter", spec])  # noqa: S606


def _exec_role(role: str, spec: str, announce_log: AnnounceLog) -> None:
    """In the child: prepare, and become the role."""
    from edl.api.errors import EdlError
    from edl.pod.role_preparation import log_heading, prepare_role, role_log_path

    try:
        variables = {**os.environ, **prepare_role(role, spec, os.environ)}
    except EdlError as error:
        print(f"edl-role: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    announce_log(str(role_log_path(variables)), log_heading(variables))
    os.execve(sys.executable, [sys.executable, "-P", "-m", f"edl.{role}"], variables)  # noqa: S606
