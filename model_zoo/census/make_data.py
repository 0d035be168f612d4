"""Write census rows to train on, as CSV with a header, into OUT/train and OUT/test.

Without --source, rows are drawn: an income above 50K is a matter of marriage, education, age, hours and capital gains,
with noise. With --source, the rows are those of a folder with the files adult.data and adult.test of UCI.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from model_zoo.census.schema import COLUMNS, WORDS
from model_zoo.data_files import make_parts, record_count, run_command, write_csv


def read_published(path):
    """Rows of adult.data or adult.test: spaces after commas, no header, an empty line at the end.

    The first line of adult.test is a comment, and its incomes end with a dot.
    """
    with path.open(encoding="ascii", newline="") as stream:
        for row in csv.reader(stream, skipinitialspace=True):
            if not row or row[0].startswith("|"):
                continue
            if len(row) != len(COLUMNS):
                raise ValueError(f"{path}: {len(row)} cells of {len(COLUMNS)}: {row}")
            yield [*row[:-1], row[-1].rstrip(".")]


def draw_rows(count, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        row = {
            name: str(rng.choice([*words, "?"] if rng.random() < 0.2 else words[:4])) for name, words in WORDS.items()
        }
        age, hours = int(rng.integers(17, 80)), int(np.clip(rng.normal(40, 12), 1, 99))
        years = int(rng.integers(1, 17))
        gain = int(rng.lognormal(8.5, 1)) if rng.random() < 0.1 else 0
        is_married = row["marital_status"].startswith("Married-civ")
        score = (
            2.5 * is_married + 0.5 * (years - 10) + 0.05 * (hours - 40) - 0.002 * (age - 50) ** 2 + (gain > 5000) * 4
        )
        row |= {"age": age, "fnlwgt": int(rng.integers(20_000, 400_000)), "education_num": years}
        row |= {"education": WORDS["education"][years - 1], "capital_gain": gain, "hours_per_week": hours}
        row |= {"capital_loss": int(rng.integers(1000, 2500)) if rng.random() < 0.05 else 0}
        row |= {"income": ">50K" if score + 0.5 * rng.logistic() > 1.5 else "<=50K"}
        yield [row[name] for name in COLUMNS]


def main(out, source=None, records=30_000):
    out = make_parts(out)
    for part, file, count, seed in (("train", "adult.data", records, 1), ("test", "adult.test", records // 5, 2)):
        rows = read_published(Path(source) / file) if source else draw_rows(count, seed)
        write_csv(out / part / "adult.csv", COLUMNS, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", help="a folder; it is made")
    parser.add_argument("--source", metavar="FOLDER", help="with adult.data and adult.test")
    parser.add_argument("--records", type=record_count, default=30_000, help="rows to draw for training; 30000")
    run_command(parser, main)
