"""Being told to go: SIGTERM, noticed at once also while the main thread is inside TensorFlow.

Python runs signal handlers between bytecodes of the main thread, and importing TensorFlow or running a step can keep
that thread in C++ for seconds. So the handler of the interpreter's C level writes to a pipe, and a thread reads it.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable


def on_sigterm(act: Callable[[], None]) -> None:
    """Call ``act`` once, on a thread of its own, when SIGTERM arrives. SIGINT is ignored from now on.

    A terminal's Ctrl-C reaches every process of the job; the supervisor decides what it means.
    Call from the main thread.
    """
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)

    def wait() -> None:
        with reading, writing:
            while reading.recv(1)[0] != signal.SIGTERM:
                pass
            act()

    threading.Thread(target=wait, name="sigterm", daemon=True).start()


def end_process(code: int) -> None:
    """End this process now, whatever its threads do.

    The one place that does so, for a worker that is told to go and for one that is done. In the first case the main
    thread may be in C++ for seconds and cannot be interrupted; in the second taking TensorFlow apart would take as
    long. A worker holds nothing that is lost with it, and logging's handlers write through.
    """
    os._exit(code)
