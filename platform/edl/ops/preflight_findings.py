"""Why a cluster would not take a job, in the words of the job file: what is wrong, and who can mend it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from edl.api.cluster_port import Role
from edl.cluster.kubernetes.api_errors import ApiError, ConflictError
from edl.cluster.kubernetes.resource_kinds import VOLUME_CLAIMS, ResourceKind
from edl.ops.existing_job import format_submit_time
from edl.ops.job_deletion import JobObjects, format_object_list
from edl.ops.job_forecast import GroupPlacement, PodGroup
from edl.ops.job_view import JobView
from edl.ops.namespace_quotas import NamespaceQuotas, QuotaRefusal
from edl.ops.resource_quantities import format_amount

QUOTA_HINT = "Ask for less, wait until other jobs of the namespace have ended, or have its admin raise the quota."
_FORBIDDEN_PREFIX = re.compile(r'^\S+ "[^"]*" is forbidden: ')
_MISSING_CLASS = re.compile(r"no PriorityClass with name (\S+) was found")
_MISSING_ACCOUNT = re.compile(r'serviceaccount "([^"]+)" not found')
_MISSING_NAMESPACE = re.compile(r'namespaces "([^"]+)" not found')


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """One reason.

    Attributes:
        message: what is wrong.
        hint: what can be done, and by whom.
        about: which pods it is about; empty for the job.
    """

    message: str
    hint: str = ""
    about: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        who = f"{_join_words(self.about)} pods: " if self.about else ""
        return f"  {who}{self.message}" + (f"\n    {self.hint}" if self.hint else "")


def _join_words(words: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def merge_findings(findings: Iterable[PreflightFinding]) -> list[PreflightFinding]:
    """Each reason once, with all that it is about; in the order of their first appearance."""
    found: dict[tuple[str, str], PreflightFinding] = {}
    for finding in findings:
        key = (finding.message, finding.hint)
        known = found.get(key, replace(finding, about=()))
        found[key] = replace(known, about=tuple(dict.fromkeys([*known.about, *finding.about])))
    return list(found.values())


def check_job_name(job: str, old: JobView | None, there: JobObjects, *, replaces: bool) -> list[PreflightFinding]:
    """What is wrong with the job's name: another job has it, or what is left of one."""
    if old is None:
        if not there:
            return []
        message = f"an earlier job {job} left something behind: {format_object_list(there.objects)}"
        return [PreflightFinding(message, f"Remove it first: edl delete {job}")]
    taken = f"the name {job} is taken by a job of {format_submit_time(old)}"
    if old.phase == "Deleting":
        return [PreflightFinding(f"{taken}, which is being deleted", f"Wait for that: edl delete {job}")]
    if not old.ended:
        hint = (
            f"See edl status {job}; end it with edl stop {job} --wait or remove it with edl delete {job}, "
            "or choose another name: --set name=…"
        )
        return [PreflightFinding(f"{taken}, which is at work ({old.phase})", hint)]
    if replaces:
        return []
    hint = f"Remove its objects with edl delete {job} (what is on its volumes stays), or go on with it: --resume"
    return [PreflightFinding(f"{taken}, which has ended ({old.phase})", hint)]


def check_quotas(fits: Sequence[GroupPlacement], quotas: NamespaceQuotas) -> list[PreflightFinding]:
    """Without a master, all parameter servers and one worker a job does nothing: quotas that have no room for these.

    Args:
        fits: of all pods of the job.
        quotas: those that the fits were made with.
    """
    works = any(fit.allowed for fit in fits if fit.group.role is Role.WORKER)
    refused = [(fit.group, fit.refusal) for fit in fits if not (works and fit.group.role is Role.WORKER)]
    return [
        _quota_finding(refusal, _minimum_pods(fits, crowd), quotas) for crowd, refusal in refused if refusal is not None
    ]


