"""Model zoos become images: what goes into one, and the conversation with a Docker engine that makes and pushes it.

``recipe`` (the Dockerfile), ``context`` (the files) and ``verdict`` (is the image one that jobs can run?) decide over
values; ``connection``, ``build`` and ``push`` talk to the engine through its API, with the ``docker`` package, which
only this package imports.

May import: edl.jobfile, edl.core. Never: printing, prompting, exiting (edl.cli does).
"""
