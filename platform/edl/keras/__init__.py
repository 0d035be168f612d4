"""The adapter to a user's Keras model: contract, network, embeddings, loss, metrics, callbacks, export.

It turns a model into functions over flat float32 arrays and refuses by name what it cannot train.
The runtime that calls it is ``edl.worker``.

May import: TensorFlow, Keras, edl.layers, edl.numerics, edl.api, edl.core. Never: edl.worker, gRPC.
"""
