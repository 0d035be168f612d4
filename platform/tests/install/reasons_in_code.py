"""Every reason that the code can give, read off its source: what ``edl why``, ``submit`` and ``doctor`` say.

A reason is a template: ``there is no PersistentVolumeClaim …``, where ``…`` stands for what is known only at run time.
Those of a master - why a job fails, what it warns of - are found in the core, as arguments of ``end`` and
``WarningRaised``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from install.source_modules import modules

TEXT_OF: Mapping[str, int] = {
    "JobFinding": 1,
    "PodProblem": 1,
    "_make_rule": 1,
    "PreflightFinding": 0,
    "DoctorFinding": 2,
    "WarningRaised": 0,
}
"""Calls that make a reason, and which of their arguments is its text."""
TABLES = {"_CONTAINER_PROBLEMS", "_REFUSAL_REMEDIES"}
"""Tables of a module whose rows begin with a reason: the values of a mapping, or rows of their own."""
RETURNING = {"_check_object", "_unknown_capacity", "_exceeds_every_node", "ps_oom_reason", "_describe_difference"}
RETURNING |= {"_describe_program_end", "describe_wait", "_describe_wait", "describe_missing"}
"""Functions that return a reason, alone or first of a pair."""
RAISING = {"worker/allreduce/gradient_sums.py", "worker/allreduce/state_digests.py"}
"""Modules of workers in which the message of a ``BadInputError`` becomes the reason why the job failed."""
GAP = "…"


@dataclass(frozen=True, slots=True)
class ReasonTemplate:
    """One template, and where it is in the code: ``kube/inspection/waiting.py:43``."""

    text: str
    where: str


@cache
def reasons() -> tuple[ReasonTemplate, ...]:
    """All of them, of every module; those that only pass on somebody else's words are left out."""
    return tuple(reason for module in modules() for reason in read(module.tree, module.name))


def read(tree: ast.Module, source: str) -> list[ReasonTemplate]:
    """The reasons of one module."""
    templates = _reasons(tree, [], source)
    return [reason for reason in templates if len(reason.text.replace(GAP, "").strip(" :;,.()")) > 3]


def _reasons(scope: ast.AST, known: list[ast.Assign], source: str) -> Iterator[ReasonTemplate]:
    """The reasons below a node; ``known`` holds the assignments that its names may come from, the innermost last."""
    own = list(_own(scope))
    inner = [*known, *(node for node in own if isinstance(node, ast.Assign))]
    for node in own:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from _reasons(node, inner, source)
        else:
            for expression in [*_said(node, scope), *(_raised(node) if source in RAISING else ())]:
                for text in _templates(expression, inner):
                    yield ReasonTemplate(" ".join(re.sub(r"\{\d\}", GAP, text).split()), f"{source}:{node.lineno}")  # type: ignore[attr-defined]


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a scope, without those of the functions inside it, in the order of the source."""
    waiting = [scope]
    while waiting:
        node = waiting.pop()
        if node is not scope:
            yield node
        if node is scope or not isinstance(node, ast.FunctionDef | ast.ClassDef):
            waiting.extend(reversed(list(ast.iter_child_nodes(node))))


def _said(node: ast.AST, scope: ast.AST) -> Iterator[ast.expr]:
    """The expression of each reason that a node makes."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=args) if name in TEXT_OF and len(args) > TEXT_OF[name]:
            if not (isinstance(args[0], ast.Attribute) and args[0].attr == "OK"):
                yield args[TEXT_OF[name]]
        case ast.Call(func=ast.Name(id="end_job"), args=[_, ast.Constant(value="Failed"), text, *_]):
            yield text
        case ast.Call(func=ast.Name(id="Decision"), args=[ast.Constant(value=None), text]):
            yield text
        case ast.Call(
            func=ast.Name(id="SubmitterDecision"), args=[ast.Attribute(value=ast.Name(id="SubmitterStep")), text, *_]
        ):
            yield text
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(values=rows)) if name in TABLES:
            yield from (row.elts[0] for row in rows if isinstance(row, ast.Tuple))
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Tuple(elts=rows)) if name in TABLES:
            yield from (row.elts[0] for row in rows if isinstance(row, ast.Tuple))
        case ast.Return(value=value) if isinstance(scope, ast.FunctionDef) and scope.name in RETURNING:
            first = value.elts[0] if isinstance(value, ast.Tuple) else value
            if isinstance(first, ast.Constant | ast.JoinedStr) and first is not None:
                yield first


def _raised(node: ast.AST) -> Iterator[ast.expr]:
    """The message of a ``BadInputError`` that a node makes."""
    match node:
        case ast.Call(func=ast.Name(id="BadInputError"), args=[message, *_]):
            yield message


def _templates(expression: ast.expr, known: list[ast.Assign]) -> Iterator[str]:
    """What an expression may be, with gaps; one for each assignment of a name in the innermost scope that has it."""
    match expression:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            texts = [""]
            for part in parts:
                inside = part.value if isinstance(part, ast.FormattedValue) else part
                inner_texts = list(_templates(inside, known)) or [GAP]
                texts = [text + more for text in texts for more in inner_texts]
            yield from texts
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            yield from (a + b for a in _templates(left, known) for b in _templates(right, known))
        case ast.Name(id=name):
            yield from _assigned(name, [node for node in known if node.lineno <= expression.lineno])
        case _:
            yield GAP


def _assigned(name: str, known: list[ast.Assign]) -> Iterator[str]:
    """What a name was last set to before its use, if that is text."""
    by_line = sorted(known, key=lambda node: node.lineno)
    values = [node.value for node in by_line if any(isinstance(t, ast.Name) and t.id == name for t in node.targets)]
    if values and isinstance(values[-1], ast.Constant | ast.JoinedStr | ast.BinOp):
        yield from _templates(values[-1], known)
    else:
        yield GAP
