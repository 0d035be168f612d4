"""``edl-role master|ps|worker|submit SPEC``: the entry point of EDL's images.

Exit codes: that of the role (128 + n if signal n killed it); 2 for a wrong command line, spec, environment or volume,
with a message on standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from edl.api.exit_codes import BAD_INPUT_EXIT
from edl.pod.init_process import AnnounceLog, InitProcess

ROLES = ("master", "ps", "worker")
USAGE = """usage: edl-role master|ps|worker|submit SPEC

The process of a container of a job. SPEC is the JobSpec, mounted by the pod. The pods of edl submit and of the master
run master, ps and worker. submit does the same as edl submit SPEC --yes --watch, or as the submitter of a release of
the chart edl-job.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    problem = _usage_problem(words)
    if problem is not None:
        print(f"edl-role: {problem}\n{USAGE}", end="", file=sys.stderr)
        return BAD_INPUT_EXIT
    role, spec = words
    if role == "submit":
        _exec_submitter(spec)
    return InitProcess(lambda say: _exec_role(role, spec, say)).run()


def _usage_problem(words: Sequence[str]) -> str | None:
    if len(words) != 2:
        return f"takes a role and a spec, found {len(words)} arguments"
    if words[0] not in (*ROLES, "submit"):
        return f"{words[0]!r} is not a role"
    return None


def _exec_submitter(spec: str) -> NoReturn:
    # -P keeps the current folder off sys.path, so that its modules cannot replace EDL's
    os.execv(sys.executable, [sys.executable, "-P", "-m", "edl.cli.submitter", spec])  # noqa: S606


def _exec_role(role: str, spec: str, announce_log: AnnounceLog) -> None:
    """Run in the child: prepare the environment and become the role."""
    # imported in the child only: process 1 stays small
    from edl.api.errors import EdlError
    from edl.pod.role_preparation import log_heading, prepare_role, role_log_path

    try:
        variables = {**os.environ, **prepare_role(role, spec, os.environ)}
    except EdlError as error:
        print(f"edl-role: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    announce_log(str(role_log_path(variables)), log_heading(variables))
    os.execve(sys.executable, [sys.executable, "-P", "-m", f"edl.{role}"], variables)  # noqa: S606
