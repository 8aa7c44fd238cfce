#!/usr/bin/env python3
"""Writes accum_cases.inc: sets of doubles and their exactly computed, once rounded sum (rational arithmetic)."""
import random
import struct
from fractions import Fraction


def number(bits):
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def bits(value):
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def rounded(total):
    try:
        value = float(total)  # int / int rounds correctly in Python
    except OverflowError:
        value = float("inf") if total > 0 else float("-inf")
    return value + 0.0  # an exact zero is +0


def draw(rng, low, high, n):
    return [number(rng.getrandbits(1) << 63 | rng.randrange(low, high) << 52 | rng.getrandbits(52)) for _ in range(n)]


def cases(rng):
    yield [0.0, -0.0]
    yield [1.0, 2.0**-53]  # tie to even: down
    yield [1.0 + 2.0**-52, 2.0**-53]  # tie to even: up
    yield [1.0, 2.0**-53, 5e-324]  # just above the tie
    yield [1.0, 2.0**-53, -5e-324]
    yield [1.0, -(2.0**-54)]
    yield [5e-324] * 3
    yield [5e-324, -5e-324]
    yield [2.2250738585072014e-308, -5e-324]
    yield [1.7976931348623157e308, 1.7976931348623157e308]
    yield [1.7976931348623157e308, 2.0**970]  # tie: rounds to infinity
    yield [1.7976931348623157e308, 2.0**970, -5e-324]  # just below it
    yield [-1.7976931348623157e308, -1.7976931348623157e308]
    yield [1.7976931348623157e308, 1.7976931348623157e308, -1.7976931348623157e308]
    yield [2.0**53 - 1, 0.5]
    yield [2.0**32, -1.0, 2.0**64, -(2.0**31)]
    for low, high in ((0, 2), (0, 60), (0, 2047), (1000, 1040), (1990, 2047), (1022, 1024)):
        for n in (2, 3, 7, 16):
            yield draw(rng, low, high, n)
    for n in (4, 8):  # cancellation: all but one term appear with both signs
        terms = draw(rng, 0, 2047, n)
        yield terms + [-t for t in terms[1:]]
        yield terms + [-t for t in terms]


def main():
    rng = random.Random(1)
    print("/* Written by record_accum.py: {number of terms, bits of the sum, {bits of the terms}}. */")
    for terms in cases(rng):
        total = rounded(sum(map(Fraction, terms)))
        words = ["0x%x" % bits(t) for t in terms]
        lines = [", ".join(words[i : i + 4]) for i in range(0, len(words), 4)]
        print("{%d, 0x%x, {%s}}," % (len(terms), bits(total), ",\n    ".join(lines)))


main()
