from collections import namedtuple

TransformOp = namedtuple("TransformOp", ["kind", "input", "dtype", "parameter"])
BUCKETIZE, HASH, LOOKUP = "bucketize", "hash", "lookup"


def get_id_boundaries(infos):
    sizes = [count_ids(info) for info in infos]
    return [sum(sizes[:at]) for at in range(len(sizes) + 1)]


def count_ids(info):
    return info.parameter if info.kind == HASH else len(info.parameter) + 1
