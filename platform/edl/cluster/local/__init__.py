"""A cluster made of processes on this machine.

The supervisor (``python -m edl.cluster.local``) is to processes what kubelet and Job controller are to pods.
``local_cluster`` is the cluster port that a master uses: it sends requests to the supervisor in the protocol of
``supervisor_protocol``. ``supervisor`` decides which processes run, ``role_process`` starts one of them,
``supervisor_server`` answers masters, and ``orphan_reaper`` kills roles whose supervisor died.

May import: edl.api, edl.core, the standard library. It starts in a tenth of a second.
"""
