"""What the packages ``elasticdl``, ``elasticdl_preprocessing`` and ``recordio`` share.

They contain the names of ElasticDL that users' model modules import, written for EDL. They may import
``edl.api.errors``, ``edl.data`` and ``edl.layers``; no code of EDL imports them.
"""
