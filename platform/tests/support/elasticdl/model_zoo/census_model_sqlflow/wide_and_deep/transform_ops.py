from collections import namedtuple

Vocabulary = namedtuple("Vocabulary", ["name", "input", "output", "vocabulary_list"])
Hash = namedtuple("Hash", ["name", "input", "output", "hash_bucket_size"])
Bucketize = namedtuple("Bucketize", ["name", "input", "output", "boundaries"])
Concat = namedtuple("Concat", ["name", "input", "output", "id_offsets"])
Embedding = namedtuple("Embedding", ["name", "input", "output", "input_dim", "output_dim"])
SchemaInfo = namedtuple("SchemaInfo", ["name", "dtype"])
