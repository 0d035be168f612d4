"""The commands of edl. Starts quickly: imports neither TensorFlow nor gRPC; learns about roles from files.

A module here is a command of that name, or what several commands share as an option. ``faces`` shows a run wherever it
is, ``local`` and ``cluster`` are what commands about either place share, ``copying`` moves files to and from volumes.
"""
