"""One hostile command after another, of every method, to a parameter server: the next master has it as it was.

What a command may do it does: leases are closed, updates are held, a master is replaced. But nothing of that lasts
longer than the next master.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ps.test_ps_message_fields import refusal_of
from transport.malformed_messages import messages_with

from edl.storage.checkpoint_manifest import cut_directory
from edl.transport import edl_pb2 as pb
from edl.transport.control_methods import PsControlMethods

METHODS = [getattr(PsControlMethods, name) for name in vars(PsControlMethods) if not name.startswith("_")]
PERMITTED = frozenset(
    {None, "retryable", "bad", "busy", "cut", "incarnation", "pin", "storage", "unattached", "uninitialized"}
)
AT_ONCE = 15
"""Commands between two masters."""


class HostileTarget:
    """A parameter server, and the masters that come and go."""

    def __init__(self, start: Callable[..., Any], folder: Path) -> None:
        self.folder = folder
        self.ps = start(patience=2.0, checkpoints=folder)
        self.ps.attach()
        self.worker = self.ps.worker()
        self.worker.declare({"w": np.zeros(3, np.float32)})
        self.incarnation, self.cut = 1, 0

    def bases(self) -> list[tuple[Any, Any]]:
        """Every method with what all but one field of a message may be."""
        lease, next_cut = (self.incarnation << 32) + 1, self.cut + 1
        fields: dict[str, Any] = {"incarnation": self.incarnation, "cut": next_cut}
        directory = str(cut_directory(self.folder, next_cut))
        within = [pb.LeaseStep(lease=lease, through=0)]
        requests: dict[str, list[Any]] = {
            "Attach": [
                pb.AttachRequest(incarnation=self.incarnation, cut=self.cut, live=[lease], slots=[0] * 256),
                pb.AttachRequest(incarnation=self.incarnation + 1, restore=directory, slots=[0] * 256),
            ],
            "Revoke": [pb.RevokeRequest(incarnation=self.incarnation, leases=[lease])],
            "Prepare": [pb.PrepareRequest(**fields)],
            "Hold": [pb.HoldRequest(**fields)],
            "Snapshot": [
                pb.SnapshotRequest(**fields, within=within, pin=True),
                pb.SnapshotRequest(**fields, within=within, checkpoint=directory, keep=True),
            ],
            "Release": [pb.ReleaseRequest(**fields)],
            "Unpin": [pb.UnpinRequest(**fields)],
            "Saved": [pb.SavedRequest(**fields)],
        }
        assert set(requests) == {method.name for method in METHODS}, "a new method is walked as well"
        return [(method, base) for method in METHODS for base in requests[method.name]]

    def next_master(self) -> None:
        """Another master attaches, a worker trains, a cut is taken."""
        leases, cuts = self.ps.server._applied_steps, self.ps.server._cut_state
        self.incarnation = leases._incarnation + 1
        self.cut = max(cuts._last_finished_cut, cuts._paused_cut, self.cut)
        lease = (self.incarnation << 32) + 1
        assert self.ps.attach(self.incarnation, cut=self.cut).initialized
        assert self.worker.push(lease, 0, [1, 1, 1])[0].outcome == pb.Pushed.APPLIED
        self.cut += 1
        fields: dict[str, Any] = {"incarnation": self.incarnation, "cut": self.cut}
        channel = self.ps.channel
        applied = channel.call(PsControlMethods.Hold, pb.HoldRequest(**fields), timeout=20).applied
        assert {step.lease: step.through for step in applied}[lease] == 1
        request = pb.SnapshotRequest(**fields, within=[pb.LeaseStep(lease=lease, through=1)])
        assert not channel.call(PsControlMethods.Snapshot, request, timeout=20).waits
        assert len(self.worker.pull()[1]) == 3


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_a_parameter_server_is_told_it_is_there_for_the_next_master(
    start: Callable[..., Any], tmp_path: Path, seed: int
) -> None:
    target = HostileTarget(start, tmp_path)
    chance = random.Random(seed)
    numbers = [
        (at, n)
        for at, (method, base) in enumerate(target.bases())
        for n, _ in enumerate(messages_with(method.request, base))
    ]
    chance.shuffle(numbers)
    while numbers:
        bad_values = [list(messages_with(method.request, base)) for method, base in target.bases()]
        methods = [method for method, _ in target.bases()]
        sent_values = []
        for at, n in numbers[:AT_ONCE]:
            path, _, value, request = bad_values[at][n]
            sent_values.append(f"{methods[at].name}.{path} = {value!r:.40}")
            call = partial(target.ps.channel.call, methods[at], request, timeout=20)
            assert refusal_of(call) in PERMITTED, sent_values
        del numbers[:AT_ONCE]
        try:
            target.next_master()
        except Exception as error:
            raise AssertionError(sent_values) from error
