"""Write texts to train on, as CSV with the columns label and text, into OUT/train and OUT/test.

Without --source, texts of four topics are drawn: a few words of a text are of its topic, most are of none. With
--source, they are those of a folder in one of two forms. Either train.csv and test.csv as of AG News: rows of a class
from 1, a title and a description. Or train/CLASS/*.txt and test/CLASS/*.txt, as of the Large Movie Review Dataset. The
number of a class is its place in OUT/classes.txt.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from model_zoo.data_files import make_parts, record_count, run_command, write_csv

TOPICS, TOPIC_WORDS, COMMON_WORDS = 4, 40, 3000


def draw_texts(count, seed):
    words = _draw_words(TOPICS * TOPIC_WORDS + COMMON_WORDS)
    rng = np.random.default_rng(seed)
    for _ in range(count):
        label, length = int(rng.integers(TOPICS)), int(rng.integers(10, 60))
        common = np.minimum(rng.zipf(1.3, length), COMMON_WORDS) - 1 + TOPICS * TOPIC_WORDS
        topical = label * TOPIC_WORDS + rng.integers(0, TOPIC_WORDS, length)
        chosen = [words[at] for at in np.where(rng.random(length) < 0.12, topical, common)]
        yield label, " ".join(chosen).capitalize() + "."


def _draw_words(count):
    rng = np.random.default_rng(0)
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = {}
    while len(words) < count:
        words["".join(rng.choice(syllables, rng.integers(2, 5)))] = None
    return list(words)


def read_csv(path):
    """Rows of AG News: class, title, description, without a header. A backslash stands for a line break."""
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.reader(stream):
            if len(row) < 2 or not row[0].isdecimal():
                raise ValueError(f"{path}: not a class and texts: {row}")
            yield int(row[0]) - 1, " ".join(row[1:]).replace("\\", " ")


def read_files(folder, classes):
    """A text file each, in folders of their classes."""
    for number, name in enumerate(classes):
        for path in sorted((folder / name).glob("*.txt")):
            yield number, path.read_text(encoding="utf-8")


def write_part(folder, texts):
    """Returns how many classes there are."""
    rows = [(label, " ".join(text.split())) for label, text in texts]
    if not rows:
        raise ValueError(f"there are no texts for {folder}")
    write_csv(folder / "texts.csv", ["label", "text"], rows)
    return 1 + max(label for label, _ in rows)


def main(out, source=None, records=8_000):
    out, source = make_parts(out), source and Path(source)
    folders = []
    if source and not (source / "train.csv").exists():
        # Folders of both parts: the reviews have a further one, without labels, to train on.
        parts = [{path.name for path in (source / part).glob("*/")} for part in ("train", "test")]
        folders = sorted(parts[0] & parts[1])
        if not folders:
            raise ValueError(f"{source} has no train.csv, and no folder that is both in train and in test")
    count = 0
    for part, drawn, seed in (("train", records, 1), ("test", records // 5, 2)):
        if folders:
            texts = read_files(source / part, folders)
        else:
            texts = read_csv(source / f"{part}.csv") if source else draw_texts(drawn, seed)
        count = max(count, write_part(out / part, texts))
    classes = folders or [f"class {number}" for number in range(1, count + 1)]
    (out / "classes.txt").write_text("\n".join(classes) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", help="a folder; it is made")
    parser.add_argument("--source", metavar="FOLDER", help="with train.csv and test.csv, or train/ and test/")
    parser.add_argument("--records", type=record_count, default=8_000, help="texts to draw for training; 8000")
    run_command(parser, main)
