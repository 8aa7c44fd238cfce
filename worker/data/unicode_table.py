#!/usr/bin/env python3
"""Writes worker/data/unicode_table.inc: which characters are letters, numbers and white space.

    python3 worker/data/unicode_table.py > worker/data/unicode_table.inc

Not part of the build; run it when Unicode has a new version. It reads the module unicodedata2 of PyPI where that is
installed (Python's own unicodedata module, ahead of Python's releases) and unicodedata otherwise. White space is the
property White_Space (PropList.txt), which no module of Python has: it is written out here, and has not changed since
Unicode 6.3.

The table has two stages: of 256 characters each, `dpt_unicode_page[c >> 8]` says which block holds them; a block is 16
numbers of 32 bits, with 2 bits a character, lowest first.
"""

import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

OTHER, LETTER, NUMBER, SPACE = range(4)
PAGE = 256
WHITE_SPACE = {0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
               0x205F, 0x3000}


def class_of(c):
    if c in WHITE_SPACE:
        return SPACE
    return {"L": LETTER, "N": NUMBER}.get(unicodedata.category(chr(c))[0], OTHER)


def main():
    classes = [class_of(c) for c in range(0x110000)]
    last = max(c for c, k in enumerate(classes) if k != OTHER)
    pages, blocks = [], {}
    for first in range(0, last + 1, PAGE):
        block = tuple(sum(classes[first + 16 * i + j] << 2 * j for j in range(16)) for i in range(PAGE // 16))
        pages.append(blocks.setdefault(block, len(blocks)))
    if len(blocks) > 256:
        sys.exit(f"{len(blocks)} different blocks do not fit a byte")
    print(f"/* Made by unicode_table.py from Unicode {unicodedata.unidata_version}. Do not edit. */")
    print(f"enum {{ DPT_UNICODE_END = 0x{len(pages) * PAGE:x}, DPT_UNICODE_BLOCKS = {len(blocks)} }};")
    print(f"static const uint8_t dpt_unicode_page[DPT_UNICODE_END / {PAGE}] = {{")
    for at in range(0, len(pages), 32):
        print("    " + ", ".join(map(str, pages[at:at + 32])) + ",")
    print("};")
    print(f"static const uint32_t dpt_unicode_block[DPT_UNICODE_BLOCKS][{PAGE // 16}] = {{")
    for block in blocks:
        rows = [", ".join(f"0x{word:08x}" for word in block[at:at + 8]) for at in (0, 8)]
        print(f"    {{{rows[0]},\n     {rows[1]}}},")
    print("};")


if __name__ == "__main__":
    main()
