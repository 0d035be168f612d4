"""A role that does what a test tells it, over a socket; started by ``fake_supervisor.py``.

It reports to ``$EDL_TEST_STAGE`` with its environment and its pid, then obeys one word a line: ``exit N``,
``polite N`` (exit N on SIGTERM), ``stubborn`` (ignore SIGTERM), ``winds up`` (say ``told`` on SIGUSR1),
``child`` (start a process of its own), ``say TEXT`` (print). Its end closes the connection, which is how a test sees
that it is gone.
"""

import json
import os
import signal
import socket
import sys


def obey(stage: socket.socket, line: str) -> None:
    word, _, rest = line.partition(" ")
    if word == "exit":
        sys.exit(int(rest))
    elif word == "polite":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(rest)))
    elif word == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif word == "winds":
        signal.signal(signal.SIGUSR1, lambda *_: stage.sendall(b"told\n"))
    elif word == "child" and os.fork() == 0:
        signal.pause()
    elif word == "say":
        print(rest)
    stage.sendall(b"ok\n")


def main() -> None:
    stage = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stage.connect(os.environ["EDL_TEST_STAGE"])
    variables = {name: value for name, value in os.environ.items() if name.startswith("EDL_")}
    report = {"pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "env": variables}
    stage.sendall(json.dumps(report).encode() + b"\n")
    for line in stage.makefile("r"):
        obey(stage, line.strip())


main()
