"""What the fields of a JobSpec demand of each other; what a single field admits is said where it is declared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from edl.jobfile.job_spec import DataSpec, JobSpec
from edl.jobfile.section_type import field_options


@dataclass(frozen=True, slots=True)
class RuleViolation:
    """A rule that a spec breaks: the path of the field to change, what is wrong, what can be done.

    Attributes:
        other: the path of a field that it does not go together with.
    """

    path: str
    message: str
    hint: str | None = None
    other: str = ""


def find_rule_violations(spec: JobSpec, required: Iterable[str] = ()) -> list[RuleViolation]:
    """The rules that ``spec`` breaks.

    Args:
        required: sets of records that must be given: ``training``, ``validation``, ``prediction``; with the last alone
            nobody trains, and what the strategy of training demands does not count.
    """
    required = tuple(required)
    strategy = () if required == ("prediction",) else _check_strategy(spec)
    return [
        *_check_datasets(spec, required),
        *_check_evaluation(spec),
        *_check_worker_limits(spec),
        *strategy,
        *_check_volume_mounts(spec),
    ]


def _check_datasets(spec: JobSpec, required: tuple[str, ...]) -> Iterator[RuleViolation]:
    if not required and not spec.data.prediction:
        required = ("training",)
    for name in required:
        if not getattr(spec.data, name):
            yield RuleViolation(f"data.{name}", "is missing", field_options(DataSpec)[name].description)


def _check_evaluation(spec: JobSpec) -> Iterator[RuleViolation]:
    if spec.train.evaluation_steps is not None and not spec.data.validation:
        message = f"found {spec.train.evaluation_steps}, but data.validation is missing"
        yield RuleViolation(
            "train.evaluation_steps", message, "give data.validation, or leave train.evaluation_steps out"
        )


def _check_worker_limits(spec: JobSpec) -> Iterator[RuleViolation]:
    if spec.workers.max < spec.workers.min:
        message = f"found {spec.workers.max}, must be at least workers.min, {spec.workers.min}"
        yield RuleViolation("workers.max", message, other="workers.min")


def _check_strategy(spec: JobSpec) -> Iterator[RuleViolation]:
    """Of parameter servers. Under Local one process pushes: each of its pushes is a round, and none is stale."""
    if spec.strategy.name == "ParameterServer":
        yield from (_check_sync_mode if spec.strategy.mode == "sync" else _check_async_mode)(spec)
    elif spec.strategy.name == "Local":
        yield from _check_local_strategy(spec)


def _check_local_strategy(spec: JobSpec) -> Iterator[RuleViolation]:
    """Which rows are kept is a part of what a run learns: not ignored, as how many servers there would be is."""
    for name in ("max_rows", "evict_after_steps"):
        value = getattr(spec.ps, name)
        if value is not None:
            message = (
                f"found {value}, but under strategy Local no parameter server holds rows: tables are Keras' own and "
                "keep every row"
            )
            hint = f"leave it out (--set ps.{name}=null), or set strategy.name: ParameterServer"
            yield RuleViolation(f"ps.{name}", message, hint)


def _check_sync_mode(spec: JobSpec) -> Iterator[RuleViolation]:
    strategy, most = spec.strategy, spec.workers.max
    if strategy.grads_to_wait > most:
        message = f"found {strategy.grads_to_wait}, but workers.max is {most}: so many pushes never come together"
        hint = f"make it at most {most}, or raise workers.max"
        yield RuleViolation("strategy.grads_to_wait", message, hint, other="workers.max")
    if strategy.staleness_aware:
        message = "found true, but under mode: sync a push that is too old is computed anew"
        yield RuleViolation("strategy.staleness_aware", message, "leave it out, or set strategy.mode: async")
    if strategy.get_model_steps > 1:
        message = f"found {strategy.get_model_steps}, but under mode: sync every step begins with a pull"
        yield RuleViolation("strategy.get_model_steps", message, "leave it out, or set strategy.mode: async")
    if strategy.overlap:
        message = "found true, but under mode: sync a step begins when the update of the one before it is made"
        yield RuleViolation("strategy.overlap", message, "leave it out, or set strategy.mode: async")


def _check_async_mode(spec: JobSpec) -> Iterator[RuleViolation]:
    for name, meaningless in (("grads_to_wait", 1), ("version_tolerance", 0)):
        value = getattr(spec.strategy, name)
        if value != meaningless:
            message = f"found {value}, but under mode: async every push is applied at once"
            yield RuleViolation(f"strategy.{name}", message, "leave it out, or set strategy.mode: sync")


def _check_volume_mounts(spec: JobSpec) -> Iterator[RuleViolation]:
    seen: dict[str, int] = {}
    for index, volume in enumerate(spec.volumes):
        mount = volume.mount.rstrip("/") or "/"
        if mount in seen:
            yield RuleViolation(
                f"volumes[{index}].mount", f"found '{volume.mount}', which volumes[{seen[mount]}] has already"
            )
        seen.setdefault(mount, index)
