"""A job on its way to a cluster: whether it would be taken, what is free, created whole or not at all, and begun."""
