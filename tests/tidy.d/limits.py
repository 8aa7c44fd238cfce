"""The size limits of tests/tidy, and its rule on circular calls: functions, parameters and structs by a scanner over C
without comments and strings, calls by the symbols of object files."""

import json
import re
import subprocess
from pathlib import Path

FUNCTION_LINES_MAX = 60  # from the first line of the signature to the closing brace
PARAMETERS_MAX = 6       # `...` does not count
MEMBERS_MAX = 30
LINES_MAX = 500          # of a file
EXCEPTIONS_MAX = 5
STATICS_MAX = 3          # files with a static function of one name: a search for it must not find many others

# Function: why it may have more parameters.
PARAMETERS_ALLOWED = {"dpt_cuda_register_kernel": "it takes the place of __cudaRegisterFunction"}

# (caller, callee): why this call does not count as part of a circle.
CALLS_ALLOWED = {}

NOT_THE_NAME = {"__attribute__", "__launch_bounds__", "_Alignas", "alignas", "if", "for", "while", "switch"}
TRANSPARENT = re.compile(r'(\bextern\s*"[^"]*"|\bnamespace(\s+\w+)?)\s*$')  # a brace that opens no body
STRUCT = re.compile(r"\b(?:struct|union)\b(?:\s+(?:alignas|_Alignas|__attribute__)\s*\([^{;]*?\))?\s*(\w*)\s*\{")


def blank_directives(code):
    """Preprocessor lines, with the lines that continue them, become empty."""
    lines, continued = [], False
    for line in code.split("\n"):
        directive = continued or line.lstrip().startswith("#")
        continued = directive and line.rstrip().endswith("\\")
        lines.append("" if directive else line)
    return "\n".join(lines)


def closing(text, start):
    """Index of the bracket that closes the one at `start`; the end of the text if none does."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "({[") - (text[i] in ")}]")
        if depth == 0:
            return i
    return len(text)


def split(text, separator):
    """The parts of a text between separators outside brackets; empty parts are left out."""
    depth, pieces, begin = 0, [], 0
    for i, char in enumerate(text):
        depth += (char in "({[") - (char in ")}]")
        if char == separator and depth == 0:
            pieces.append(text[begin:i].strip())
            begin = i + 1
    return [piece for piece in [*pieces, text[begin:].strip()] if piece]


def signature(text):
    """(name, parameters) of the function whose body follows the text; None: no function."""
    if not re.search(r"\)\s*(const|noexcept|__attribute__\s*\(\(.*\)\)|\s)*$", text, re.S):
        return None
    found, at = None, 0
    while (match := re.compile(r"(\w+)\s*(?:<[^<>()]*>)?\s*\(|[(=]").search(text, at)) is not None:
        if match.group(0) == "=":
            return None
        at = closing(text, match.end() - 1) + 1
        if match.group(1) and match.group(1) not in NOT_THE_NAME and (found is None or found[0].isupper()):
            inside = text[match.end():at - 1]
            found = (match.group(1), [each for each in split(inside, ",") if each not in ("void", "...")])
    return found


def functions(code):
    """[(name, first line, last line, parameters)] of the functions that are defined in the code."""
    found, begin, at = [], 0, 0
    while (match := re.compile(r"[{};]").search(code, at)) is not None:
        at = match.end()
        if match.group(0) == "{" and not TRANSPARENT.search(code, begin, match.start()):
            end = closing(code, match.start())
            head = code[begin:match.start()]
            if (what := signature(head)) is not None:
                start = begin + len(head) - len(head.lstrip())
                found.append((what[0], code.count("\n", 0, start) + 1, code.count("\n", 0, end) + 1, what[1]))
            at = end + 1
            if what is None and re.match(r"\s*(;|\w|,|=)", code[at:at + 20]) and "=" in head:
                continue  # an initialiser: the declaration continues after it
        begin = at
    return found


def members(body):
    """How many members the body of a struct declares. A struct inside it that has no name for its object adds its own
    members, as in C; a named one is one member, and is judged by itself."""
    count = 0
    for text in split(body, ";"):
        inner = STRUCT.match(text)
        end = closing(text, inner.end() - 1) if inner else 0
        if inner and not text[end + 1:].strip():
            count += members(text[inner.end():end])
        elif not text.startswith(("static_assert", "_Static_assert")):
            count += len(split(text, ","))
    return count


def structs(code):
    """[(name, line, members)] of the structs that are defined in the code."""
    found = []
    for match in STRUCT.finditer(code):
        brace = match.end() - 1
        line = code.count("\n", 0, match.start()) + 1
        found.append((match.group(1), line, members(code[brace + 1:closing(code, brace)])))
    return found


def check_sizes(report, path, code, statics):
    """Functions and structs of one file; `code` is without comments and strings. Adds its static functions to
    `statics`: {name: {path: line}}."""
    code = blank_directives(code)
    lines = code.split("\n")
    for name, first, last, parameters in functions(code):
        if lines[first - 1].startswith("static "):
            statics.setdefault(name, {})[path] = first
        if last - first + 1 > FUNCTION_LINES_MAX:
            report(path, first, "function", f"{name} has {last - first + 1} lines, at most {FUNCTION_LINES_MAX}")
        if len(parameters) > PARAMETERS_MAX and name not in PARAMETERS_ALLOWED:
            report(path, first, "parameters", f"{name} has {len(parameters)} parameters, at most {PARAMETERS_MAX}: an "
                                              "options struct")
    for name, line, count in structs(code):
        if count > MEMBERS_MAX:
            report(path, line, "members", f"struct {name or '(no name)'} has {count} members, at most {MEMBERS_MAX}")


def check_static_names(report, statics):
    for name, files in statics.items():
        if len(files) > STATICS_MAX:
            path = max(files)
            report(path, files[path], "name", f"static functions {name} are in {len(files)} files, at most "
                                              f"{STATICS_MAX}: name the object, too")


def objects(root, build):
    """{source, relative to the root: object file} of the build folder, for sources below the root."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = Path(entry["directory"], entry["file"]).resolve()
        output = re.search(r"\s-o\s+(\S+)", entry["command"])
        if output and source.is_relative_to(root):
            found.setdefault(str(source.relative_to(root)), Path(entry["directory"], output[1]))
    return found


