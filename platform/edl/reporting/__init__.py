"""Shows jobs to people and programs: text, JSON lines, the live view, tables, plots.

``event_text`` has the words for events and statuses. Text from pods, models and file names is sanitized by
``terminal_text`` before it reaches a terminal.

May import: edl.jobfile, edl.core, edl.api, rich. Never: deciding, asking a server, exiting.
"""
