"""A cluster made of processes on this machine.

The supervisor (``python -m edl.cluster.local``) is to processes what kubelet and Job controller are
to pods. ``local_cluster`` is the cluster port that a master uses: it talks to the supervisor in the
protocol of ``supervisor_protocol``. ``restart_policy``, ``exit_status``, ``pod_table`` and
``role_environment`` decide; ``supervisor``, ``event_loop``, ``role_process`` and ``orphan_reaper``
act.

May import: edl.api, edl.core, the standard library. It starts in a tenth of a second.
"""
