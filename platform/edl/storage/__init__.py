"""What outlives a process: journal, checkpoints and run directories; reads and writes their formats.

May import: edl.numerics, edl.jobfile, edl.core, edl.api. Knows nothing of roles: it stores what they pass in.
"""
