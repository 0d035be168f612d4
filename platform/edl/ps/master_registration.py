"""Telling the master where this parameter server is, for as long as both live.

The master attaches after each registration that it did not know of. Registering every second costs it nothing and is
how a restarted master finds the PS that it has. With it goes what people are told of this process.

A process that was told to go says so in the same way and serves on until the master lets it end: by then what it holds
is in a checkpoint. Without a master nobody could take one, and it ends at once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from edl.api.errors import EdlError, JobFailedError, RetryableError
from edl.transport import edl_pb2 as pb
from edl.transport.control_client import ControlChannel
from edl.transport.control_methods import MasterMethods
from edl.transport.peer_errors import PeerRefusedError
from edl.transport.process_identity import ProcessIdentity

log = logging.getLogger(__name__)

_REGISTER_PERIOD = 1.0  # seconds between registrations that were accepted
_RETRY_PAUSE = 0.1  # seconds after one that was not
_REGISTER_DEADLINE = 2.0  # seconds for one call
_LEAVE_PERIOD = 0.1  # seconds between two questions of a process that was told to go
_LEAVE_DEADLINE = 5.0  # seconds for one such question: a master that is slow is not one that is gone
_MASTER_LOST_SECONDS = 1.0  # seconds for which such a process asks a master that refuses connections
_PERMANENT_KINDS = frozenset({"token", "version"})


def make_registration(identity: ProcessIdentity, control_address: str, bulk_address: str) -> pb.RegisterRequest:
    """What a parameter server says of itself."""
    return pb.RegisterRequest(
        member=pb.Member(role=identity.role.value, index=identity.index, uid=identity.uid),
        pid=os.getpid(),
        control_address=control_address,
        bulk_address=bulk_address,
    )


def keep_registered(
    channel: ControlChannel,
    registration: pb.RegisterRequest,
    stopping: threading.Event,
    *,
    lost_timeout: float,
    figures: Callable[[], pb.PsFigures] = pb.PsFigures,
    heard_of_master: Callable[[int], None] = lambda incarnation: None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Register until ``stopping`` is set and the master lets go; logs when it goes away and when it comes back.

    Args:
        channel: to the master.
        registration: what is said each time.
        stopping: set when this process is told to go.
        lost_timeout: seconds without a master after which nobody needs this process any more.
        figures: what people are told, asked for each time.
        heard_of_master: told which incarnation of the master has answered.
        clock: monotonic seconds.

    Raises:
        Refused: the master does not take the token or speaks another version.
        JobFailedError: the master was away for longer than ``lost_timeout``.
    """
    said: object = ()
    heard = clock()
    known = False
    while not stopping.is_set():
        problem = _register_once(channel, registration, figures(), heard_of_master)
        if problem is None:
            known, heard = True, clock()
        elif clock() - heard > lost_timeout:
            raise JobFailedError(
                f"no master for {lost_timeout:g} s (master.lost_timeout): {problem.message}", where=channel.address
            )
        if type(problem) is not said:  # while a master is away the text changes with every try, its meaning does not
            log.info("%s", f"waits for the master: {problem}" if problem else f"registered with {channel.address}")
            said = type(problem)
        stopping.wait(_RETRY_PAUSE if problem else _REGISTER_PERIOD)
    if known:
        _serve_until_released(channel, registration, figures, clock)


def _register_once(
    channel: ControlChannel,
    registration: pb.RegisterRequest,
    figures: pb.PsFigures,
    heard_of_master: Callable[[int], None],
) -> EdlError | None:
    """One try; what was wrong, if another one makes sense."""
    registration.figures.CopyFrom(figures)
    try:
        heard_of_master(channel.call(MasterMethods.Register, registration, deadline=_REGISTER_DEADLINE).incarnation)
    except RetryableError as error:
        return error
    except PeerRefusedError as error:
        if error.kind in _PERMANENT_KINDS:
            raise
        return error
    return None


def _serve_until_released(
    channel: ControlChannel,
    registration: pb.RegisterRequest,
    figures: Callable[[], pb.PsFigures],
    clock: Callable[[], float],
) -> None:
    """Serve on until the master says that this process may end, or does not answer any more."""
    registration.leaving = True
    log.info("told to go: serves until what it holds is in a checkpoint")
    answered = clock()
    while True:
        registration.figures.CopyFrom(figures())
        try:
            reply = channel.call(MasterMethods.Register, registration, deadline=_LEAVE_DEADLINE)
        except PeerRefusedError as error:
            log.info("ends: the master refuses this process: %s", error)
            return
        except RetryableError as error:
            if clock() - answered >= _MASTER_LOST_SECONDS:
                log.info("ends: no master is there that could take a checkpoint: %s", error)
                return
        else:
            if reply.may_end:
                log.info("ends: the master lets it")
                return
            answered = clock()
        time.sleep(_LEAVE_PERIOD)
