"""A job made of pods: the API client, manifests, the cluster port, leader election, the status ConfigMap.

``api_client`` makes requests and reads watches and logs, ``job_manifests`` renders a job without a
cluster, ``kube_cluster`` is the cluster port, ``master_backend`` is what a master in a pod stands
on. Manifests are plain dicts. What commands do with a cluster is in ``edl.ops``.
``kubeconfig`` alone imports the Kubernetes client, so that a master starts without it.

May import: edl.api, edl.core, edl.jobfile. Never: printing, prompting, exiting, TensorFlow, gRPC.
"""
