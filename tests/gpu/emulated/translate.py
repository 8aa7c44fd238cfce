"""Translates a CUDA source to C++ for the host's compiler: launches become calls of emulated.h, and a block's shared
memory becomes static or comes from the launch. Arguments: source, result. Handles only the syntax that kernels/cuda
uses."""

import re
import sys
from pathlib import Path

source, result = map(Path, sys.argv[1:3])
text = source.read_text()


def closing(text, at, opening, end):
    """Index after the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == opening) - (text[i] == end)
        if depth == 0:
            return i + 1
    sys.exit(f"{source}: a bracket is not closed")


def parts(arguments):
    """Splits at the commas outside of brackets."""
    found, depth, begin = [], 0, 0
    for i, c in enumerate(arguments):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            found.append(arguments[begin:i])
            begin = i + 1
    return [part.strip() for part in [*found, arguments[begin:]]]


while (at := text.find("<<<")) >= 0:
    begin = re.search(r"[A-Za-z_]\w*(<[^<>;]*>)?\s*$", text[:at]).start()
    end = text.index(">>>", at)
    call = text.index("(", end)
    after = closing(text, call, "(", ")")
    grid, block, shared, _queue = parts(text[at + 3:end])
    kernel, arguments = text[begin:at].strip(), text[call + 1:after - 1]
    launch = f"emulated_launch({grid}, {block}, {shared}, [&] {{ {kernel}({arguments}); }})"
    text = text[:begin] + launch + text[after:]

text = re.sub(r"extern\s+__shared__\s+(\w+)\s+(\w+)\[\];", r"\1 *const \2 = (\1 *)emulated_shared();", text)
text = re.sub(r"\b__shared__\s+", "static thread_local ", text)
text = re.sub(r"#pragma unroll.*", "", text)
text = text.replace(".cuh\"", ".cuh.h\"")
result.parent.mkdir(parents=True, exist_ok=True)
result.write_text(f'#line 1 "{source}"\n{text}')
