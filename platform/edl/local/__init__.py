"""A cluster made of processes on this machine.

The supervisor (python -m edl.local) is to processes what kubelet and Job controller are to pods; client.py is the
implementation of the port edl.core.cluster.Cluster that the master uses. May import: edl.spec, edl.core.
"""
