"""How a job file is read and checked: YAML with line numbers, overrides, rules, paths, the model zoo.

Every mistake of a file is told at once, each with its line and what is allowed. ``section_type``
turns the annotated dataclasses of ``edl.api`` into readers, writers and JSON Schemas;
``json_schema`` publishes these.

May import: edl.core, edl.api. Never: TensorFlow, gRPC, NumPy, Kubernetes. The light client loads
it.
"""
