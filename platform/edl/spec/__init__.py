"""What a user writes and what a user reads: the JobSpec, its JSON Schema, status, events, optimizers as values.

May import: edl.core. Must never import TensorFlow, gRPC or Kubernetes: the light client loads it.
"""
