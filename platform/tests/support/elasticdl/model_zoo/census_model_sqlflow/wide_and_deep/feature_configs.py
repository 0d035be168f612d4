import itertools

import tensorflow as tf
from model_zoo.census_model_sqlflow.wide_and_deep.transform_ops import (
    Bucketize,
    Concat,
    Embedding,
    Hash,
    SchemaInfo,
    Vocabulary,
)

SCHEMA = [
    SchemaInfo("age", tf.float32),
    SchemaInfo("hours_per_week", tf.float32),
    SchemaInfo("workclass", tf.string),
    SchemaInfo("education", tf.string),
]
education = Hash("education_hash", "education", "education_ids", 16)
workclass = Vocabulary("workclass_lookup", "workclass", "workclass_ids", ["private", "public", "self"])
age = Bucketize("age_bucketize", "age", "age_ids", [25.0, 40.0, 60.0])
hours = Bucketize("hours_bucketize", "hours_per_week", "hours_ids", [20.0, 40.0])

SIZES = [16, len(workclass.vocabulary_list) + 1, len(age.boundaries) + 1, len(hours.boundaries) + 1]
OFFSETS = list(itertools.accumulate([0, *SIZES[:-1]]))
group = Concat("group", [op.output for op in (education, workclass, age, hours)], "group_ids", OFFSETS)
wide = Embedding("wide", "group_ids", "wide_embedding", sum(SIZES), 1)
deep = Embedding("deep", "group_ids", "deep_embedding", sum(SIZES), 8)


def get_input_layers():
    return {info.name: tf.keras.layers.Input(name=info.name, shape=(1,), dtype=info.dtype) for info in SCHEMA}
