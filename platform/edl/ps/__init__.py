"""The parameter server: dense parameters, embedding rows and their slot variables, updated and versioned.

``parameter_server`` joins its parts behind one lock and admits each (lease, step) once;
``push_updates`` and ``sync_updates`` turn pushes into updates; ``model_state`` holds the
parameters; ``shard_writer`` and ``shard_restore`` take them to disk and back. ``bulk_handler``
answers workers, ``control_service`` the master. docs/design/0002 specifies the protocol.

May import: edl.transport, edl.storage, edl.numerics, edl.jobfile, edl.retry, edl.core, edl.api.
Never: TensorFlow, user code.
"""
