"""Where a job's pods run: the implementations of ``edl.api.cluster_port.JobCluster``.

``kubernetes`` starts pods through the API server, ``local`` starts processes on this machine, and
``support.fake_cluster`` is a fake on a virtual clock. All three pass one contract suite.

May import: edl.transport, edl.storage, edl.jobfile, edl.retry, edl.core, edl.api. Never: TensorFlow, the
roles.
The Kubernetes client is imported in ``kubernetes`` only.
"""
