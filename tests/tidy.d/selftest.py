"""Checks that tests/tidy can fail. A small tree with one violation must give exactly that finding at that line; a tree
without a violation must give none."""

import json
import subprocess
import sys
import tempfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

sys.dont_write_bytecode = True
TIDY = Path(__file__).resolve().parent.parent / "tidy"
tidy = module_from_spec(spec_from_loader("tidy", SourceFileLoader("tidy", str(TIDY))))
tidy.__spec__.loader.exec_module(tidy)


def header(path, body=""):
    guard = "DPT_" + "".join(c if c.isalnum() else "_" for c in path.upper())
    return f"/* What it is for. */\n#ifndef {guard}\n#define {guard}\n{body}\n#endif\n"


CLEAN = {
    "base/err.h": header("base/err.h"),
    "base/err.c": '/* Errors. */\n#include "base/err.h"\n\n#include <stdio.h>\n',
    "base/config_yaml.c": "/* The loader. */\n#include <yaml.h>\n",
    "rendezvous/core/core.h": header("rendezvous/core/core.h", '#include "base/err.h"\n'),
    "rendezvous/client/client.c": "/* The transport. */\n#include <zmq.h>\n",
    "kernels/ops.h": header("kernels/ops.h"),
    "kernels/cpu/gemm.c": '/* Products. */\n#include "kernels/ops.h"\n\n#include <dnnl.h>\n',
    "worker/comm/comm.h": header("worker/comm/comm.h"),
    "worker/agent/core.c": '/* Agent: "exit(1)" in words is no call. */\n#include "rendezvous/core/core.h"\n',
    "worker/agent/rank_protocol.h": header("worker/agent/rank_protocol.h"),
    "worker/train/rank.c": '/* Loop. */\n#include "worker/agent/rank_protocol.h"\n#include "worker/comm/comm.h"\n',
    "worker/main.c": '/* Program. */\n#include "worker/comm/comm.h"\nint main(void)\n{\n    exit(0);\n}\n',
    "tests/base/err_test.c": '/* Test. */\n#include "base/err.h"\n',
    "kernels/CMakeLists.txt": "target_link_libraries(dpt_kernels PUBLIC dpt_base)\n",
    "tests/names.py": '"""a"""\nimport os.path\n\n\nclass A:\n    x = 1\n    y = x\n\n    def f(self, *z):\n'
                      "        global late\n        late = [len(os.path.sep) for i in z if i]\n"
                      "        return late, A\n",
}

