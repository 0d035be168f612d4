"""The worker process: leases, reading ahead, steps, pushes, graceful shutdown.

A worker holds nothing that cannot be lost: parameters are on the parameter servers, the ledger is in
the master's journal. ``edl.keras`` adapts the user's model; ``local_strategy`` is strategy Local,
which needs no master.

May import: edl.keras, edl.collective, edl.reporting, edl.transport, edl.storage, edl.data, edl.numerics,
edl.jobfile, edl.retry, edl.core, edl.api.
"""
