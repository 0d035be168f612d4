"""How a job file is read and checked: YAML with line numbers, overrides, rules, paths, the model zoo.

All mistakes of a file are reported at once, each with its line and the valid values. ``section_type``
makes readers, writers and JSON Schemas from the annotated dataclasses of ``edl.api``;
``json_schema`` publishes the schemas.

May import: edl.core, edl.api. Never: TensorFlow, gRPC, NumPy, Kubernetes. The light client loads
it.
"""
