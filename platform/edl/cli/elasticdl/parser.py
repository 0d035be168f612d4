"""Reads command lines as ElasticDL's client does, except that it ignores nothing.

Unique prefixes of flags, words for booleans, and a bare boolean flag, which means the opposite of its default, are
taken. An unknown flag is an error with the nearest name. All mistakes of a line are reported at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edl.api.errors import BadInputError
from edl.api.fields import ScalarValue
from edl.cli.elasticdl.flags import (
    EXTRA_FLAGS,
    FLAGS,
    JOB_COMMANDS,
    BecomesFields,
    DirectsCommand,
    Flag,
    Kind,
    NoEffect,
    RefusedFlag,
    Renamed,
    RetiredFlag,
    flags_of,
    retired_flags_of,
)
from edl.cli.elasticdl.values import TRUE_WORDS, is_unknown_word, read_boolean
from edl.core.strict_json import escape_surrogates
from edl.jobfile.document_tree import closest_match, find_text_fault
from edl.jobfile.elasticdl_imports import MIGRATION_PAGE
from edl.reporting.unit_formats import join_words

DRY_RUN = "dry_run"
"""A flag of EDL's own: print the job file and stop."""
_BARE = "\0bare"
"""What argparse stores for a boolean flag without a value; no command line can have a NUL."""


class UsageError(BadInputError):
    """The command line is wrong. The message has every mistake."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command with the values of all its flags.

    Attributes:
        command: such as ``train`` or ``zoo init``.
        values: by flag, defaults included.
        given: the flags that were typed, each as it was typed; retired spellings under their new name.
        notes: lines about what was taken differently from how it was typed, or has no effect.
        is_dry_run: print the job file, and do nothing else.
    """

    command: str
    values: Mapping[str, Any]
    given: Mapping[str, str]
    notes: tuple[str, ...] = ()
    is_dry_run: bool = False


def parse_command_line(command: str, words: Sequence[str]) -> CommandLine:
    """The values of a command's flags; ``-h`` prints its help and exits.

    Raises:
        UsageError: a flag is unknown, misspelt, missing or ambiguous, or has a wrong value.
    """
    for word in words:
        if fault := find_text_fault(word):
            raise UsageError(f"{escape_surrogates(word)} is a text that {fault}", where=f"elasticdl {command}")
    flags = flags_of(command)
    reader = _FlagNames(command, flags)
    parser = make_parser(command)
    parsed = vars(parser.parse_args(reader.resolve(words)))
    problems, notes = reader.problems, reader.notes
    notes += [f"{name}: given more than once; the last value counts" for name in parser.repeated]
    texts = {name: text for name, text in parsed.items() if name in flags}
    typed = {name: _as_typed(flags[name], text) for name, text in texts.items()}
    values: dict[str, Any] = {name: flag.default for name, flag in flags.items()}
    for name, text in texts.items():
        values[name] = _read_value(flags[name], text, typed[name], problems)
        if flags[name].kind is Kind.BOOLEAN and text != _BARE and is_unknown_word(text):
            notes.append(f"{typed[name]}: taken as false, as ElasticDL does; true is one of {', '.join(TRUE_WORDS)}")
    for name, retired in retired_flags_of(command).items():
        if name in parsed:
            _apply_retired(retired, parsed[name], flags, values, typed, problems, notes)
    problems += [
        f"{command}: {flag.option} is missing"
        for flag in flags.values()
        if command in flag.required and flag.name not in typed and flag.name != "job_name"
    ]
    if problems:
        hint = f"All flags, and what to write instead of some: elasticdl {command} -h, {MIGRATION_PAGE}"
        raise UsageError("\n".join(problems), hint=hint)
    return CommandLine(command, values, typed, tuple(notes), is_dry_run=DRY_RUN in parsed)


