"""A role that does what a test tells it, over a socket; started by ``fake_supervisor.py``.

It reports to ``$EDL_TEST_HARNESS`` with its environment and its pid, then obeys one word a line: ``exit N``,
``on-sigterm N`` (exit N on SIGTERM), ``ignore-sigterm``, ``on-sigusr1`` (say ``got-sigusr1`` on SIGUSR1),
``child`` (start a process of its own), ``say TEXT`` (print). Its end closes the connection, which is how a test sees
that it is gone.
"""

import json
import os
import signal
import socket
import sys


def obey(connection: socket.socket, line: str) -> None:
    word, _, rest = line.partition(" ")
    if word == "exit":
        sys.exit(int(rest))
    elif word == "on-sigterm":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(rest)))
    elif word == "ignore-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif word == "on-sigusr1":
        signal.signal(signal.SIGUSR1, lambda *_: connection.sendall(b"got-sigusr1\n"))
    elif word == "child" and os.fork() == 0:
        signal.pause()
    elif word == "say":
        print(rest)
    connection.sendall(b"ok\n")


def main() -> None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(os.environ["EDL_TEST_HARNESS"])
    variables = {name: value for name, value in os.environ.items() if name.startswith("EDL_")}
    report = {"pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "env": variables}
    connection.sendall(json.dumps(report).encode() + b"\n")
    for line in connection.makefile("r"):
        obey(connection, line.strip())


main()
