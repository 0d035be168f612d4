"""A whole job on a virtual clock: the real core, simulated pods, workers and PS, and faults.

``promises`` contains what must hold at every event and at the end. ``ledger_recount`` counts a
journal a second time and shares no code with the master. ``order_recount`` does the same for the
order of shuffled records.

May import: edl.core, edl.ps.applied_steps, edl.ps.cut_state, edl.api.
Never: processes, network, real time. No other room imports this one.
"""
