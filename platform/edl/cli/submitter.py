"""``python -m edl.cli.submitter SPEC``: what the pod of a submitter runs; see ``edl.ops.release``.

Without a release (``EDL_RELEASE``) it is ``edl submit SPEC --yes --watch``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from edl.api.errors import EdlError, RetryableError
from edl.api.exit_codes import SIGTERM_EXIT
from edl.api.job_spec import JobSpec
from edl.cli.options import connect_api
from edl.cluster.kubernetes.api_errors import ApiError
from edl.cluster.kubernetes.job_manifests import find_spec_problems
from edl.jobfile.loader import load_job_file
from edl.ops.job_deletion import DeletionTimeoutError
from edl.ops.release.release_view import SubmitterIdentity, read_identity
from edl.reporting.terminal_text import sanitize_standard_streams

REFUSED_EXIT, TRY_AGAIN_EXIT = 2, 75
_RETRYABLE_ERRORS = (RetryableError, DeletionTimeoutError)


def main(arguments: Sequence[str] | None = None, variables: Mapping[str, str] | None = None) -> NoReturn:
    """Exit codes: 0 done or replaced, 1 failed, 2 refused, 75 try again, 143 told to end."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) != 1:
        print("usage: python -m edl.cli.submitter SPEC", file=sys.stderr)
        sys.exit(REFUSED_EXIT)
    signal.signal(signal.SIGTERM, _exit_on_sigterm)
    with sanitize_standard_streams():
        try:
            sys.exit(_run_submitter(Path(given[0]), os.environ if variables is None else variables))
        except EdlError as error:
            print(error, file=sys.stderr, flush=True)
            sys.exit(exit_code(error))


def exit_code(error: EdlError) -> int:
    """What an error tells the Job controller: whether a new pod may have more luck."""
    if isinstance(error, _RETRYABLE_ERRORS):
        return TRY_AGAIN_EXIT
    return REFUSED_EXIT if isinstance(error, ApiError) else min(error.exit_code, REFUSED_EXIT)


def _run_submitter(source: Path, variables: Mapping[str, str]) -> int:
    identity = read_identity(variables)
    if identity is None:
        from edl.cli import app

        app.main(["submit", str(source), "--yes", "--watch"])
        raise AssertionError("unreachable")
    from edl.cli.submitter_loop import ReleaseSubmitter

    return ReleaseSubmitter(connect_api(None, None), identity, _load_spec(source, identity), source).run()


def _load_spec(source: Path, identity: SubmitterIdentity) -> JobSpec:
    """The job, under the name that it has in the cluster."""
    spec = load_job_file(source, required_datasets=("training",), extra_rules=find_spec_problems)
    name = identity.derive_job_name(spec.name)
    return (
        spec
        if name == spec.name
        else load_job_file(source, [f"name={name}"], required_datasets=("training",), extra_rules=find_spec_problems)
    )


def _exit_on_sigterm(number: int, frame: FrameType | None) -> NoReturn:
    """Process 1 has no default action for SIGTERM. Nothing has to be put in order, and a request may hang."""
    os.write(sys.stderr.fileno(), b"told to end; the job goes on\n")
    os._exit(SIGTERM_EXIT)


if __name__ == "__main__":
    main()
