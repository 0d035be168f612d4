"""Readers and writers of records: what a source is, and what a record range means.

Built-in readers count and read records without TensorFlow. May import: edl.spec, edl.core.
"""
