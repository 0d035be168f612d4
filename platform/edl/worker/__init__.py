"""The worker process: leases, reading ahead, steps, pushes, graceful shutdown.

It holds nothing that cannot be lost: parameters live on the parameter servers, the ledger in the
master's journal. ``edl.keras`` has the user's model; ``local_strategy`` is strategy Local, which
needs no master.
"""
