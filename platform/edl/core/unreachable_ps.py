"""When a parameter server on a node that the cluster does not hear of is replaced.

A cluster takes a minute and more to give up the pods of such a node, and training stands until the PS has a
successor. But the cluster may be wrong: a kubelet that is away says nothing of the processes beside it. So two more are
asked. A PS speaks to its master every second, and a step of a worker is in only when every PS has answered it. One of
which neither is heard is deleted at once, without grace, because nobody is there to use it; one that answers is kept.

Should it live all the same, cut off together with workers, it changes nothing any more: the master and the workers that
it leads follow the placement, and leases that are closed are refused (docs/design/0002-record-accounting.md).
"""

from __future__ import annotations

from edl.api.cluster_port import Role
from edl.api.events import WarningRaised
from edl.core.events import DeletePod
from edl.core.state import JobState

SILENCE_SECONDS = 10.0
"""Ten registrations. The cluster itself takes longer to notice, so that mostly nothing is left to wait for."""

TAINT_SECONDS = 5.0
"""After the pods' conditions the cluster taints the node; before that it would give the successor a place there."""


def replace_unreachable_ps(state: JobState, now: float) -> None:
    """Give up every PS of which nobody hears; what follows is what follows a lost PS."""
    for pod in state.pods.live(Role.PS):
        pod.unreachable_noticed_at = (
            (now if pod.unreachable_noticed_at is None else pod.unreachable_noticed_at) if pod.unreachable else None
        )
        if pod.unreachable_noticed_at is None or now - pod.unreachable_noticed_at < TAINT_SECONDS:
            continue
        silent = now - max(pod.heard, state.stepped)
        if pod.is_abandoned or silent < SILENCE_SECONDS:
            continue
        pod.is_abandoned, pod.leaving_reason = True, "its node is unreachable"
        state.emit(
            WarningRaised(
                f"ps-{pod.index} is replaced: its node {pod.node} is unreachable, and neither the master nor a "
                f"worker has had an answer of it for {silent:.0f} s"
            )
        )
        state.do(DeletePod(pod.uid, 0.0))
