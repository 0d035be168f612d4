"""All-reduce among the workers of one round: sums of buffers, and every rank's small control message.

A *round* is a set of ranks that the master announced under a number. ``CollectiveListener`` accepts
neighbours for the life of a process. ``Communicator`` reduces among the ranks of one round until it
is closed or broken. Data goes through TCP or Unix sockets, or through memory that two processes of
one machine share. Reductions run in C++ (``native_ring``, built from ``edl/numerics/native``) or in
NumPy (``numpy_ring``), with the same bits and frames. docs/design/0011 describes the protocol.

May import: edl.transport, edl.numerics, edl.retry, edl.core.backoff, edl.api, NumPy. Never: Keras,
TensorFlow, the master.
This package makes no decision about rounds: the caller decides which ranks are in a round, and what
follows from a loss.
"""
