"""Draws images with one disk or square each, and writes their annotations in COCO's format."""

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SIZE = 64
CLASSES = ("disk", "square")


def make_shapes(folder: Path, count: int, seed: int) -> None:
    """Write ``train/`` and ``train.json``."""
    rng = np.random.default_rng(seed)
    (folder / "train").mkdir(parents=True)
    images, annotations = [], []
    for number in range(count):
        name, kind = f"{number:06}.png", int(rng.integers(len(CLASSES)))
        width = int(rng.integers(12, 32))
        left, top = (int(place) for place in rng.integers(0, SIZE - width, 2))
        image = Image.fromarray(rng.integers(0, 80, (SIZE, SIZE, 3), np.uint8))
        draw, color = ImageDraw.Draw(image), tuple(int(part) for part in rng.integers(120, 255, 3))
        box = (left, top, left + width, top + width)
        (draw.ellipse if CLASSES[kind] == "disk" else draw.rectangle)(box, fill=color)
        image.save(folder / "train" / name)
        images.append({"id": number, "file_name": name, "width": SIZE, "height": SIZE})
        annotations.append({"id": number, "image_id": number, "category_id": kind, "bbox": [left, top, width, width]})
    categories = [{"id": kind, "name": name} for kind, name in enumerate(CLASSES)]
    document = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "train.json").write_text(json.dumps(document))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=2000, help="of images, default 2000")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    make_shapes(given.folder, given.count, given.seed)
