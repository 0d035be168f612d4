"""How roles talk: protobuf messages over gRPC (control plane), framed sockets for tensors (bulk plane).

Connections are opened in ``control_client`` and ``bulk_client``, and prove the job's token and the
protocol's version there. Nothing that arrives is unpickled or evaluated; sizes are checked before
memory is allocated.

May import: edl.api, edl.core.
"""
