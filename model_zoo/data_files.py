"""How the commands of the zoo write data: a new folder with train/ and test/, and CSV or RecordIO files in them."""

import csv
from itertools import chain, islice
from pathlib import Path

from edl.data import Writer, serialize_example


def make_parts(out):
    """Make OUT/train and OUT/test. OUT must be new or empty, so that drawn and published records are never mixed."""
    out = Path(out)
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: name another folder, or remove it first")
    for part in ("train", "test"):
        (out / part).mkdir(parents=True, exist_ok=True)
    return out


def write_csv(path, columns, rows):
    """Write a header and rows."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def write_examples(folder, name, examples, per_file=100_000):
    """Write dictionaries of features as RecordIO, `per_file` of them in a file."""
    examples = iter(examples)
    for number, first in enumerate(examples):
        with Writer(folder / f"{name}-{number:05d}.recordio") as writer:
            for features in chain([first], islice(examples, per_file - 1)):
                writer.write(serialize_example(features))