def _quota_finding(
    refusal: QuotaRefusal, least: Sequence[tuple[PodGroup, int]], quotas: NamespaceQuotas
) -> PreflightFinding:
    resource, pods = refusal.resource, [crowd.pod for crowd, count in least for _ in range(count)]
    room = format_amount(resource, quotas.initial_room(refusal.quota, resource))
    need = format_amount(resource, quotas.asked(refusal.quota, resource, pods))
    who = ", ".join(crowd.role.value if crowd.role is Role.MASTER else f"{n} {crowd.role}" for crowd, n in least)
    message = f"quota {refusal.quota} leaves room for {room} ({resource}); the job needs at least {need} ({who})"
    return PreflightFinding(message, QUOTA_HINT)


def _minimum_pods(fits: Iterable[GroupPlacement], refused: PodGroup) -> list[tuple[PodGroup, int]]:
    """The fewest pods that do something: how many of each crowd. The worker is one of those refused, if any is."""
    crowds = [fit.group for fit in fits]
    workers = [crowd for crowd in (refused, *crowds) if crowd.role is Role.WORKER][:1]
    others = [(crowd, crowd.count) for crowd in crowds if crowd.role is not Role.WORKER]
    return [*others, *((crowd, 1) for crowd in workers)]


def missing_object_finding(kind: ResourceKind, name: str, namespace: str) -> PreflightFinding:
    """An object that the job names and that is not there."""
    if kind is VOLUME_CLAIMS:
        return PreflightFinding(
            f"there is no PersistentVolumeClaim {name} in namespace {namespace}",
            "Create it, or change volumes or storage.claim in the job file; kubectl get pvc lists what there is.",
        )
    return PreflightFinding(
        f"there is no {kind.name} {name} in namespace {namespace}",
        "Create it, or change pod.image_pull_secrets in the job file.",
    )


def check_pod_references(
    crowd: PodGroup, classes: Sequence[str], accounts: Sequence[str] | None
) -> list[PreflightFinding]:
    """What a pod names and the cluster does not have; admission stops at the first of these, and a user should not.

    Args:
        crowd: the pod is as rendered.
        classes: the PriorityClasses that there are; empty if they are not known.
        accounts: the namespace's ServiceAccounts; None if they are not known.
    """
    spec, about = crowd.pod["spec"], (crowd.role.value,)
    priority, account = spec.get("priorityClassName"), spec.get("serviceAccountName")
    found = [_missing_class_finding(priority, classes, about)] if classes and priority not in classes else []
    return found + (
        [_missing_account_finding(account, about)] if accounts is not None and account not in accounts else []
    )


def _missing_class_finding(name: str, classes: Sequence[str], about: tuple[str, ...]) -> PreflightFinding:
    own = [known for known in classes if not known.startswith("system-")]
    known = f"there are: {', '.join(own)}" if own else "kubectl get priorityclasses lists them"
    hint = f"An admin creates it (kustomize/base has high and low), or change the job file's priorities: {known}."
    return PreflightFinding(f"there is no PriorityClass {name}", hint, about)


def _missing_account_finding(name: str, about: tuple[str, ...]) -> PreflightFinding:
    hint = "The admin of the namespace creates it (kustomize/base), or change security in the job file."
    return PreflightFinding(f"there is no ServiceAccount {name}", hint, about)


def refusal_finding(error: ApiError, crowd: PodGroup | None, classes: Sequence[str]) -> PreflightFinding:
    """What the server says to an object, or to a pod of ``crowd``.

    Args:
        classes: the PriorityClasses that there are, as far as known.
    """
    about = () if crowd is None else (crowd.role.value,)
    message = _FORBIDDEN_PREFIX.sub("", error.message)
    if namespace := _MISSING_NAMESPACE.search(message):
        hint = "Choose another with -n, or have an admin create it."
        return PreflightFinding(f"there is no namespace {namespace[1]}", hint)
    if name := _MISSING_CLASS.search(message):
        return _missing_class_finding(name[1], classes, about)
    if account := _MISSING_ACCOUNT.search(message):
        return _missing_account_finding(account[1], about)
    if isinstance(error, ConflictError):
        hint = "Choose another name, --set name=…; or remove what an earlier job of this name has left: edl delete JOB"
        return PreflightFinding(f"{message}, and it is not this job's", hint)
    return PreflightFinding(message, error.hint or "", about)
