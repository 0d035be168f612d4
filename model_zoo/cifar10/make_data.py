"""Write images to train on, as RecordIO, into OUT/train and OUT/test. Needs edl-platform[train].

Without --source, images are drawn: see model_zoo/images/planted.py. With --source, they are those of CIFAR-10's binary
version, a folder with data_batch_1.bin to data_batch_5.bin and test_batch.bin. The Python version is not read: it is
pickled, and loading a pickle can run any code.
"""

import argparse
from pathlib import Path

from model_zoo.cifar10.schema import CHANNELS, SIDE
from model_zoo.data_files import make_parts, record_count, run_command, write_examples
from model_zoo.images.planted import draw_images

PIXELS = CHANNELS * SIDE * SIDE


def read_published(path):
    """Images of a file of the binary version: a byte for the label, then the pixels, channel by channel."""
    size = path.stat().st_size
    if size == 0 or size % (1 + PIXELS):
        raise ValueError(f"{path}: {size} bytes are no whole number of images; is it of the binary version?")
    with path.open("rb") as stream:
        while record := stream.read(1 + PIXELS):
            yield {"image": record[1:], "label": record[0]}


def draw_published(count, seed):
    """Drawn images in the same form."""
    for image, label in zip(*draw_images(count, SIDE, 10, seed), strict=True):
        yield {"image": image.transpose(2, 0, 1).tobytes(), "label": int(label)}


def main(out, source=None, records=10_000):
    out = make_parts(out)
    if source is None:
        write_examples(out / "train", "drawn", draw_published(records, seed=1))
        write_examples(out / "test", "drawn", draw_published(records // 5, seed=2))
        return
    for name in (f"data_batch_{number}" for number in range(1, 6)):
        write_examples(out / "train", name, read_published(Path(source) / f"{name}.bin"))
    write_examples(out / "test", "test_batch", read_published(Path(source) / "test_batch.bin"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", help="a folder; it is made")
    parser.add_argument("--source", metavar="FOLDER", help="cifar-10-batches-bin")
    parser.add_argument("--records", type=record_count, default=10_000, help="images to draw for training; 10000")
    run_command(parser, main)
