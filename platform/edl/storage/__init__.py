"""What outlives a process: journal, checkpoints and run directories; their formats, written and read.

May import: edl.jobfile, edl.core. Knows nothing of roles: it keeps what they hand it.
"""
