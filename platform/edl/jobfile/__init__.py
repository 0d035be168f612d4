"""What a user writes and what a user reads: the JobSpec, its JSON Schema, how status and events are written.

    job, placement     the JobSpec: frozen values whose annotations say all there is to know about each field
    load, paths        a file as a JobSpec, every mistake told at once; what its paths mean on this machine
    report, event      how status and events (edl.api) are read and written: status.json, events.jsonl, --json
    closing            a summary in words, for people
    optimizer          an optimizer as values, for worker, PS and checkpoints
    schema             the published JSON Schemas, generated from the same annotations
    section, kind …    how annotations become readers, writers and schemas; node, document, override: the tree of a file

May import: edl.core, edl.api. Must never import TensorFlow, gRPC or Kubernetes: the light client loads it.
"""
