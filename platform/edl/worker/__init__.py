"""Runs the user's model: the only importer of TensorFlow and Keras.

Holds nothing that cannot be lost: parameters live on the PS, the ledger in the master's journal.
"""
