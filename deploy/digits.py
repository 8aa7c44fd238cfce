"""Trains a small ResNet to read handwritten digits; deploy/digits starts it. Standard library only.

The images are scikit-learn's digits, below runs/packages: 8 x 8 pixels with 17 greys. One in five images of each digit,
drawn at random, is kept for validation. The files have the records of CIFAR-10's binary version: the label, then 32 x
32 bytes of red, of green and of blue. Each pixel becomes 4 x 4 pixels of its grey. Then dpt-worker trains
configs/digits.yaml; the accuracy of its last evaluation decides the exit code."""

import gzip
import random
from pathlib import Path

import example

ROOT = Path(__file__).resolve().parent.parent
DIGITS = (ROOT / "runs" / "packages" / "usr" / "lib" / "python3" / "dist-packages" / "sklearn" / "datasets" / "data"
          / "digits.csv.gz")
TABLES = ROOT / "runs" / "digits"
CONFIG = ROOT / "configs" / "digits.yaml"
SEED = 42
SIDE, SCALE, GREYS = 8, 4, 16  # pixels; pixels of a CIFAR image for each; the lightest
CLASSES = 10
VAL_SHARE = 5  # one image in five is for validation
ACCURACY_PERCENT = 98


def read_digits():
    """Yields (label, record) of each image; a line of the file has its 64 pixels and its label."""
    try:
        lines = gzip.decompress(DIGITS.read_bytes()).decode().splitlines()
    except FileNotFoundError:
        raise example.Failed(f"{DIGITS} is missing; run: deploy/install-deps digits") from None
    for number, line in enumerate(lines, 1):
        *pixels, label = [int(float(value)) for value in line.split(",")]
        if len(pixels) != SIDE * SIDE or label not in range(CLASSES) or not all(0 <= p <= GREYS for p in pixels):
            raise example.Failed(f"{DIGITS}, line {number}: this is not an image of 8 x 8 greys, 0 to 16, and its "
                                 "digit")
        yield label, record(label, pixels)


def record(label, pixels):
    rows = (pixels[at:at + SIDE] for at in range(0, len(pixels), SIDE))
    plane = b"".join(bytes(pixel * 255 // GREYS for pixel in row for _ in range(SCALE)) * SCALE for row in rows)
    return bytes([label]) + plane * 3


def write_records(path, records):
    random.Random(SEED).shuffle(records)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_bytes(b"".join(records))
    new.replace(path)
    print(f"digits: {path.relative_to(ROOT)}: {len(records)} images", flush=True)


def write_names():
    """Writes the names of the labels, in the file that CIFAR-10 has beside its batches."""
    (TABLES / "batches.meta.txt").write_text("".join(f"{digit}\n" for digit in range(CLASSES)), encoding="ascii")


def make_tables():
    of_label = [[] for _ in range(CLASSES)]
    for label, image in read_digits():
        of_label[label].append(image)
    train, val = [], []
    for label, images in enumerate(of_label):
        random.Random(f"{SEED} {label}").shuffle(images)
        kept = len(images) // VAL_SHARE
        val += images[:kept]
        train += images[kept:]
    write_records(TABLES / "train.bin", train)
    write_records(TABLES / "val.bin", val)
    write_names()


def main():
    return example.play("digits", "Handwritten digits by a small ResNet.", "the digits of val.bin", ACCURACY_PERCENT,
                        make_tables, ROOT, CONFIG)


if __name__ == "__main__":
    example.run("digits", main)
