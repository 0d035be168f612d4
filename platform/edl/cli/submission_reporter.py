"""How ``edl submit`` speaks: to people in lines, to programs in one JSON object a line."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from edl.api.errors import BadInputError, EdlError
from edl.cli.submission_plan import SubmissionPlan

MAX_WIDTH = 120


class SubmissionReporter(Protocol):
    """What a submission has to say."""

    def planned(self, plan: SubmissionPlan) -> None:
        """What will be done."""

    def report_event(self, event: str, facts: Mapping[str, Any], text: str) -> None:
        """Something was done, or is known now: in words, and as facts."""

    def note(self, text: str) -> None:
        """For people only."""

    def failed(self, error: EdlError) -> None:
        """It came to nothing; the command prints the error itself on standard error."""


class TextReporter:
    """Lines on standard output."""

    def planned(self, plan: SubmissionPlan) -> None:
        """The plan, as wide as the terminal."""
        width = min(MAX_WIDTH, shutil.get_terminal_size().columns)
        print("\n".join(plan.lines(width)), flush=True)

    def report_event(self, event: str, facts: Mapping[str, Any], text: str) -> None:
        """A line."""
        print(text, flush=True)

    def note(self, text: str) -> None:
        """A line."""
        print(text, flush=True)

    def failed(self, error: EdlError) -> None:
        """Nothing: what standard error says is for people."""


class JsonReporter:
    """JSON on standard output; what is for people only goes to standard error."""

    def planned(self, plan: SubmissionPlan) -> None:
        """One object."""
        self._write_object({"event": "plan", **plan.to_json()})

    def report_event(self, event: str, facts: Mapping[str, Any], text: str) -> None:
        """One object."""
        self._write_object({"event": event, **facts})

    def note(self, text: str) -> None:
        """Standard error."""
        print(text, file=sys.stderr, flush=True)

    def failed(self, error: EdlError) -> None:
        """The last object: ``refused`` if nothing was asked for that could have run, else ``failed``."""
        fields = {"message": error.message, "where": error.where, "hint": error.hint, "exit_code": error.exit_code}
        self._write_object({"event": "refused" if error.exit_code == BadInputError.exit_code else "failed", **fields})

    def _write_object(self, value: Mapping[str, Any]) -> None:
        print(json.dumps(value, allow_nan=False), flush=True)


def make_reporter(*, as_json: bool) -> SubmissionReporter:
    """The voice that the options ask for."""
    return JsonReporter() if as_json else TextReporter()
