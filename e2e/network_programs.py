"""Programs that pods of the tests run to find and to reach one another: arguments of ``python3 -c``."""

from __future__ import annotations

ADDRESSES = """
import json, socket, struct, sys

lines = [line.split() for line in open("/etc/resolv.conf")]
server = next(line[1] for line in lines if line[0] == "nameserver")
domain = next(line[1] for line in lines if line[0] == "search")
name = f"{sys.argv[1]}.{domain}"
labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
question = labels + bytes(1) + struct.pack(">2H", 1, 1)
asking = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM)
asking.settimeout(5)
asking.sendto(struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + question, (server, 53))
answer = asking.recv(4096)
at, found = 12 + len(question), {}
for _ in range(struct.unpack(">H", answer[6:8])[0]):
    while 0 < answer[at] < 0xC0:
        at += 1 + answer[at]
    at += 2 if answer[at] else 1
    kind, _, ttl, size = struct.unpack(">2HIH", answer[at : at + 10])
    if kind == 1:
        found[socket.inet_ntoa(answer[at + 10 : at + 14])] = ttl
    at += 10 + size
print(json.dumps(found))
"""
"""Asks the cluster's DNS for the addresses of a Service of the own namespace: each with the seconds it may be kept."""

PORT = 7070
SERVER = f"""
import socket

server, taken = socket.create_server(("", {PORT})), []
while True:
    taken.append(server.accept())
"""
"""Takes connections and says nothing."""

CLIENT = f"""
import socket, sys, time

def connect():
    return socket.create_connection((sys.argv[1], {PORT}), 5)

held = connect()
held.settimeout(1)
print("connected", flush=True)
while True:
    time.sleep(0.2)
    try:
        held.send(b"x")
        print("told" if held.recv(1) == b"" else "answered", flush=True)
        break
    except TimeoutError:
        print("silent", flush=True)
    except OSError as error:
        print("told", error, flush=True)
        break
try:
    connect()
    print("reached", flush=True)
except OSError as error:
    print("refused", error, flush=True)
time.sleep(1000)
"""
"""Keeps one connection and writes to it, says each second that nobody answers, and connects anew after it was told."""
