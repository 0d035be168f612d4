"""Decisions, as pure functions of state, event and time.

Nothing here reads a clock, draws a random number, opens a file, starts a thread or logs: time and
randomness are arguments, reasons are results. May import: edl.api, the standard library's
pure parts, and nothing else. Who executes the decisions: the shells in edl.master, edl.ps and edl.worker.
"""
