"""Runs the program of a job with ``command`` in place of this process, which keeps its id, signals and log.

The program takes its records with ``edl.sharding``, which reads the same environment as a worker.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.jobfile.command_rules import find_program, program_path


def read_command(run_dir: Path) -> Sequence[str]:
    """The command of the run's job; empty if it has a model. Imports nothing that a worker of a model does not need."""
    try:
        spec = json.loads((run_dir / "spec.json").read_bytes())
    except (OSError, ValueError):
        return ()  # loading the job gives a better error
    return tuple(spec.get("command", ())) if isinstance(spec, dict) else ()


def run_program(environment: Mapping[str, str]) -> NoReturn:
    """Become the program of the job. It runs in the directory ``model.zoo``.

    ``python`` is the interpreter of this process, and prints without buffering, so that a killed worker's log is
    whole. As for a model, the zoo can be imported as a package of its parent folder: ``python -m model_zoo.mnist.own``.

    Raises:
        BadInputError: the program does not exist, or the directory does not. The master is told.
    """
    from edl.jobfile.loader import load_job_file

    spec = load_job_file(Path(environment["EDL_RUN_DIR"]) / "spec.json")
    variables = program_variables(environment, Path(spec.model.zoo))
    try:
        program = find_program(spec, variables["PATH"])
        os.chdir(spec.model.zoo)
        os.execve(program, list(spec.command), variables)  # noqa: S606  no shell is wanted
    except (BadInputError, OSError) as error:
        problem = error if isinstance(error, BadInputError) else _to_input_error(spec, error)
        _report_failure(problem)
        raise problem from error


def program_variables(environment: Mapping[str, str], zoo: Path) -> dict[str, str]:
    """The environment of the program, without an effect on variables that the user has set."""
    modules = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), str(zoo.absolute().parent))))
    return {"PYTHONUNBUFFERED": "1", **environment, "PATH": program_path(environment), "PYTHONPATH": modules}


def _to_input_error(spec: JobSpec, error: OSError) -> BadInputError:
    return BadInputError(f"{spec.command[0]} cannot be run in {spec.model.zoo}: {error.strerror}", where="command")


def _report_failure(error: BadInputError) -> None:
    """Tell the master, so that the job ends instead of starting the same worker again."""
    from edl.transport import edl_pb2 as pb
    from edl.transport.control_client import ControlChannel
    from edl.transport.control_methods import MasterMethods
    from edl.transport.process_identity import ProcessIdentity

    identity = ProcessIdentity.from_environment()
    member = pb.Member(role=identity.role.value, index=identity.index, uid=identity.uid)
    channel = ControlChannel(identity.master_address, identity.token)
    try:
        request = pb.FailRequest(member=member, kind="input", message=str(error))
        channel.call(MasterMethods.Fail, request, timeout=10.0)
    except Exception as problem:  # noqa: BLE001  the error itself is printed in any case
        print(f"the master was not told: {problem}", file=sys.stderr)
