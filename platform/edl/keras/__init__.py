"""The adapter to a user's Keras model: contract, network, embeddings, loss, metrics, callbacks, export.

It converts a model to functions of flat float32 arrays (parameter servers), or trains it in place and hands out what is
to be summed over ranks (AllReduce). It refuses models that it cannot train with an error that names the unsupported
part. ``edl.worker`` calls it.

May import: TensorFlow, Keras, edl.layers, edl.reporting, edl.transport, edl.storage, edl.data, edl.numerics,
edl.jobfile, edl.core, edl.api. Never: edl.worker, gRPC.
"""
