"""What runs first in every container: ``edl-role master|ps|worker|submit SPEC``.

``init`` is process 1: it starts the role as its child, forwards signals, reaps, copies output (``log``) and ends as the
role ends. ``preparation`` runs in that child before it becomes the role: it finds or makes the run directory
(``run_directory``, ``runs``) and says who the role is. Process 1 itself stays small: it imports neither of them.

May import: edl.storage, edl.jobfile, edl.core. Never: gRPC, NumPy, TensorFlow, the Kubernetes client.
"""
