"""The commands of edl: one file a command; ``app`` lists them.

It starts in less than 100 ms: it imports neither TensorFlow nor gRPC, and learns about roles from
files. What a command does stands in ``edl.ops``, how it looks in ``edl.reporting``.

May import: edl.sql_jobs, edl.ops, edl.cluster, edl.reporting, edl.storage, edl.data, edl.jobfile,
edl.core, edl.api.
"""