def symbols(paths):
    """For each object file (functions and data that it defines for others, those that it uses)."""
    argv = ["nm", "-A", "-P", "-g", *map(str, paths)]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    found = {str(path): (set(), set()) for path in paths}
    for line in shown.splitlines():
        name, symbol, letter = re.match(r"(.*?)(?:\[[^]]*\])?: (\S+) (\w)", line).groups()
        found[name][letter in "Uwv"].add(symbol)
    return [found[str(path)] for path in paths]


def circles(edges):
    """[[nodes]] of the graph {node: set of nodes} that reach each other: its strongly connected components of two or
    more."""
    def reached(graph, start):
        seen, waiting = {start}, [start]
        while waiting:
            more = graph.get(waiting.pop(), set()) - seen
            seen |= more
            waiting += more
        return seen
    backwards = {}
    for node, targets in edges.items():
        for target in targets:
            backwards.setdefault(target, set()).add(node)
    left, found = set(edges), []
    while left:
        node = min(left)
        circle = reached(edges, node) & reached(backwards, node)
        left -= circle
        if len(circle) > 1:
            found.append(sorted(circle))
    return found


def calls(folder_of, root, build):
    """{layer: {caller: {callee: symbols}}} of the product's files in a build folder, and the sources that it has not
    compiled."""
    found = {source: path for source, path in objects(root, build).items() if not source.startswith("tests/")}
    there = sorted(source for source, path in found.items() if path.exists())
    of = dict(zip(there, symbols([found[source] for source in there]))) if there else {}
    owner = {(folder_of(source), symbol): source for source in there for symbol in of[source][0]}
    graphs = {}
    for source in there:
        layer = folder_of(source)
        uses = graphs.setdefault(layer, {}).setdefault(source, {})
        for symbol in sorted(of[source][1]):
            if (layer, symbol) in owner:
                uses.setdefault(owner[layer, symbol], []).append(symbol)
    return graphs, sorted(found.keys() - there)


def check_calls(report, folder_of, root, build):
    """Reports files of a layer that use each other's symbols in a circle of any length."""
    graphs, missing = calls(folder_of, root, build)
    if missing:
        return report(missing[0], 1, "calls", f"{len(missing)} sources are not compiled in {build}: build all of it")
    if not graphs:
        return report(str(build), 1, "calls", "this build folder is of another tree")
    unused = set(CALLS_ALLOWED)
    for graph in graphs.values():
        for circle in circles({a: set(graph[a]) for a in graph}):
            unused -= {(a, b) for a in circle for b in graph[a] if b in circle}
        for circle in circles({a: {b for b in graph[a] if (a, b) not in CALLS_ALLOWED} for a in graph}):
            inside = [f"{Path(a).name} -> {Path(b).name} ({', '.join(graph[a][b])})" for a in circle
                      for b in sorted(graph[a]) if b in circle and (a, b) not in CALLS_ALLOWED]
            report(circle[0], 1, "calls", f"{len(circle)} files call in circles: {'; '.join(inside)}")
    for caller, callee in sorted(unused):
        report(caller, 1, "calls", f"its use of {callee} is in no circle: remove it from CALLS_ALLOWED")
    if len(CALLS_ALLOWED) > EXCEPTIONS_MAX:
        report("tests/tidy.d/limits.py", 1, "calls", f"{len(CALLS_ALLOWED)} exceptions, at most {EXCEPTIONS_MAX}")
    return None
