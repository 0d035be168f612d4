"""Write ratings to train on, into OUT/train and OUT/test. Needs edl-platform[train].

Users and items have hidden tastes of two dimensions; who likes what is decided by them, with some noise. Few users are
frequent and most are rare, as in real logs.
"""

import argparse
from pathlib import Path

import numpy as np

from edl.data import Writer, serialize_example

USERS, ITEMS = 200_000, 1_000


def records(count, seed=0):
    rng = np.random.default_rng(seed)
    user_taste = np.random.default_rng(1).normal(size=(USERS, 2))
    item_taste = np.random.default_rng(2).normal(size=(ITEMS, 2))
    users = np.minimum(rng.zipf(1.2, count) - 1, USERS - 1)
    items = rng.integers(0, ITEMS, count)
    liked = (user_taste[users] * item_taste[items]).sum(axis=1) + 0.2 * rng.normal(size=count) > 0
    for user, item, like in zip(users, items, liked, strict=True):
        yield serialize_example({"user": int(user), "item": int(item), "liked": float(like)})


def main(out, count=20_000):
    for part, size, seed in (("train", count, 3), ("test", count // 10, 4)):
        folder = Path(out) / part
        folder.mkdir(parents=True, exist_ok=True)
        with Writer(folder / "ratings.recordio") as writer:
            for record in records(size, seed):
                writer.write(record)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", help="a folder; it is made")
    parser.add_argument("records", metavar="RECORDS", nargs="?", type=int, default=20_000, help="to train on; 20000")
    given = parser.parse_args()
    main(given.out, given.records)