def make_parser(command: str) -> ArgumentParser:
    """The parser of a command. It has exact names only; all values are text that is read later."""
    positional = "".join(f" {flag.name.upper()}" for flag in flags_of(command).values() if flag.is_positional)
    parser = ArgumentParser(
        prog=f"elasticdl {command}",
        usage=f"elasticdl {command} [FLAGS]{positional}",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    for flag in flags_of(command).values():
        bare: dict[str, Any] = {"nargs": "?", "const": _BARE} if flag.kind is Kind.BOOLEAN else {}
        if flag.is_positional:
            parser.add_argument(flag.name, nargs="?", help=_help_text(flag))
        else:
            parser.add_argument(flag.option, action=_Store, metavar=_metavar(flag), help=_help_text(flag), **bare)
    for name in retired_flags_of(command):
        parser.add_argument(f"--{name}", nargs="?", const="", help=argparse.SUPPRESS)
    if command in JOB_COMMANDS:
        parser.add_argument(
            "--dry-run", dest=DRY_RUN, action="store_true", help="Print EDL's job file, and do nothing else."
        )
    return parser


class ArgumentParser(argparse.ArgumentParser):
    """Raises its errors, and remembers which flags were given more than once."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.repeated: list[str] = []

    def error(self, message: str) -> Any:
        raise UsageError(f"{self.prog}: {message}", hint=f"{self.prog} -h lists the flags")


class _Store(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if hasattr(namespace, self.dest):
            parser.repeated.append(option_string)
        setattr(namespace, self.dest, values)


# --------------------------------------------------------------------------------------------------
# Names


class _FlagNames:
    """Turns the flags of a command line into exact names, and sorts out those that the command does not have."""

    def __init__(self, command: str, flags: Mapping[str, Flag]) -> None:
        self._command = command
        self._client = [f.name for f in flags.values() if f not in EXTRA_FLAGS and not f.is_positional]
        # A prefix is unique among the flags of ElasticDL's client: older and EDL's own flags must be written out.
        self._exact = {*flags, *retired_flags_of(command), "help"}
        self._others = {f.name for f in FLAGS if f.name not in flags and set(f.commands) & set(JOB_COMMANDS)}
        self.problems: list[str] = []
        self.notes: list[str] = []

    def resolve(self, words: Sequence[str]) -> list[str]:
        """The words with exact names, without flags that only other commands have and without unknown ones."""
        resolved: list[str] = []
        is_dropping = False
        for word in words:
            if not word.startswith("--") or word == "--":
                if not is_dropping:
                    resolved.append(word)
                is_dropping = False
                continue
            name, equals, value = word[2:].partition("=")
            exact = self._find(name)
            if exact is not None:
                resolved.append(f"--{exact}{equals}{value}")
            is_dropping = exact is None and not equals
        return resolved

    def _find(self, name: str) -> str | None:
        if name in ("dry-run", DRY_RUN) and self._command in JOB_COMMANDS:
            return "dry-run"
        if name in self._exact:
            return name
        fitting = [flag for flag in self._client if flag.startswith(name)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            self.problems.append(f"--{name}: may mean {', '.join(f'--{flag}' for flag in fitting)}")
        elif name in self._others and self._command in JOB_COMMANDS:
            homes = [home for home in JOB_COMMANDS if any(f.name == name and home in f.commands for f in FLAGS)]
            self.notes.append(f"--{name}: no effect with {self._command}; it is a flag of {' and '.join(homes)}")
        else:
            self.problems.append(f"--{name}: {self._command} has no such flag{self._suggestion(name)}")
        return None

    def _suggestion(self, name: str) -> str:
        close = closest_match(name, self._exact | self._others)
        return f"; did you mean --{close}?" if close else ""


# --------------------------------------------------------------------------------------------------
# Values


def _as_typed(flag: Flag, text: str) -> str:
    return flag.option if text == _BARE else f"{flag.option}={text}"


def _read_value(flag: Flag, text: str, typed: str, problems: list[str]) -> ScalarValue:
    if text == _BARE:
        return not flag.default
    match flag.kind:
        case Kind.BOOLEAN:
            return read_boolean(text)
        case Kind.WHOLE_NUMBER:
            try:
                return int(text)
            except ValueError:
                problems.append(f"{typed}: must be a whole number")
                return flag.default
        case Kind.UPPER_TEXT:
            text = text.upper()
        case Kind.TEXT:
            pass
    if flag.choices and text not in flag.choices:
        close = closest_match(text, filter(None, flag.choices))
        known = f"did you mean {close}?" if close else f"must be one of {', '.join(filter(None, flag.choices))}"
        problems.append(f"{typed}: {known}")
    return text


def _apply_retired(
    retired: RetiredFlag,
    text: str,
    flags: Mapping[str, Flag],
    values: dict[str, Any],
    typed: dict[str, str],
    problems: list[str],
    notes: list[str],
) -> None:
    option = f"--{retired.name}"
    match retired.effect:
        case NoEffect(reason):
            notes.append(f"{option}: no effect: {reason}")
        case RefusedFlag(reason, instead):
            problems.append(f"{option}: {reason}; {instead}")
        case Renamed(name) if name not in flags:
            notes.append(f"{option}: no effect with this command")
        case Renamed(name) if name in typed:
            problems.append(f"{option}: is the old name of --{name}, which is given too; leave {option} out")
        case Renamed(name):
            value = _read_value(flags[name], text, f"{option}={text}", problems)
            number = ""
            if retired.divides_by and isinstance(value, int):
                value = max(1, value // max(1, values[retired.divides_by]))
                number = f"={value}, in minibatches of {values[retired.divides_by]}"
            values[name], typed[name] = value, f"{option}={text}"
            notes.append(f"{option}: is called --{name} now; taken as --{name}{number}")


# --------------------------------------------------------------------------------------------------
# Help


def _metavar(flag: Flag) -> str:
    match flag.kind:
        case Kind.BOOLEAN:
            return "BOOL"
        case Kind.WHOLE_NUMBER:
            return "N"
        case _:
            return "|".join(filter(None, flag.choices)) or "TEXT"


def _help_text(flag: Flag) -> str:
    return f"{describe_effect(flag)}{_default_text(flag)}".replace("%", "%%")


def describe_effect(flag: Flag) -> str:
    """What a flag becomes, in a sentence."""
    match flag.effect:
        case BecomesFields(fields, remark):
            text = f"becomes {join_words(fields)}" + (f" ({remark})" if remark else "")
        case DirectsCommand(purpose):
            text = purpose
        case NoEffect(reason):
            text = f"has no effect: {reason}"
        case RefusedFlag(reason, instead):
            text = f"is refused: {reason}; {instead}"
    return f"{text[:1].upper()}{text[1:]}."


def _default_text(flag: Flag) -> str:
    if flag.default in (None, ""):
        return " Required." if flag.required and flag.default is None else ""
    return f" Default: {flag.default}."
