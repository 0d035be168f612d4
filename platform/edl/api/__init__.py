"""What rooms say to each other: definitions, no logic.

The JobSpec, journal entries, events, the job's status, variables and tables, the cluster port,
errors: frozen values with typed fields.

May import: typing, dataclasses, enum and the like, and no other room. Never: files, YAML, clocks,
threads, third-party packages.
"""
