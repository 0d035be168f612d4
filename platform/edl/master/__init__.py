"""The job's coordinator: a thin shell around edl.core.job.

Feeds events and the time into JobState.handle and executes the commands that come out. Never imports TensorFlow, never
runs user code.
"""
