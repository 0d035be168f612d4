"""Decisions, as pure functions of state, event and time.

Nothing here reads a clock, draws a random number, opens a file, starts a thread or logs: time and
randomness are arguments, reasons are results. The shells in edl.master, edl.ps and edl.worker
execute the decisions.

May import: edl.api and pure parts of the standard library. Never: anything else.
"""
