"""The job's coordinator: a thin shell around ``edl.core.job``.

It feeds events and the time into the core and executes the commands that come out.

May import: edl.cluster, edl.reporting, edl.transport, edl.storage, edl.data, edl.jobfile, edl.retry,
edl.core, edl.api. Never: TensorFlow, user code.
"""
