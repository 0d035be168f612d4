"""Write patients to train on, as CSV with a header, into OUT/train and OUT/test.

Without --source, patients are drawn: a heart disease is a matter of the kind of pain, the thallium test, vessels and
the ST depression, with noise. With --source, they are those of heart.csv, of which a fifth is held back.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from model_zoo.data_files import make_parts, record_count, run_command, write_csv
from model_zoo.heart.schema import COLUMNS, THAL


def read_published(path):
    """Rows of heart.csv, whose header must have the columns; they may stand in another order."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = csv.DictReader(stream)
        missing = sorted(set(COLUMNS) - set(rows.fieldnames or ()))
        if missing:
            raise ValueError(f"{path}: no column {', '.join(missing)}")
        return [[row[name] for name in COLUMNS] for row in rows]


def draw_patients(count, rng):
    for _ in range(count):
        pain, thal, vessels = int(rng.integers(0, 5)), str(rng.choice(THAL)), int(rng.integers(0, 4))
        depression, rate, age = (
            round(float(rng.gamma(1.2, 0.9)), 1),
            int(rng.normal(150, 22)),
            int(rng.integers(29, 78)),
        )
        score = (
            1.5 * (pain == 4) + 1.5 * (thal == "reversible") + 0.8 * vessels + 0.6 * depression - 0.03 * (rate - 150)
        )
        row = {"age": age, "sex": rng.integers(0, 2), "cp": pain, "trestbps": rng.integers(94, 200), "thal": thal}
        row |= {"chol": rng.integers(126, 420), "fbs": int(rng.random() < 0.15), "restecg": rng.integers(0, 3)}
        row |= {"thalach": rate, "exang": rng.integers(0, 2), "oldpeak": depression, "slope": rng.integers(1, 4)}
        row |= {"ca": vessels, "target": int(score + 0.3 * rng.logistic() > 2.5)}
        yield [row[name] for name in COLUMNS]


def main(out, source=None, records=1_500):
    rng = np.random.default_rng(0)
    rows = read_published(Path(source)) if source else list(draw_patients(records + records // 4, rng))
    rows = [rows[at] for at in rng.permutation(len(rows))]
    held_back = len(rows) // 5
    out = make_parts(out)
    write_csv(out / "train" / "heart.csv", COLUMNS, rows[held_back:])
    write_csv(out / "test" / "heart.csv", COLUMNS, rows[:held_back])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", help="a folder; it is made")
    parser.add_argument("--source", metavar="FILE", help="heart.csv")
    parser.add_argument("--records", type=record_count, default=1_500, help="patients to draw for training; 1500")
    run_command(parser, main)
