"""How roles talk: protobuf messages over gRPC (control plane), framed sockets for tensors (bulk plane).

``control_client`` and ``bulk_client`` open the connections, which prove the job's token and the
protocol's version first. Received data is never unpickled or evaluated. Sizes are checked before memory
is allocated.

May import: edl.retry, edl.core, edl.api.
"""
