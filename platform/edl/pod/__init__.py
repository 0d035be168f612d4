"""The first process in every container: ``edl-role master|ps|worker|submit SPEC``.

``init_process`` is process 1: it starts the role as its child, forwards signals, reaps, copies output to the log file
and exits with the role's exit code. ``role_preparation`` runs in the child before it becomes the role: it finds or
creates the run directory (``edl.storage.run_directory``) and sets the role's environment. Process 1 stays small because
it imports neither.

May import: edl.storage, edl.jobfile, edl.api. Never: gRPC, NumPy, TensorFlow, the Kubernetes client.
"""
