import tensorflow as tf
from model_zoo.dac_ctr.feature_config import BUCKETS, CATEGORIES, HASHES, NUMERIC
from model_zoo.dac_ctr.utils import get_offsets

from elasticdl.python.common.log_utils import default_logger as logger
from elasticdl_preprocessing.layers import ConcatenateWithOffset, Discretization, Hashing, LogRound, ToNumber


def transform_feature(inputs):
    """The ids of all features in one range, the number of these, and the numbers."""
    ids, counts = [], []
    for name in NUMERIC:
        layer = Discretization(BUCKETS[name])
        ids.append(layer(inputs[name]))
        counts.append(layer.num_bins())
        ids.append(LogRound(8)(inputs[name]))
        counts.append(8)
    for name in CATEGORIES:
        ids.append(Hashing(HASHES[name])(inputs[name]))
        counts.append(HASHES[name])
    logger.info("%d ids", sum(counts))
    numbers = tf.concat([ToNumber(tf.float32, 0.0)(inputs[name]) for name in NUMERIC], axis=1)
    return ConcatenateWithOffset(get_offsets(counts), axis=1)(ids), sum(counts), numbers