# (what is added or changed, file:line, rule)
CASES = [
    ({"base/up.c": '/* a */\n#include "kernels/ops.h"\n'}, "base/up.c:2", "layer"),
    ({"kernels/side.c": '/* a */\n\n#include "rendezvous/core/core.h"\n'}, "kernels/side.c:3", "layer"),
    ({"worker/model/ranks.c": '/* a */\n#include "worker/comm/comm.h"\n'}, "worker/model/ranks.c:2", "layer"),
    ({"worker/train/a.c": '/* a */\n#include "worker/agent/core.h"\n',
      "worker/agent/core.h": header("worker/agent/core.h")}, "worker/train/a.c:2", "layer"),
    ({"worker/train/b.c": '/* a */\n#include "worker/bench/bench.h"\n',
      "worker/bench/bench.h": header("worker/bench/bench.h")}, "worker/train/b.c:2", "layer"),
    ({"worker/bench/x.c": '/* a */\n#include "tests/tmp.h"\n', "tests/tmp.h": header("tests/tmp.h")},
     "worker/bench/x.c:2", "layer"),
    ({"rendezvous/core/deep/x.c": '/* a */\n#include "worker/comm/comm.h"\n'}, "rendezvous/core/deep/x.c:2", "layer"),
    ({"novel/x.c": "/* a */\n"}, "novel/x.c:1", "layer"),
    ({"worker/train/z.c": "/* a */\n#include <zmq.h>\n"}, "worker/train/z.c:2", "header"),
    ({"base/second.c": "/* a */\n#include <yaml.h>\n"}, "base/second.c:2", "header"),
    ({"checkpoint/y.c": "/* a */\n#include <yaml.h>\n"}, "checkpoint/y.c:2", "header"),
    ({"kernels/cpu/two.c": "/* a */\n#include <dnnl.h>\n"}, "kernels/cpu/two.c:2", "header"),
    ({"worker/comm/shm.c": "/* a */\n#include <nccl.h>\n"}, "worker/comm/shm.c:2", "header"),
    ({"kernels/cpu/c.c": "/* a */\n#include <cuda_runtime.h>\n"}, "kernels/cpu/c.c:2", "header"),
    ({"rendezvous/core/t.c": "/* a */\n#include <time.h>\n"}, "rendezvous/core/t.c:2", "pure"),
    ({"worker/agent/core_x.c": "/* a */\nint f(void)\n{\n    return rand ();\n}\n"}, "worker/agent/core_x.c:4", None),
    ({"worker/plan/p.c": "/* a */\nvoid f(void)\n{\n    printf(\"x\");\n}\n"}, "worker/plan/p.c:4", "pure"),
    ({"base/rel.c": '/* a */\n#include "../base/err.h"\n'}, "base/rel.c:2", "include"),
    ({"base/beside.c": '/* a */\n#include "err.h"\n'}, "base/beside.c:2", "include"),
    ({"base/src.c": '/* a */\n#include "base/err.c"\n'}, "base/src.c:2", "include"),
    ({"kernels/CMakeLists.txt": "# a\ntarget_link_libraries(dpt_kernels PUBLIC\n  dpt_worker_comm)\n"},
     "kernels/CMakeLists.txt:2", "link"),
    ({"base/open.c": "int x;\n"}, "base/open.c:1", "purpose"),
    ({"base/g.h": "/* a */\n#ifndef G_H\n#define G_H\n#endif\n"}, "base/g.h:1", "guard"),
    ({"base/long.c": "/* a */\n" + "/* b */\n" * 600}, "base/long.c:501", "length"),
    ({"base/wide.c": "/* a */\nint " + "x" * 100 + ";\n"}, "base/wide.c:2", "columns"),
    ({"base/tab.c": "/* a */\n\tint x;\n"}, "base/tab.c:2", "tab"),
    ({"base/trail.c": "/* a */\nint x; \n"}, "base/trail.c:2", "blank"),
    ({"base/end.c": "/* a */\nint x;"}, "base/end.c:2", "blank"),
    ({"base/todo.c": "/* a */\n/* " + "TO" + "DO later */\n"}, "base/todo.c:2", "unfinished"),
    ({"base/ban.c": "/* a */\nvoid f(char *a)\n{\n    strcpy(a, a);\n}\n"}, "base/ban.c:4", "banned"),
    ({"base/as.c": "/* a */\nvoid f(int a)\n{\n    assert(a);\n}\n"}, "base/as.c:4", "banned"),
    ({"base/quit.c": "/* a */\nvoid f(void)\n{\n    exit(1);\n}\n"}, "base/quit.c:4", "exit"),
    ({"tests/base/nap.c": "/* a */\nvoid f(void)\n{\n    usleep(5);\n}\n"}, "tests/base/nap.c:4", "sleep"),
    ({"tests/multi/nap.py": '"""A."""\nimport time\ntime.sleep(1)\n'}, "tests/multi/nap.py:3", "sleep"),
    ({"tests/multi/bare.py": "import time\n"}, "tests/multi/bare.py:1", "purpose"),
    ({"tests/multi/name.py": '"""a"""\nfrom os import path\n\n\ndef f():\n    return path, exists(f)\n'},
     "tests/multi/name.py:6", "python"),
    ({"tests/multi/torn.py": '"""a"""\ndef f(:\n'}, "tests/multi/torn.py:2", "python"),
]

def function(name, parameters="void", lines=4):
    """A function with the given number of lines."""
    return f"int {name}({parameters})\n{{\n" + "    n++;\n" * (lines - 4) + "    return 0;\n}\n"


SEVEN, MEMBERS = ", ".join(f"int a{i}" for i in range(7)), "".join(f"    int a{i};\n" for i in range(30))

# The same for the limits on sizes; the place "" means that the change is within the limits.
SIZES = [
    ({"base/long.c": "/* a */\n" + "/* b */\n" * 500}, "base/long.c:501", "length"),
    ({"base/fit.c": "/* a */\n" + "/* b */\n" * 499}, "", None),
    ({"base/f.c": "/* a */\n" + function("f", lines=61)}, "base/f.c:2", "function"),
    ({"base/f.c": "/* a */\n" + function("f", lines=60) + function("g", lines=60)}, "", None),
    ({"base/f.c": "/* a */\nint x[] = {1, 2};\nint y;\n" + function("f", lines=61)}, "base/f.c:4", "function"),
    ({"base/p.c": "/* a */\n" + function("f", SEVEN)}, "base/p.c:2", "parameters"),
    ({"base/p.c": '/* a */\nextern "C" {\n' + function("f", SEVEN) + "}\n"}, "base/p.c:3", "parameters"),
    ({"base/p.c": "/* a */\nDPT_TARGET(x) static __attribute__((y))\n" + function("f", SEVEN)}, "base/p.c:2",
     "parameters"),
    ({"base/p.cu": "/* a */\ntemplate <typename T, int N>\n__global__ void __launch_bounds__(64, 1)\n"
      + function("f<T>", SEVEN)}, "base/p.cu:2", "parameters"),
    ({"base/p.c": "/* a */\n" + function("f", "int (*g)(int, int, int), " + SEVEN[8:])}, "base/p.c:2", "parameters"),
    ({"base/p.c": "/* a */\n" + function("f", "int (*g)(int, int, int), " + SEVEN[16:])}, "", None),
    ({"base/p.c": "/* a */\n" + function("f", SEVEN[8:] + ", ...")}, "", None),
    ({"base/p.c": f"/* a */\nint f({SEVEN});\nint y = g({SEVEN});\n"}, "", None),
    ({"base/s.c": f"/* a */\nstruct s {{\n{MEMBERS}    char b, *c;\n}};\n"}, "base/s.c:2", "members"),
    ({"base/s.c": f"/* a */\nstruct s {{\n{MEMBERS}}};\n"}, "", None),
    ({"base/s.c": f"/* a */\nstruct s {{\n    int z;\n    union {{\n{MEMBERS}    }};\n}};\n"}, "base/s.c:2", "members"),
    ({"base/s.c": f"/* a */\nstruct s {{\n    int z;\n    struct {{\n{MEMBERS}    }} part;\n}};\n"}, "", None),
    ({"base/s.c": f"/* a */\nstruct s {{\n    int z;\n    struct {{\n{MEMBERS}int y;    }} part;\n}};\n"},
     "base/s.c:4", "members"),
    ({"tests/base/f.c": "/* a */\n" + function("f", SEVEN, 61)}, "", None),
    ({f"base/{x}.c": "/* a */\nstatic " + function("f") for x in "pqrs"}, "base/s.c:2", "name"),
    ({f"base/{x}.c": "/* a */\nstatic " + function("f") for x in "pqr"}, "", None),
    ({f"base/{x}.c": "/* a */\n" + function("f") for x in "pqrs"}, "", None),
]

