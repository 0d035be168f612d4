"""A job made of pods: manifests, the cluster port over the API server, what the command line does with a cluster.

``manifests`` renders a job without a cluster; ``pods`` is the cluster port; ``platform`` is what a master in a pod
stands on; ``submission``, ``inspection``, ``removal``, ``doctor`` and ``copying`` are what people do, as values that
the command line prints. Below all of them: ``api`` (requests), ``stream`` (watches, logs), ``errors``, ``kinds`` and
``names``.

Manifests are plain dicts. ``connection`` is the only module that imports the Kubernetes client, so that rendering, and
a master in its pod, stay light. Decisions (what a pod's status means, how fast to ask, whether a Lease has passed) are
functions over values; everything that talks is a thin shell around them.

May import: edl.jobfile, edl.core. Never: printing, prompting, exiting (edl.cli does), TensorFlow, gRPC.
"""
