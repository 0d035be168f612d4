"""How the commands of the zoo write data: a new folder with train/ and test/, and CSV or RecordIO files in them."""

import argparse
import csv
from itertools import chain, islice
from pathlib import Path

from edl.data import Writer, serialize_example


def make_parts(out):
    """Make OUT/train and OUT/test. OUT must be new or empty, so that drawn and published records are never mixed."""
    out = Path(out)
    if any(path.is_file() for path in out.rglob("*")):
        raise ValueError(f"{out} is not empty: name another folder, or remove it first")
    for part in ("train", "test"):
        (out / part).mkdir(parents=True, exist_ok=True)
    return out


def write_csv(path, columns, rows):
    """Write a header and rows. Rows that cannot be read from the first one on leave no file."""
    rows = iter(rows)
    first = list(islice(rows, 1))
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(chain(first, rows))


def write_examples(folder, name, examples, per_file=100_000):
    """Write dictionaries of features as RecordIO, `per_file` of them in a file."""
    examples = iter(examples)
    for number, first in enumerate(examples):
        with Writer(folder / f"{name}-{number:05d}.recordio") as writer:
            for features in chain([first], islice(examples, per_file - 1)):
                writer.write(serialize_example(features))


def record_count(text):
    """The number of records that an argument of a command asks for."""
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"found {text}, must be at least 1")
    return count


def run_command(parser, main):
    """Call `main` with the arguments of the command line. Bad input ends the command with a line that names it."""
    try:
        main(**vars(parser.parse_args()))
    except OSError as error:
        parser.exit(2, f"{parser.prog}: {error.filename}: {error.strerror}\n" if error.filename else f"{error}\n")
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
