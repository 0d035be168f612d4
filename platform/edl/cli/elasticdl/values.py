"""Reads the values of ElasticDL's flags that are small languages: resources, volumes, environments, parameters.

Each function returns values of a job file. It raises ValueError with what was found and what is valid, phrased to
follow the flag's name.
"""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping

from edl.api.fields import JsonValue
from edl.cluster.kubernetes.pod_template import GPU_RESOURCE
from edl.jobfile.document_tree import closest_match
from edl.jobfile.quantities import format_size, parse_cores, parse_size

TRUE_WORDS = ("true", "yes", "t", "y")
_FALSE_WORDS = ("false", "no", "f", "n", "0", "")


def read_boolean(text: str) -> bool:
    """ElasticDL's rule: four words in any case are true, and any other text is false."""
    return text.strip().lower() in TRUE_WORDS


def is_unknown_word(text: str) -> bool:
    """Whether a boolean value is none of the usual words, such as a misspelt one; ElasticDL takes it as false."""
    return text.strip().lower() not in (*TRUE_WORDS, *_FALSE_WORDS)


# --------------------------------------------------------------------------------------------------
# Resources: cpu=250m,memory=32Mi,disk=64Mi,gpu=1


_RESOURCES = {
    "cpu": "cpu",
    "memory": "memory",
    "disk": "ephemeral_storage",
    "ephemeral-storage": "ephemeral_storage",
    "gpu": "gpu",
    GPU_RESOURCE: "gpu",
}
"""Field of a role's ``resources`` by ElasticDL's name."""
_RESOURCE_FORM = "must be such as cpu=1,memory=2048Mi,disk=1024Mi,gpu=1"


def read_resources(text: str) -> dict[str, JsonValue]:
    """The fields of a role's ``resources`` that the text names, as a job file writes them."""
    resources: dict[str, JsonValue] = {}
    for name, amount in _read_pairs(text, ",", _RESOURCE_FORM):
        key = name.lower()
        if key not in _RESOURCES:
            raise ValueError(_unknown_resource(name, text))
        field = _RESOURCES[key]
        if field in resources:
            raise ValueError(f"found {text!r}, which names {name} twice")
        resources[field] = _read_amount(field, name, amount)
    return resources


def _unknown_resource(name: str, text: str) -> str:
    if name.lower().endswith("/gpu"):
        return f"found {name} in {text!r}; EDL's workers use {GPU_RESOURCE} (write gpu=1)"
    close = closest_match(name, _RESOURCES)
    known = f"did you mean {close}?" if close else f"known are {', '.join(_RESOURCES)}"
    return f"found {name} in {text!r}; {known}"


def _read_amount(field: str, name: str, amount: str) -> JsonValue:
    try:
        if field == "cpu":
            cores = parse_cores(amount)
            return int(cores) if cores == int(cores) else cores
        return int(amount) if field == "gpu" else format_size(parse_size(amount))
    except ValueError:
        form = {"cpu": "cores such as 2, 0.5 or 500m", "gpu": "a whole number"}.get(
            field, "a size such as 2048Mi or 2G"
        )
        raise ValueError(f"found {name}={amount}, must be {form}") from None


# --------------------------------------------------------------------------------------------------
# Volumes: claim_name=c,mount_path=/data;host_path=/tmp,mount_path=/tmp


_VOLUME_FIELDS = {"claim_name": "claim", "host_path": "host_path", "mount_path": "mount", "sub_path": "sub_path"}
_VOLUME_TYPE = "type"
_DIRECTORY_TYPES = ("Directory", "DirectoryOrCreate", "")
_VOLUME_FORM = "must be such as claim_name=my-claim,mount_path=/data; several are separated by ;"


def read_volumes(text: str) -> list[dict[str, JsonValue]]:
    """The items of ``volumes``. ``sub_path`` is among their fields if the text has it."""
    return [_read_volume(part) for part in text.split(";") if part.strip()]


def _read_volume(text: str) -> dict[str, JsonValue]:
    volume: dict[str, JsonValue] = {}
    for name, value in _read_pairs(text, ",", _VOLUME_FORM):
        if name == _VOLUME_TYPE:
            if value not in _DIRECTORY_TYPES:
                raise ValueError(f"found type={value}; a volume of EDL is a directory (leave type out)")
            continue
        if name not in _VOLUME_FIELDS:
            close = closest_match(name, [*_VOLUME_FIELDS, _VOLUME_TYPE])
            known = f"did you mean {close}?" if close else f"known are {', '.join([*_VOLUME_FIELDS, _VOLUME_TYPE])}"
            raise ValueError(f"found {name} in {text!r}; {known}")
        if _VOLUME_FIELDS[name] in volume:
            raise ValueError(f"found {text!r}, which names {name} twice")
        volume[_VOLUME_FIELDS[name]] = value
    if "mount" not in volume:
        raise ValueError(f"found {text.strip()!r} without mount_path; it {_VOLUME_FORM}")
    if ("claim" in volume) == ("host_path" in volume):
        raise ValueError(f"found {text.strip()!r}; it must have either claim_name or host_path")
    return volume


