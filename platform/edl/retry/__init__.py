"""How an attempt that failed is made again: counted, limited, and after a delay with jitter.

``attempts`` has the one loop's counter and the one source of jitter. The delays are those of
``edl.core.backoff``. Which errors are temporary is decided by the caller.

May import: edl.core. Never: a network library, threads.
"""
