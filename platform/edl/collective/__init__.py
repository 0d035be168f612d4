"""All-reduce among the workers of one round: sums of buffers, and every rank's small control message.

A *round* is a set of ranks that the master announced under a number. ``CollectiveListener`` accepts neighbours over the
life of a process, ``Communicator`` reduces among the ranks of one round until it is closed or broken. Data travels
through TCP or Unix sockets, or through memory that two processes of one machine share. Reductions run in C++
(``native_ring``, built from ``edl/numerics/native``) or in NumPy (``numpy_ring``), with the same bits and frames.
docs/design/0011 describes it.

May import: edl.api, edl.numerics, edl.transport, NumPy. Never: Keras, TensorFlow, the master. It decides
nothing about rounds: who is in one, and what follows from a loss, is told by its caller.
"""
