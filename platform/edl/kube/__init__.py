"""A cluster made of pods: the only importer of the kubernetes client. Filled by the Kubernetes issue.

May import: edl.spec, edl.core.
"""
