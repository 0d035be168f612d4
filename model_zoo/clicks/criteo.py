"""Convert Criteo's click log to the records of `edl data clicks`, in OUT/train and OUT/test. Needs edl-platform[train].

A line of `train.txt` (Kaggle Display Advertising Challenge, or a day of the Criteo 1TB Click Logs) is a label, 13
counts and 26 hexadecimal ids, separated by tabs; any of them may be missing. Counts become logarithms. Ids are hashed
into VOCABULARY rows, of which each feature has an equal share, as in generated logs. A missing value is 0, or an id of
its own. The last tenth of the lines is for evaluation, because the log is in the order of time.
"""

import argparse
import gzip
import math
import zlib
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from model_zoo.clicks.records import IDS, NUMBERS
from model_zoo.data_files import make_parts, run_command, write_examples

RECORDS_PER_FILE = 1_000_000


def parse_line(line, vocabulary):
    """One line as the features of an Example."""
    label, *cells = line.rstrip("\n").split("\t")
    if len(cells) != NUMBERS + IDS:
        raise ValueError(f"{len(cells) + 1} cells of {1 + NUMBERS + IDS}: {line[:80]!r}")
    share = vocabulary // IDS
    ids = [share * at + zlib.crc32(cell.encode()) % share for at, cell in enumerate(cells[NUMBERS:])]
    # Some counts are negative.
    numbers = [math.log(max(int(cell or 0), 0) + 1.0) for cell in cells[:NUMBERS]]
    return {"label": int(label), "numbers": numbers, "ids": ids}


def open_log(path):
    return gzip.open(path, "rt", encoding="ascii") if path.suffix == ".gz" else path.open(encoding="ascii")


def main(out, log, vocabulary=1_000_000, held_back=0.1):
    with ExitStack() as stack:
        count = sum(1 for _ in stack.enter_context(open_log(Path(log))))
        lines = stack.enter_context(open_log(Path(log)))
        records = (parse_line(line, vocabulary) for line in lines)
        out = make_parts(out)
        write_examples(out / "train", "criteo", islice(records, count - round(count * held_back)), RECORDS_PER_FILE)
        write_examples(out / "test", "criteo", records, RECORDS_PER_FILE)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", help="a folder; it is made")
    parser.add_argument("log", metavar="LOG", help="train.txt, or a day's file; .gz is read too")
    parser.add_argument("--vocabulary", type=int, default=1_000_000, help="rows of all features together; 1000000")
    run_command(parser, main)
