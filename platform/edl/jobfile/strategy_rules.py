"""Rules about the training strategy of a job: which fields belong to which strategy."""

from __future__ import annotations

from collections.abc import Iterator

from edl.api.job_spec import JobSpec, ParameterServerSpec, WorkerSpec
from edl.api.strategy import PushStrategy, Strategy
from edl.jobfile.document_tree import RuleViolation
from edl.jobfile.scalar_types import format_value
from edl.jobfile.section_type import field_defaults

_USE_PARAMETER_SERVERS = "set strategy.name: ParameterServer"

_WITHOUT_PARAMETER_SERVERS = {
    "Local": "tables are Keras' own and keep every row",
    "AllReduce": "tables are ordinary variables, and every worker keeps every row",
}
"""What happens to embedding tables under the strategies that have no parameter servers."""
_ROW_LIMITS = ("max_rows", "evict_after_steps")
_POD_FIELDS = ("priority", "overrides")
"""Fields that no local run uses, whatever the strategy."""

_MEANINGLESS_UNDER_ALL_REDUCE = {
    "mode": "each step is synchronous: it sums the gradients of all workers",
    "grads_to_wait": "a step sums the gradients of all workers that take part",
    "version_tolerance": "all gradients of a step are computed with the same values",
    "staleness_aware": "no gradient is stale",
    "get_model_steps": "nothing is pulled: every worker has all values and applies each step to them",
    "overlap": "no push is in flight while a step is computed",
}
"""Fields about pushes to parameter servers, and why they mean nothing in a step that all workers take together."""


def check_strategy(spec: JobSpec) -> Iterator[RuleViolation]:
    """The rules of the job's strategy that it breaks."""
    match spec.strategy.name:
        case "ParameterServer":
            yield from (_check_sync_mode if spec.strategy.mode == "sync" else _check_async_mode)(spec)
            yield from _refuse_step_size(spec)
            yield from _refuse_evaluators(spec)
        case "Local":  # one process pushes: every push is a round, and none is stale
            yield from _refuse_master_commands(spec)
            yield from _check_row_limits(spec)
            yield from _refuse_step_size(spec)
            yield from _refuse_evaluators(spec)
        case "AllReduce":
            yield from _check_push_fields(spec)
            yield from _check_row_limits(spec)
            yield from _check_scaling(spec)
            yield from _check_global_batch(spec)
            yield from _check_evaluators(spec)


def _refuse_master_commands(spec: JobSpec) -> Iterator[RuleViolation]:
    for name in ("prepare", "finish"):
        if getattr(spec.master, name):
            yield RuleViolation(
                f"master.{name}", "has no effect under strategy Local, which has no master", "use AllReduce"
            )


def describe_unused_fields(spec: JobSpec) -> list[str]:
    """Lines that name the fields that the job sets and its strategy does not use, with the reason; perhaps none.

    They do not change the result; fields that would are refused.
    """
    unused = [name for name in find_unused_fields(spec) if name.removeprefix("ps.") not in _POD_FIELDS]
    lines = [f"does not use {', '.join(unused)}: no parameter servers"] if unused else []
    if spec.strategy.name == "Local":
        sections = (
            ("strategy", spec.strategy, field_defaults(Strategy), _MEANINGLESS_UNDER_ALL_REDUCE),
            ("workers", spec.workers, field_defaults(WorkerSpec), ("min", "max")),
        )
        alone = [
            f"{section}.{name}"
            for section, given, defaults, names in sections
            for name in names
            if getattr(given, name) != defaults[name]
        ]
        lines += [f"does not use {', '.join(alone)}: strategy Local is one process"] if alone else []
    return lines


def find_unused_fields(spec: JobSpec) -> list[str]:
    """The ``ps`` fields that the job sets and its strategy does not use, also those about pods."""
    if spec.strategy.name not in _WITHOUT_PARAMETER_SERVERS or spec.command:
        return []
    defaults = field_defaults(ParameterServerSpec)
    return [f"ps.{name}" for name in defaults if name not in _ROW_LIMITS and getattr(spec.ps, name) != defaults[name]]


def _check_row_limits(spec: JobSpec) -> Iterator[RuleViolation]:
    """Refuse what changes which rows are kept, because it changes the result. ``ps.count`` does not, and is ignored."""
    # Keras' own Embedding has neither limit nor eviction
    for name in _ROW_LIMITS:
        value = getattr(spec.ps, name)
        if value is not None:
            message = (
                f"found {value}, but under strategy {spec.strategy.name} no parameter server holds rows: "
                f"{_WITHOUT_PARAMETER_SERVERS[spec.strategy.name]}"
            )
            hint = f"leave it out (--set ps.{name}=null), or {_USE_PARAMETER_SERVERS}"
            yield RuleViolation(f"ps.{name}", message, hint)


def _check_push_fields(spec: JobSpec) -> Iterator[RuleViolation]:
    defaults = field_defaults(PushStrategy)
    for name, reason in _MEANINGLESS_UNDER_ALL_REDUCE.items():
        value = getattr(spec.strategy, name)
        if value != defaults[name]:
            message = f"found {format_value(value)}, but under strategy AllReduce {reason}"
            hint = f"leave it out (--set strategy.{name}={format_value(defaults[name])})"
            if not spec.command:
                hint += f", or {_USE_PARAMETER_SERVERS}"
            yield RuleViolation(f"strategy.{name}", message, hint)


