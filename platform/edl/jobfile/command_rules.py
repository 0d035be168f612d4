"""Jobs that run a program of the user's (``command``) instead of a Keras model: their rules, and the program."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec, ModelSpec, TrainSpec
from edl.api.strategy import Strategy
from edl.jobfile.document_tree import RuleViolation
from edl.jobfile.section_type import field_defaults, section_fields
from edl.jobfile.strategy_choice import has_own_state

_OWN_STATE = {
    "strategy": "workers of a program take steps together under strategy AllReduce only",
    "checkpoint": "the program writes its own checkpoints",
}
"""Sections without an effect if each worker's program keeps a state of its own, and why."""
_PROGRAM_DOES = {
    "ps": "the job has no parameter servers",
    "evaluation": "the program evaluates itself",
    "export": "the program writes its own model",
}
"""Sections without an effect on any such job, and why."""
_PROGRAM_STEPS = {
    "learning_rate_scaling": "the program applies its own learning rate; step.world.size is the number of workers",
    "reference_world": "the program applies its own learning rate; step.world.size is the number of workers",
    "max_dense_gradient": "the program decides what is summed",
}
"""Fields of the strategy without an effect on steps of programs, and why."""


def check_program(spec: JobSpec) -> Iterator[RuleViolation]:
    """A job has a model or a command. With a command, what EDL does for a Keras model has no effect and is refused."""
    if not spec.command:
        if not spec.model.definition:
            hint = f"{section_fields(ModelSpec)['definition'].declaration.doc} Or give command: a program to run"
            yield RuleViolation("model.definition", "is missing", hint)
        return
    if spec.task != "train":
        yield RuleViolation("task", f"found '{spec.task}', but a job with a command only trains", "leave task out")
    defaults, model_defaults = field_defaults(JobSpec), field_defaults(ModelSpec)
    for name, default in model_defaults.items():
        if name != "zoo" and getattr(spec.model, name) != default:
            yield RuleViolation(f"model.{name}", "has no effect with a command", "leave it out, or leave command out")
    own_state = has_own_state(spec)
    for name, reason in (_PROGRAM_DOES | (_OWN_STATE if own_state else {})).items():
        # null says explicitly what is so anyway
        if getattr(spec, name) not in (None, defaults[name]):
            yield RuleViolation(name, f"has no effect with a command: {reason}", "leave it out, or leave command out")
    for name in ("validation", "prediction"):
        if getattr(spec.data, name):
            yield RuleViolation(
                f"data.{name}", "has no effect with a command: the program reads it itself", "leave it out"
            )
    strategy_defaults = field_defaults(Strategy)
    for name, reason in _PROGRAM_STEPS.items():
        if not own_state and getattr(spec.strategy, name) != strategy_defaults[name]:
            yield RuleViolation(f"strategy.{name}", f"has no effect with a command: {reason}", "leave it out")
    if own_state and spec.log.loss_every_steps is not None:
        yield RuleViolation(
            "log.loss_every_steps", "has no effect with a command: the program logs its own loss", "leave it out"
        )
    train_defaults = field_defaults(TrainSpec)
    reasons = {"evaluation_steps": "the program evaluates itself"}
    if own_state:
        reasons["on_nan"] = "only the program sees its loss"
    for name, reason in reasons.items():
        if getattr(spec.train, name) != train_defaults[name]:
            yield RuleViolation(f"train.{name}", f"has no effect with a command: {reason}", "leave it out")


def describe_program(spec: JobSpec, zoo: str) -> str:
    """What workers run, and where it is from.

    Args:
        zoo: the folder of the model's modules, as workers see it.
    """
    what = shlex.join(spec.command) if spec.command else spec.model.definition
    return f"{what} {'in' if spec.command else 'from'} {zoo}"


def program_path(environment: Mapping[str, str]) -> str:
    """``PATH`` of a job's program: ``python`` is the interpreter that runs EDL."""
    return os.pathsep.join(filter(None, (os.path.dirname(sys.executable), environment.get("PATH", os.defpath))))


def find_program(spec: JobSpec, path: str) -> str:
    """The file of the job's program.

    Args:
        spec: the job, with the paths of this machine.
        path: the value of ``PATH``.

    Raises:
        BadInputError: the directory or the program does not exist.
    """
    name, zoo = spec.command[0], Path(spec.model.zoo)
    if not zoo.is_dir():
        raise BadInputError("is no directory, and the job's command runs in it", where=f"model.zoo: {zoo}")
    # A path with a slash is relative to the directory in which the program runs.
    program = shutil.which(str(zoo / name) if "/" in name else name, path=path)
    if program is None:
        hint = f"in {zoo}, make it executable (chmod +x)" if "/" in name else "give a path, such as ./train.sh"
        raise BadInputError(f"found no program {name!r}", where="command", hint=hint)
    return program