# Sources in base, which are compiled; exceptions; the finding: its file and text.
CALLS = [
    ({"a": "int b(void); int a(void) { return b(); }", "b": "int b(void) { return 0; }"}, {}, None, ""),
    ({"a": "int b(void); int a(void) { return b(); }", "b": "int a(void); int b(void) { return a(); }"}, {}, "base/a.c",
     "2 files call in circles: a.c -> b.c (b); b.c -> a.c (a)"),
    ({"a": "int b(void); int a(void) { return b(); }", "b": "extern int c; int b(void) { return c; }",
      "c": "int a(void); int c = 1; int d(void) { return a(); }"}, {}, "base/a.c",
     "3 files call in circles: a.c -> b.c (b); b.c -> c.c (c); c.c -> a.c (a)"),
    ({"a": "int b(void); int a(void) { return b(); }", "b": "int a(void); int b(void) { return a(); }"},
     {("base/b.c", "base/a.c"): "a reason"}, None, ""),
    ({"a": "int a(void) { return 0; }"}, {("base/a.c", "base/b.c"): "a reason"}, "base/a.c",
     "its use of base/b.c is in no circle"),
    ({"a": "int b(void); int a(void) { return b(); }", "b": None}, {}, "base/b.c", "1 sources are not compiled"),
]


def run(tree):
    """The findings of tidy on a tree given as {path: text}."""
    with tempfile.TemporaryDirectory(prefix="dpt-tidy-") as root:
        for path, text in tree.items():
            file = Path(root, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return [f"{path}:{line}: {rule}: {text}" for path, line, rule, text in tidy.check_tree(root)]


def run_calls(sources, allowed):
    """The findings on calls between sources in base, which are compiled; a source that is None is not compiled."""
    with tempfile.TemporaryDirectory(prefix="dpt-tidy-") as root:
        build, commands = Path(root, "build"), []
        for folder in ("build", "base"):
            Path(root, folder).mkdir()
        for name, text in sources.items():
            source = Path(root, "base", f"{name}.c")
            command = ["cc", "-O0", "-o", f"{name}.o", "-c", str(source)]
            commands.append({"directory": str(build), "file": str(source), "command": " ".join(command)})
            if text is not None:
                source.write_text(text)
                subprocess.run(command, cwd=build, check=True)
        (build / "compile_commands.json").write_text(json.dumps(commands))
        found, tidy.limits.CALLS_ALLOWED = [], allowed
        tidy.limits.check_calls(lambda *finding: found.append(finding), tidy.folder_of, Path(root).resolve(), build)
        return found


def main():
    failures = 0
    findings = run(CLEAN)
    if findings:
        failures += 1
        print(f"the clean tree: {findings}")
    for change, place, rule in CASES:
        findings = run({**CLEAN, **change})
        expected = place + ":" + (f" {rule}:" if rule else "")
        if not findings or not all(f.startswith(expected) for f in findings):
            failures += 1
            print(f"expected '{expected}', got {findings}")
    for change, place, rule in SIZES:
        findings = run({**CLEAN, **change})
        if (not all(f.startswith(f"{place}: {rule}:") for f in findings) or not findings) if place else findings:
            failures += 1
            print(f"expected '{place} {rule}', got {findings}")
    for sources, allowed, path, text in CALLS:
        findings = run_calls(sources, allowed)
        if findings and not path or (path and [(f[0], f[3].startswith(text)) for f in findings] != [(path, True)]):
            failures += 1
            print(f"expected '{path}: {text}', got {findings}")
    with tempfile.TemporaryDirectory(prefix="dpt-tidy-") as root:  # checks the exit code of the program
        Path(root, "x.c").write_text("int x;\n")
        code = subprocess.run([TIDY, "--root", root], capture_output=True).returncode
        if code != 1:
            failures += 1
            print(f"a bad tree: exit code {code}")
    count = len(CASES) + len(SIZES) + len(CALLS) + 2
    print(f"{count - failures} of {count} trees judged as they should be")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
