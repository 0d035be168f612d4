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
from edl.cli.options import api_of
from edl.cluster.kubernetes.api_errors import ApiError
from edl.cluster.kubernetes.job_manifests import problems
from edl.jobfile.job_spec import JobSpec
from edl.jobfile.loader import load
from edl.ops.job_deletion import StillThereError
from edl.ops.release.submitter_identity import Identity, identity_of
from edl.reporting.terminal_text import guarded

REFUSED, TRY_AGAIN, TERMINATED = 2, 75, 143
_PASSES = (RetryableError, StillThereError)


def main(arguments: Sequence[str] | None = None, variables: Mapping[str, str] | None = None) -> NoReturn:
    """Exit codes: 0 done or replaced, 1 failed, 2 refused, 75 try again, 143 told to end."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) != 1:
        print("usage: python -m edl.cli.submitter SPEC", file=sys.stderr)
        sys.exit(REFUSED)
    signal.signal(signal.SIGTERM, _end)
    with guarded():
        try:
            sys.exit(_run(Path(given[0]), os.environ if variables is None else variables))
        except EdlError as error:
            print(error, file=sys.stderr, flush=True)
            sys.exit(exit_code(error))


def exit_code(error: EdlError) -> int:
    """What an error tells the Job controller: whether a new pod may have more luck."""
    if isinstance(error, _PASSES):
        return TRY_AGAIN
    return REFUSED if isinstance(error, ApiError) else min(error.exit_code, REFUSED)


def _run(source: Path, variables: Mapping[str, str]) -> int:
    me = identity_of(variables)
    if me is None:
        from edl.cli import app

        app.main(["submit", str(source), "--yes", "--watch"])
        raise AssertionError("unreachable")
    from edl.cli.submitter_loop import Releasing

    return Releasing(api_of(None, None), me, _spec(source, me), source).run()


def _spec(source: Path, me: Identity) -> JobSpec:
    """The job, under the name that it has in the cluster."""
    spec = load(source, required=("training",), demands=problems)
    name = me.job_name(spec.name)
    return spec if name == spec.name else load(source, [f"name={name}"], required=("training",), demands=problems)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """Process 1 has no default action for SIGTERM. Nothing has to be put in order, and a request may hang."""
    os.write(sys.stderr.fileno(), b"told to end; the job goes on\n")
    os._exit(TERMINATED)


if __name__ == "__main__":
    main()
