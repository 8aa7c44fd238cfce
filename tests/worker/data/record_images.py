#!/usr/bin/env python3
"""Writes recorded/images/: small JPEG and PNG files of all kinds, and images.txt with the pixels that Pillow decodes.

    record_images.py    needs Pillow and torchvision

A line of images.txt: file, width, height, SHA-256 of its pixels as RGB, SHA-256 of those that Resize(18) and
CenterCrop(16) give, SHA-256 of those that Resize((11, 13)) gives for the part (3, 2, 17, 9): left, top, width, height.
"""

import hashlib
import io
import struct
import zlib
from pathlib import Path

from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.functional import resized_crop

FOLDER = Path(__file__).resolve().parent / "recorded" / "images"
WIDTH, HEIGHT = 41, 27
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def colour(x, y):
    return (x * 6 % 256, (y * 9 + x) % 256, (x * y + 40 * ((x // 5 + y // 4) % 2)) % 256)


def picture():
    image = Image.new("RGB", (WIDTH, HEIGHT))
    image.putdata([colour(x, y) for y in range(HEIGHT) for x in range(WIDTH)])
    return image


def png(depth, kind, interlaced, rows):
    """A PNG file of rows of bytes, or of passes of rows, in forms that Pillow does not write."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, kind, 0, 0, interlaced)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def rgb16():
    return png(16, 2, 0, [b"".join(struct.pack(">HHH", *(v * 256 + 255 - v for v in colour(x, y)))
                                   for x in range(WIDTH)) for y in range(HEIGHT)])


def interlaced():
    return png(8, 2, 1, [b"".join(bytes(colour(x, y)) for x in range(x0, WIDTH, dx))
                         for x0, y0, dx, dy in ADAM7 for y in range(y0, HEIGHT, dy) if x0 < WIDTH])


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def files():
    image = picture()
    alpha = image.convert("L").resize((WIDTH, HEIGHT))
    yield "420.jpg", saved(image, "JPEG", quality=80)
    yield "444.jpg", saved(image, "JPEG", quality=90, subsampling=0)
    yield "progressive.jpg", saved(image, "JPEG", progressive=True)
    yield "grey.jpg", saved(image.convert("L"), "JPEG")
    yield "cmyk.jpg", saved(image.convert("CMYK"), "JPEG")
    yield "rgb.png", saved(image, "PNG")
    yield "rgb16.png", rgb16()
    yield "interlaced.png", interlaced()
    yield "grey.png", saved(image.convert("L"), "PNG")
    yield "two.png", saved(image.convert("1"), "PNG")
    yield "palette.png", saved(image.quantize(11), "PNG", transparency=3)
    yield "grey_alpha.png", saved(Image.merge("LA", (image.convert("L"), alpha)), "PNG")
    yield "alpha.png", saved(Image.merge("RGBA", (*image.split(), alpha)), "PNG")


def digest(image):
    return hashlib.sha256(image.tobytes()).hexdigest()


def main():
    middle = v2.Compose([v2.Resize(18), v2.CenterCrop(16)])
    lines = []
    for name, data in files():
        (FOLDER / name).write_bytes(data)
        image = Image.open(io.BytesIO(data)).convert("RGB")
        part = resized_crop(image, 2, 3, 9, 17, [11, 13])
        lines.append(f"{name} {image.width} {image.height} {digest(image)} {digest(middle(image))} {digest(part)}\n")
    (FOLDER / "images.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
