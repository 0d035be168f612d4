"""How a job is shown to people and programs: text, JSON lines, the live view, tables, plots.

The words for events and statuses stand here once (``event_text``). Text from
pods, models and file names goes through ``terminal_text`` before it reaches a terminal.

May import: edl.api, edl.core, edl.jobfile, rich. Never: deciding, asking a server, exiting.
"""
