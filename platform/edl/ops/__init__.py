"""What commands do: submit, diagnose, check a cluster, delete, copy files, build images, find local runs.

Functions return values and ``edl.cli`` prints them; a master never imports this package. The Docker
client is imported here only.

May import: edl.cluster, edl.reporting, edl.storage, edl.data, edl.jobfile, edl.retry, edl.core,
edl.api. Never: TensorFlow, gRPC.
"""
