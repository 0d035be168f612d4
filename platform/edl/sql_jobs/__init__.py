"""Models from statements: ``SELECT ... LABEL ... INTO ...`` and SQLFlow's grammar.

It parses the statements, reads the rows of a query once into Parquet, decides from their statistics how each column
enters a model, writes a Keras module and a job file that a person could have written, and keeps models by name. It
never imports TensorFlow: models train and predict in processes of ``edl run``, ``edl evaluate`` and ``edl predict``.
It prints nothing.

May import: edl.cluster, edl.storage, edl.data, edl.jobfile, edl.core, edl.api. Never: TensorFlow, gRPC.
"""