def _check_scaling(spec: JobSpec) -> Iterator[RuleViolation]:
    """Scaling and the number of workers that it is relative to are given together or not at all."""
    strategy = spec.strategy
    if strategy.learning_rate_scaling != "none" and strategy.reference_world is None:
        yield RuleViolation(
            "strategy.learning_rate_scaling",
            f"found {strategy.learning_rate_scaling}, but strategy.reference_world is missing",
            "set strategy.reference_world to the number of workers for which the learning rate was chosen",
        )
    if strategy.learning_rate_scaling == "none" and strategy.reference_world is not None:
        yield RuleViolation(
            "strategy.reference_world",
            f"found {strategy.reference_world}, but strategy.learning_rate_scaling is none: nothing is scaled",
            "set strategy.learning_rate_scaling: linear or sqrt, or leave it out (--set strategy.reference_world=null)",
        )


def _check_global_batch(spec: JobSpec) -> Iterator[RuleViolation]:
    """Every worker has at least one record of each step, and the learning rate belongs to the size of a step."""
    strategy, most = spec.strategy, spec.workers.max
    if strategy.global_batch is None:
        return
    if strategy.global_batch < most:
        message = (
            f"found {strategy.global_batch}, but workers.max is {most}: some workers would have no record of a step"
        )
        hint = f"make it at least {most}, or lower workers.max"
        yield RuleViolation("strategy.global_batch", message, hint, conflicting_field="workers.max")
    if strategy.learning_rate_scaling != "none":
        yield RuleViolation(
            "strategy.learning_rate_scaling",
            f"found {strategy.learning_rate_scaling}, but with strategy.global_batch a step has as many records with "
            "any number of workers",
            "leave out learning_rate_scaling and reference_world, or global_batch (--set strategy.global_batch=null)",
            conflicting_field="strategy.global_batch",
        )


def _check_evaluators(spec: JobSpec) -> Iterator[RuleViolation]:
    """At least one worker trains while others evaluate."""
    evaluators, most = spec.evaluation.max_workers, spec.workers.max
    if evaluators and spec.train.evaluation_steps is None:
        message = (
            f"found {evaluators}, but train.evaluation_steps is missing: all workers share the evaluation at the end"
        )
        yield RuleViolation(
            "evaluation.max_workers", message, "give train.evaluation_steps, or leave evaluation.max_workers out"
        )
    elif evaluators and evaluators >= most:
        message = f"found {evaluators}, but workers.max is {most}: nobody would train during an evaluation"
        hint = f"make it at most {most - 1}, or raise workers.max; 0 lets all workers pause and share the evaluation"
        yield RuleViolation("evaluation.max_workers", message, hint, conflicting_field="workers.max")


def _refuse_evaluators(spec: JobSpec) -> Iterator[RuleViolation]:
    reasons = {
        "ParameterServer": "any worker evaluates a version that parameter servers keep, and training goes on",
        "Local": "a single process trains and evaluates in turn",
    }
    evaluators = spec.evaluation.max_workers
    if evaluators is not None:
        message = f"found {evaluators}, but under strategy {spec.strategy.name} {reasons[spec.strategy.name]}"
        yield RuleViolation("evaluation.max_workers", message, "leave it out, or set strategy.name: AllReduce")


_ONLY_ALL_REDUCE = {
    "learning_rate_scaling": "does not scale the learning rate",
    "reference_world": "does not scale the learning rate",
    "global_batch": "has no steps of several workers",
    "gradient_compression": "sums no gradients between workers",
    "max_dense_gradient": "sums no gradients between workers",
}
"""Fields about the steps of AllReduce, and why they mean nothing elsewhere."""


def _refuse_step_size(spec: JobSpec) -> Iterator[RuleViolation]:
    defaults = field_defaults(Strategy)
    for name, reason in _ONLY_ALL_REDUCE.items():
        value = getattr(spec.strategy, name)
        if value != defaults[name]:
            message = f"found {value}, but strategy {spec.strategy.name} {reason}"
            yield RuleViolation(f"strategy.{name}", message, "leave it out, or set strategy.name: AllReduce")


def _check_sync_mode(spec: JobSpec) -> Iterator[RuleViolation]:
    strategy, most = spec.strategy, spec.workers.max
    if strategy.grads_to_wait > most:
        message = f"found {strategy.grads_to_wait}, but workers.max is {most}: there are never so many pushes at a time"
        hint = f"make it at most {most}, or raise workers.max"
        yield RuleViolation("strategy.grads_to_wait", message, hint, conflicting_field="workers.max")
    if strategy.staleness_aware:
        message = "found true, but under mode: sync a push that is too old is computed again"
        yield RuleViolation("strategy.staleness_aware", message, "leave it out, or set strategy.mode: async")
    if strategy.get_model_steps > 1:
        message = f"found {strategy.get_model_steps}, but under mode: sync every step begins with a pull"
        yield RuleViolation("strategy.get_model_steps", message, "leave it out, or set strategy.mode: async")
    if strategy.overlap:
        message = "found true, but under mode: sync a step begins after the update of the previous step"
        yield RuleViolation("strategy.overlap", message, "leave it out, or set strategy.mode: async")


def _check_async_mode(spec: JobSpec) -> Iterator[RuleViolation]:
    for name, meaningless in (("grads_to_wait", 1), ("version_tolerance", 0)):
        value = getattr(spec.strategy, name)
        if value != meaningless:
            message = f"found {value}, but under mode: async every push is applied at once"
            yield RuleViolation(f"strategy.{name}", message, "leave it out, or set strategy.mode: sync")
