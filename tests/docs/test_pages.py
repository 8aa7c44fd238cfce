"""The pages for readers of the code: docs/glossary.md has few terms; docs/tour.md names files and functions that exist,
each function in the file that is named with it; the levels of docs/architecture.md agree with tests/tidy. Run by ctest.
"""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TERMS_MAX = 30  # more is a language of its own
FOLDERS = ("base", "checkpoint", "kernels", "rendezvous", "worker")


def page(name):
    return (ROOT / "docs" / name).read_text()


def rows(text):
    """The cells of the tables' rows, without heads and rules."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    ruled = {i for i, line in enumerate(lines) if re.fullmatch(r"[|\-: ]+", line)}
    heads = {i - 1 for i in ruled}
    return [[cell.strip() for cell in line.strip("|").split("|")] for i, line in enumerate(lines)
            if i not in ruled | heads]


def test_glossary_has_few_terms():
    terms = [row[0] for row in rows(page("glossary.md"))]
    assert len(set(terms)) == len(terms) and 20 <= len(terms) <= TERMS_MAX


def sources():
    """{path: text} of the product's sources."""
    return {str(path.relative_to(ROOT)): path.read_text() for folder in FOLDERS
            for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".c", ".h", ".cu", ".def", ".proto")}


def absent(text, known):
    """What a page says of `function` (`file`) or `function` in `file` that is not so."""
    wrong = []
    for name, path in re.findall(r"`(\w+)`\s+(?:\(|in\s+)`([\w/.]+\.[ch])`", text):
        files = [each for each in known if each == path or each.endswith("/" + path)]
        if not any(re.search(rf"\b{name}\b", known[each]) for each in files):
            wrong.append(f"{name} in {path}")
    for path in re.findall(r"`((?:%s)/[\w/.]+\.(?:c|h|def|proto))`" % "|".join(FOLDERS), text):
        if path not in known:
            wrong.append(path)
    return wrong


def test_functions_are_in_the_files_named_with_them():
    known = sources()
    for name in ("tour.md", "architecture.md", "how-to-change.md"):
        assert absent(page(name), known) == [], name


def test_rows_of_the_tour_name_their_functions():
    known = sources()
    for _, files, functions in (row for row in rows(page("tour.md")) if len(row) == 3):
        paths = re.findall(r"`([^`]+)`", files)
        text = "".join(known.get(path, "") for path in paths)
        wrong = [each for each in re.findall(r"`(\w+)`", functions) if not re.search(rf"\b{each}\b", text)]
        assert not wrong and paths and set(paths) <= set(known), files


def test_a_wrong_file_is_found():
    known = sources()
    assert absent("`assign_writers` in `rendezvous/core/places.c`", known) == []
    assert absent("`assign_writers` (`rendezvous/core/plan.c`)", known) == ["assign_writers in rendezvous/core/plan.c"]
    assert absent("in `worker/no_file.c`", known) == ["worker/no_file.c"]


def test_edges_of_one_level_are_the_five_of_the_page():
    allowed = runpy.run_path(str(ROOT / "tests" / "tidy"))["ALLOWED"]
    text = page("architecture.md")
    level = {folder.rstrip("/"): int(row[1][0]) for row in rows(text) for folder in re.findall(r"`([\w/]+)/`", row[0])
             if row[1][:1].isdigit()}
    edges = {(source, target.split(":")[0]) for source in allowed for target in allowed[source] if source in level}
    assert all(level[source] >= level[target] for source, target in edges if target in level)
    flat = {(re.sub("^worker/train/.*", "worker/train", a), re.sub("^worker/train/.*", "worker/train", b))
            for a, b in edges if level[a] == level.get(b)}
    between = {(a, b) for a, b in flat if a != b}
    assert len(between) == 5 and "Five edges connect folders of one level" in text, between
