"""A JobSpec as manifests: plain values, rendered without a cluster, and what makes a spec unfit for one.

May import: edl.jobfile, edl.core, names and kinds. Never: the API server, a clock, chance.
"""
