import tensorflow as tf
from model_zoo.census_wide_deep_model.feature_info_util import (
    BUCKETIZE,
    HASH,
    LOOKUP,
    TransformOp,
    get_id_boundaries,
)

FEATURES = [
    TransformOp(HASH, "education", tf.string, 16),
    TransformOp(LOOKUP, "workclass", tf.string, ["private", "public", "self"]),
    TransformOp(BUCKETIZE, "age", tf.float32, [25.0, 40.0, 60.0]),
    TransformOp(BUCKETIZE, "hours_per_week", tf.float32, [20.0, 40.0]),
]
BOUNDARIES = get_id_boundaries(FEATURES)
