"""Prints the flags of an installed elasticdl-client as JSON: a program for the environment of that client.

It reads argparse's own objects: names, types, defaults, what is required, choices, and what a bare flag means.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

_TYPES = {"int": "int", "str": "str", "upper": "str.upper", "<lambda>": "bool"}


def commands(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command with its parser, such as ``zoo init``."""
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if path and not nested:
        yield path, parser
    for action in nested:
        for name, inner in action.choices.items():
            yield from commands(inner, f"{path} {name}".strip())


def describe(action: argparse.Action) -> dict[str, Any]:
    """A flag's facts. The address of pip's own index is replaced by words."""
    kind = _TYPES[getattr(action.type, "__name__", "str")] if action.type else "str"
    default = action.default
    if isinstance(default, str) and default.startswith("https://") and default.endswith("/simple"):
        default = "(pip's own index)"
    return {
        "type": kind,
        "default": default,
        "required": action.required,
        "choices": list(action.choices) if action.choices else [],
        "bare": action.const if kind == "bool" else None,
        "positional": not action.option_strings,
    }


def client_flags(parser: argparse.ArgumentParser) -> dict[str, dict[str, Any]]:
    """The flags of every command by name."""
    return {
        command: {
            action.dest: describe(action) for action in inner._actions if not isinstance(action, argparse._HelpAction)
        }
        for command, inner in commands(parser)
    }


if __name__ == "__main__":
    from elasticdl_client.main import build_argument_parser

    print(json.dumps(client_flags(build_argument_parser()), indent=1, sort_keys=True))
