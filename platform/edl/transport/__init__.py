"""How roles talk: protobuf messages, gRPC channels for control, framed sockets for tensors.

Every connection is opened in channels.py (control) or bulk.py (tensors) and proves the job's token and
the protocol's version there. Nothing that arrives is unpickled or evaluated; sizes are checked before
memory is allocated. May import: edl.jobfile, edl.core.
"""
