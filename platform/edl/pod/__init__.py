"""What runs first in every container: ``edl-role master|ps|worker|submit SPEC``.

``init_process`` is process 1: it starts the role as its child, forwards signals, reaps, copies output to the log file
and ends as the role ends. ``role_preparation`` runs in that child before it becomes the role: it finds or makes the run
directory (``edl.storage.run_directory``) and says who the role is. Process 1 itself stays small: it imports neither.

May import: edl.storage, edl.jobfile, edl.core. Never: gRPC, NumPy, TensorFlow, the Kubernetes client.
"""
