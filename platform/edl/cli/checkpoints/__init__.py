"""What ``edl checkpoint`` needs: which run and which checkpoint is meant, and how they are shown.

Reads run directories only, of this machine or of a mounted volume; asks no cluster. NumPy is imported where values are
read, never to list: the light client has none.
"""
