"""A cluster made of processes on this machine.

The supervisor (``python -m edl.cluster.local``, started by ``launch``) is to processes what kubelet and Job controller are to
pods; ``client`` is the implementation of the port ``edl.api.cluster_port.Cluster`` that the master uses. May import:
edl.jobfile, edl.core. Starts in a tenth of a second: imports neither edl.jobfile nor anything outside the standard library.

* decisions: ``restart`` (when a dead master starts again), ``ending`` (what an exit code means), ``pods`` (what a
  change means for a pod), ``wire`` (the protocol), ``roles`` (how a role starts);
* effects: ``supervisor`` on its ``loop``, ``process``, ``server``, ``record`` (what it writes), ``runtime`` (its
  private folder), ``lineage`` and ``guard`` (nobody outlives their parent).
"""
