"""Write images to train on, as RecordIO, into OUT/train and OUT/test. Needs edl-platform[train].

Without --source, images of ten classes are drawn: see model_zoo/images/planted.py. With --source, they are those of a
folder as ImageNet is unpacked: train/CLASS/*.jpg and val/CLASS/*.jpg. Each is scaled and cropped to SIZE x SIZE and
stored as JPEG. The number of a class is its place in OUT/classes.txt. Training images are shuffled, because files that
hold one class each would be read one after another.
"""

import argparse
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tensorflow as tf
from model_zoo.data_files import make_parts, record_count, run_command, write_examples
from model_zoo.images.planted import draw_images

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
IMAGES_PER_FILE = 2048


def fit_image(path, size):
    """The largest square in the middle of an image, as a JPEG of `size` x `size`."""
    try:
        image = tf.io.decode_image(path.read_bytes(), channels=3, expand_animations=False)
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(f"{path} is no image: {error.message}") from error
    side = min(image.shape[:2])
    square = tf.image.resize_with_crop_or_pad(image, side, side)
    return encode(tf.image.resize(square, [size, size], antialias=True))


def encode(image):
    return tf.io.encode_jpeg(tf.cast(tf.round(image), tf.uint8), quality=90).numpy()


def list_images(folder, classes):
    """The images below `folder` with the numbers of their classes."""
    found = [(path, classes.index(path.parent.name)) for name in classes for path in sorted((folder / name).glob("*"))]
    return [(path, number) for path, number in found if path.suffix.lower() in SUFFIXES]


def read_folder(folder, classes, size, shuffles):
    listed = list_images(folder, classes)
    if not listed:
        raise ValueError(f"{folder} has no images: it needs folders of classes with {', '.join(SUFFIXES)}")
    if shuffles:
        random.Random(0).shuffle(listed)  # noqa: S311  an order, no secret
    with ThreadPoolExecutor() as pool:
        for first in range(0, len(listed), IMAGES_PER_FILE):
            part = listed[first : first + IMAGES_PER_FILE]
            images = pool.map(lambda path: fit_image(path, size), [path for path, _ in part])
            yield from zip(images, [label for _, label in part], strict=True)


def main(out, source=None, size=224, records=4_000):
    out = make_parts(out)
    parts = (("train", "train", records, 1), ("test", "val", records // 5, 2))
    if source is None:
        classes = [f"drawn-{number}" for number in range(10)]
    else:
        classes = sorted(path.name for path in (Path(source) / "train").iterdir() if path.is_dir())
    for part, folder, count, seed in parts:
        if source is None:
            images = ((encode(image), label) for image, label in zip(*draw_images(count, size, 10, seed), strict=True))
        else:
            images = read_folder(Path(source) / folder, classes, size, shuffles=part == "train")
        examples = ({"image": image, "label": int(label)} for image, label in images)
        write_examples(out / part, "images", examples, IMAGES_PER_FILE)
    (out / "classes.txt").write_text("\n".join(classes) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", help="a folder; it is made")
    parser.add_argument("--source", metavar="FOLDER", help="with train/CLASS/*.jpg and val/CLASS/*.jpg")
    parser.add_argument("--size", type=int, default=224, help="height and width of all images; 224")
    parser.add_argument("--records", type=record_count, default=4_000, help="images to draw for training; 4000")
    run_command(parser, main)
