NUMERIC = ["I1", "I2"]
CATEGORIES = ["C1", "C2", "C3"]
LABEL = "label"
BUCKETS = {"I1": [1.0, 3.0], "I2": [10.0, 100.0]}
HASHES = {"C1": 16, "C2": 16, "C3": 32}
