"""The parameter server: dense parameters, embedding rows and their slot variables, applied and versioned.

Handles arrays, not models: never imports TensorFlow, never runs user code.
"""
