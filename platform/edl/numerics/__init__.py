"""Arithmetic on parameters: embedding tables, optimizers, initializers, merging of gradients.

Tables exist in C++ (``native_table``, built from ``native/``) and in NumPy (``numpy_table``, the
reference). Both pass one contract suite. Results are equal bit for bit on every machine
(``portable_math``). docs/design/0007 describes the table.

May import: edl.jobfile, edl.core, edl.api, NumPy. Never: TensorFlow, gRPC, threads that nobody owns.
"""
