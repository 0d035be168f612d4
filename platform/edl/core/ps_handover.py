"""A parameter server that was told to go loses nothing: its successor begins where it ends.

A PS that gets SIGTERM tells the master and goes on serving until it may end. The master takes a *kept* cut: all PS
copy their state and hold every later update until ``ReleaseCut``, so that nothing is done that the checkpoint lacks.
Once the checkpoint is on disk the PS is handed over, which is journaled: it ends, its successor loads the checkpoint,
leases live on, and with the last missing PS the updates are released.

Whatever goes wrong (its grace is over, the checkpoint cannot be written) falls back to what follows the loss of a PS:
back to the newest checkpoint, counted. The protocol is in docs/design/0002-record-accounting.md.
"""

from __future__ import annotations

from edl.api.events import WarningRaised
from edl.api.journal_entries import ParametersHandedOver
from edl.core import snapshots
from edl.core.cuts import CutStage
from edl.core.decision import Decision
from edl.core.events import CheckpointSaveFinished, DeletePod, MayEnd, PsLeaving, ReleaseCut
from edl.core.job_pod import JobPod
from edl.core.state import JobState


def handle_ps_leaving(state: JobState, event: PsLeaving, now: float) -> None:
    """A PS was told to go: answer whether it may end, and see to it that it may soon."""
    decided = _decide_may_end(state, state.pods.pods.get(event.uid))
    if not decided.value and event.uid not in state.leaving_ps:
        state.leaving_ps.add(event.uid)
        state.cuts_blocked_until = min(state.cuts_blocked_until, now)  # its grace does not wait
        if state.paused_cut and event.uid in state.paused_ps:
            _hand_over_parameters(state, state.paused_cut)  # it holds its updates since that cut already
            decided = _decide_may_end(state, state.pods.pods.get(event.uid))
    state.do(MayEnd(decided.value, decided.reason))


def delete_lingering_ps(state: JobState, pod: JobPod) -> None:
    """A PS speaks as one that nobody told to go. If it was handed over, its successor waits until it has gone.

    Whoever has the job's token can say in its name that it was told to go.
    """
    if pod.uid not in state.pods.handed_over_ps or not pod.live or pod.is_abandoned or state.ended or not state.synced:
        return
    pod.is_abandoned, pod.leaving_reason = True, "it was handed over"
    state.emit(WarningRaised(f"ps-{pod.index} was handed over and does not go: it is deleted"))
    state.do(DeletePod(pod.uid, 0.0))


def _decide_may_end(state: JobState, pod: JobPod | None) -> Decision[bool]:
    """Whether a PS may end: nothing is lost with it, or nobody can help that."""
    if not state.synced:
        return Decision(False, "the master has just started and looks who is there")
    if pod is None or not pod.live:
        return Decision(True, "the cluster does not show this pod")
    if pod.uid in state.pods.handed_over_ps:
        return Decision(True, f"checkpoint {state.paused_cut} has all that it holds")
    if pod.uid in state.unsaved_ps:
        return Decision(True, state.unsaved_ps[pod.uid])
    if not state.settings.durable:
        return Decision(True, "the job has no volume for checkpoints")
    if state.pods.parameter_holders.get(pod.index) != pod.uid:
        return Decision(True, "it holds no parameters")
    return Decision(False, "what it holds is not in a checkpoint yet")


def advance_handover(state: JobState, now: float) -> None:
    """Begin the kept cut that somebody waits for."""
    state.leaving_ps = {uid for uid in state.leaving_ps - state.unsaved_ps.keys() if state.pods.is_live(uid)}
    if state.training is None or not state.leaving_ps:
        return
    if state.is_training_over() and state.checkpoint is not None and state.checkpoint.step == state.step:
        _hand_over_parameters(state, state.checkpoint.cut)  # no worker will change anything any more
        return
    if state.cut is not None and state.cut.awaits_copies and not state.cut.keep:
        snapshots.abort_cut(
            state, "a parameter server was told to go: one is taken that updates are held after", now, 0
        )
    if snapshots.can_begin_cut(state, now):
        snapshots.begin_cut(state, checkpoint=True, pin=False, keep=True)


def handle_save_finished(state: JobState, event: CheckpointSaveFinished, now: float) -> None:
    """A checkpoint is on disk, or could not be written; with a kept one, a planned end may go on."""
    cut = state.cut
    snapshots.finish_save(state, event, now)
    if cut is None or not cut.keep or cut.number != event.cut or cut.stage is not CutStage.SAVING:
        return
    if event.error:
        why = f"checkpoint {event.cut} was not written: {event.error}"
        state.do(ReleaseCut(event.cut))
        state.unsaved_ps.update(dict.fromkeys(state.leaving_ps, why))
    else:
        state.paused_ps = frozenset(cut.versions)
        _hand_over_parameters(state, event.cut)
        if not state.paused_cut:  # whoever was told to go has gone meanwhile
            state.do(ReleaseCut(event.cut))


def _hand_over_parameters(state: JobState, cut: int) -> None:
    """What these PS hold is in a checkpoint, and nothing enters any more that is not."""
    for uid in sorted(state.leaving_ps):
        pod = state.pods.pods.get(uid)
        if pod is not None and state.pods.parameter_holders.get(pod.index) == uid:
            state.record(ParametersHandedOver(index=pod.index, ps=uid, cut=cut))
    state.leaving_ps.clear()