def _read_pairs(text: str, separator: str, form: str) -> Iterator[tuple[str, str]]:
    for part in text.split(separator):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not name or not equals or not value:
            raise ValueError(f"found {text!r}, {form}")
        yield name, value


# --------------------------------------------------------------------------------------------------
# Environments: A=1,B=x,y


def read_variables(text: str) -> dict[str, str]:
    """Environment variables. A comma separates them only before another ``NAME=``, so values may have commas."""
    variables: dict[str, str] = {}
    last = None
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if equals:
            last = name.strip()
            if not last:
                raise ValueError(f"found {text!r}, must be such as NAME=value,OTHER=value")
            variables[last] = value
        elif last is None:
            raise ValueError(f"found {text!r}, must be such as NAME=value,OTHER=value")
        else:
            variables[last] += f",{part}"
    return variables


def find_repeated_variables(text: str) -> list[str]:
    """Names that ``read_variables`` finds more than once."""
    names = Counter(part.partition("=")[0].strip() for part in text.split(",") if "=" in part)
    return [name for name, count in names.items() if count > 1]


def select_variables(pattern: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of this machine whose whole name matches the regular expression."""
    try:
        names = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"found {pattern!r}, must be a regular expression of names: {error}") from None
    return {name: value for name, value in sorted(environment.items()) if names.fullmatch(name)}


# --------------------------------------------------------------------------------------------------
# Parameters: columns=["a", "b"]; label_col="b"


def read_parameters(text: str) -> dict[str, JsonValue]:
    """Parameters ``name=value``, separated by ``;``. A value is a literal of Python, or else text.

    ElasticDL evaluates values as Python code; here nothing is executed.
    """
    parameters: dict[str, JsonValue] = {}
    for part in filter(str.strip, _split_outside_quotes(text)):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not name.isidentifier():
            raise ValueError(f"found {part.strip()!r}, must be name=value; several are separated by ;")
        if name in parameters:
            raise ValueError(f"found {name} twice")
        parameters[name] = _read_literal(name, value)
    return parameters


def _read_literal(name: str, text: str) -> JsonValue:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return _to_json(name, value)


def find_broken_literals(text: str) -> dict[str, str]:
    """Values that ``read_parameters`` takes as text, and that are probably meant as code, by name.

    They begin or end like a list or a mapping, so a bracket or a quote may be missing, or they compute something, such
    as ``4 * 1024``, which ElasticDL evaluates, or a comma begins another parameter.
    """
    broken = {}
    for part in filter(str.strip, _split_outside_quotes(text)):
        name, _, value = (word.strip() for word in part.partition("="))
        if not _is_literal(value) and (
            value.startswith(("[", "{", "("))
            or value.endswith(("]", "}", ")"))
            or _computes_constant(value)
            or has_several_parameters(value)
        ):
            broken[name] = value
    return broken


def has_several_parameters(text: str) -> bool:
    """Whether a value goes on with another ``name=value``."""
    return re.search(r",\s*[A-Za-z_]\w*\s*=", text) is not None


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _computes_constant(text: str) -> bool:
    """Whether it is Python that needs no name: words such as ``my-table`` are code as well, and are meant as text."""
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return not any(isinstance(node, ast.Name) for node in nodes)


def _to_json(name: str, value: object) -> JsonValue:
    if isinstance(value, list | tuple):
        return [_to_json(name, member) for member in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError(f"found {name}={value!r}, but a job file's mappings have text as keys")
        return {key: _to_json(name, member) for key, member in value.items()}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise ValueError(f"found {name}={value!r}, which a job file cannot hold; use numbers, text, lists and mappings")


def _split_outside_quotes(text: str) -> Iterator[str]:
    """The parts between ``;``, except those inside of quotes."""
    part, quote = "", ""
    for letter in text:
        if letter == ";" and not quote:
            yield part
            part = ""
            continue
        if letter in "'\"":
            quote = "" if letter == quote else quote or letter
        part += letter
    if quote:
        raise ValueError(f"found {text!r}, in which the quote {quote} has no end")
    yield part


# --------------------------------------------------------------------------------------------------
# Priorities and strategies


def read_priority(text: str) -> str:
    """A PriorityClass, or one with the share of workers that get it: ``high=0.5``; the rest get ``low``."""
    name, equals, share = text.partition("=")
    if not equals:
        return text
    try:
        fraction = float(share)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= 1:
        raise ValueError(f"found {text!r}, must be a PriorityClass, or one with a share from 0 to 1 such as high=0.5")
    if fraction in (0, 1):
        return name if fraction else "low"
    return f"{name}={fraction:.10f}".rstrip("0")


STRATEGIES = {
    "": "Local",
    "Local": "Local",
    "ParameterServerStrategy": "ParameterServer",
    "AllreduceStrategy": "AllReduce",
}
"""``strategy.name`` by ElasticDL's name of a strategy."""
