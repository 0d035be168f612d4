"""A job made of pods: manifests, the cluster port over the API server, and what the command line does with a cluster.

Manifests are plain dicts, rendered without a cluster (``render``); ``api`` is the only module that imports the
Kubernetes client, on use, so that rendering stays light. Decisions (what a pod's status means, how fast to ask, when a
Lease has passed) are functions over values; everything that talks is a thin shell around them.

May import: edl.spec, edl.core. Never: printing, prompting, exiting (edl.cli does), TensorFlow, gRPC.
"""
