"""Where a job's pods run: the implementations of ``edl.api.cluster_port.JobCluster``.

``kubernetes`` starts pods through the API server, ``local`` starts processes on this machine,
``support.fake_cluster`` is a fake on a virtual clock. One contract suite holds all three.
"""
