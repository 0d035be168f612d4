"""The parameter server: dense parameters, embedding rows and their slot variables, applied and versioned.

Handles arrays, not models: never imports TensorFlow, never runs user code. May import: edl.transport, edl.storage, edl.jobfile,
edl.core. docs/design/0002-record-accounting.md is the protocol.

Decided in ``leases`` (which pushes enter), ``cuts`` (which wait, what is pinned) and ``declaration`` (what workers must
agree on). Held behind the port ``store`` by ``table_store``: a ``slab`` and, behind the port ``table``, tables in C++
(``native_store``, ``native_table``) or in NumPy (``numpy_store``, ``numpy_table``); ``stores`` says which and why.
``optimizers`` move it, ``snapshot`` copies it, ``checkpoints`` and ``shard_writer`` bring it to disk and back.
``parameter_server`` joins all of them behind one lock, ``contents`` is what it holds at the moment. Around it are
``bulk_plane`` with ``requests`` for workers, ``control_plane`` for the master, ``registration`` and ``process``.
"""
