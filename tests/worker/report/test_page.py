"""The pages of dpt-trace for reports made by hand (page_samples.c): well-formed, without references, with every figure.

Run by ctest: pytest test_page.py, with DPT_PAGE_SAMPLES naming the program that writes the pages.
"""

import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

PROGRAM = os.environ["DPT_PAGE_SAMPLES"]
ODD = "void<T&>::gemm\"x'y\"??/a/very/long/name/without/a/blank/that/no/screen/has/room/for/0123456789"
NAMES = ("one_rank", "four_ranks", "eight_ranks", "many_ranks", "no_memory", "odd_names", "nothing_known", "comparison")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages")
    subprocess.run([PROGRAM, path], check=True, timeout=60)
    assert sorted(p.stem for p in path.glob("*.html")) == sorted(NAMES)
    return path


@pytest.fixture
def page(folder):
    def read(name):
        return ElementTree.fromstring((folder / f"{name}.html").read_text().removeprefix("<!DOCTYPE html>\n"))
    return read


def text(element):
    for line_break in element.iter("br"):
        line_break.tail = f" {(line_break.tail or '').lstrip()}"
    return " ".join("".join(element.itertext()).split())


def section(tree, title):
    """The section with this heading, or None."""
    return next((s for s in tree.iter("section") if (h := s.find("h2")) is not None and text(h) == title), None)


def rows(element):
    """The cells of each row of a table's body."""
    return [[text(cell) for cell in row] for body in element.iter("tbody") for row in body.iter("tr")]


def heads(element):
    return [text(cell) for cell in next(element.iter("thead")).iter("th")]


@pytest.mark.parametrize("name", NAMES)
def test_page_is_whole_and_refers_to_nothing(folder, page, name):
    tree, source = page(name), (folder / f"{name}.html").read_text()
    assert tree.tag == "html" and text(tree.find("head/title"))
    assert not [e.tag for e in tree.iter() if e.tag in ("script", "link", "img", "iframe", "object")]
    assert not [key for e in tree.iter() for key in e.keys() if key in ("href", "src") or key.startswith("on")]
    assert "http" not in source and "@import" not in source and re.findall(r"url\((?!#)", source) == []
    assert "nan" not in re.findall(r"[a-z]+", text(tree.find("body"))) and "inf" not in text(tree.find("body")).split()
    for picture in tree.iter("svg"):
        assert picture.get("role") != "img" or text(picture[0]) and picture[0].tag == "title"
    for table in tree.iter("table"):
        assert all(cell.get("scope") for cell in table.iter("th"))
        widths = {len(list(row)) for row in table.iter("tr")}
        assert len(widths) == 1, widths
    for shape in tree.iter("rect"):  # no shape beyond its picture
        x, width = ((shape.get(key) or "0").rstrip("%") for key in ("x", "width"))
        assert not shape.get("width").endswith("%") or 0 <= float(x) and float(x) + float(width) <= 100.02


@pytest.mark.parametrize("name, ranks", [("one_rank", 1), ("four_ranks", 4), ("eight_ranks", 8), ("many_ranks", 64)])
def test_every_rank_is_in_every_part(page, name, ranks):
    tree = page(name)
    each = [f"rank {i}" for i in range(ranks)]
    for title in ("Where the time goes", "Time of each rank", "Parts of a step"):
        assert [row[0] for row in rows(section(tree, title))] == each, title
    assert [text(e) for e in section(tree, "Longest ops").iter("summary")] == each
    assert [text(e[0]) for e in section(tree, "Memory").iter("div")] == each
    lanes = [text(e) for e in section(tree, "Step 14 on all ranks").iter("text")]
    assert [label for label in lanes if label.startswith("rank")] == each
    assert len(list(section(tree, "Source").iter("li"))) == ranks
    assert len(list(section(tree, "Longest ops").iter("tr"))) == ranks * 13
    assert len([e for e in section(tree, "Longest ops").iter("details") if e.get("open")]) == 1
    assert [text(e[0][0]) for e in section(tree, "Time of each rank").iter("tfoot")] == ["mean"] * (ranks > 1)


def test_breakdown_fills_its_bar(page):
    for row in section(page("four_ranks"), "Where the time goes").iter("tr"):
        widths = [float(rect.get("width").rstrip("%")) for rect in row.iter("rect")]
        ends = [float(rect.get("x").rstrip("%")) + float(rect.get("width").rstrip("%")) for rect in row.iter("rect")]
        assert not widths or len(widths) >= 4 and 97 < sum(widths) <= 100.05 and ends == sorted(ends)


def test_verdict_and_warning(page):
    tree = page("four_ranks")
    verdict = section(tree, "Bottleneck: communication")
    assert "cause-communication" in verdict.get("class")
    assert "train.global_batch" in [text(e) for e in verdict.iter("code")]
    causes = ["compute", "communication", "straggler", "imbalance", "data", "checkpoint", "evaluation"]
    assert [row[0] for row in rows(verdict)] == causes
    warning = next(s for s in tree.iter("section") if s.get("class") == "warning")
    assert all(word in text(warning) for word in ("larger batch", "compression", "overlap"))
    tree = page("eight_ranks")
    assert text(section(tree, "Bottleneck: straggler").find("p")).startswith("Rank 5 computes")
    assert not [s for s in page("no_memory").iter("section") if s.get("class") == "warning"]
    opened = [e for e in section(tree, "Longest ops").iter("details") if e.get("open")]
    assert text(opened[0].find("summary")) == "rank 5"


def test_facts_of_the_run(page):
    facts = {name: [text(e) for each in page(name).iter("ul") if each.get("class") == "legend facts" for e in each]
             for name in ("one_rank", "four_ranks", "odd_names")}
    assert facts["one_rank"] == []
    assert facts["four_ranks"] == ["number of hosts: 2", "cluster.device: cuda", "train.precision: bf16",
                                   "train.global_batch: 1048576", "train.micro_batch: 64",
                                   "train.activation_checkpointing: selective", "strategy.overlap: true",
                                   "strategy.compression: none", "data.kind: classification"]
    assert facts["odd_names"][2] == 'train.precision: <b>&"?</b>'


def test_collectives(page):
    part = section(page("eight_ranks"), "Collectives")
    assert [text(e) for e in part.iter("h3")] == ["reduce_scatter", "all_gather", "broadcast"]
    assert heads(part) == ["Rank", "", "Time ms", "Wait ms", "Calls", "Moved MB", "Bus GB/s"]
    table = rows(part)
    assert len(table) == 3 * 8 and table[0][4] == "80"
    assert table[17][4] == "0" and table[17][6] == "–"  # no broadcast on rank 1
    assert "no collective" in text(section(page("one_rank"), "Collectives"))
    assert [text(e) for e in section(page("many_ranks"), "Collectives").iter("summary")] == ["56 more ranks"] * 3


def test_absent_figures(page):
    tree = page("no_memory")
    assert section(tree, "Memory") is None and section(tree, "Where the time goes") is not None
    tree = page("nothing_known")
    assert [text(s.find("h2")) for s in tree.iter("section")] == ["Bottleneck: compute", "Collectives", "Source"]
    assert "0 ranks" in text(tree.find("body"))
    assert [text(e) for e in tree.iter("dd")] == ["–"] * 7


def test_texts_are_escaped(page):
    tree = page("odd_names")
    assert text(tree.find("head/title")) == '<script>alert("&")</script>'
    names = [row[0] for row in rows(section(tree, "Longest ops"))]
    assert names[0].startswith(ODD[:24]) and "…" in names[0] and names[2] == "head_backward"
    verdict = section(tree, "Bottleneck: compute")
    assert text(verdict.find("p")).startswith(f"Text & more <b>text</b>: {ODD}") and 'a<b>&"c"' in text(verdict)
    assert "24,690 events of 2 ranks were dropped" in text(tree.find("body"))
    assert '/rank_1/' in text(section(tree, "Source")) and '<script>alert("&")' in text(section(tree, "Source"))


def test_timeline(page):
    part = section(page("eight_ranks"), "Step 14 on all ranks")
    assert [text(e) for e in part.find("ul")] == \
        ["compute", "communication", "wait for late peers", "data", "optimizer", "part of the step"]
    lanes = [text(e) for e in part.iter("text")]
    assert lanes.count("main") == lanes.count("stream 7") == lanes.count("communication") == 8
    assert lanes.count("forward") == lanes.count("backward") == 8
    shapes = [rect.get("class") for rect in part.iter("rect") if rect.find("title") is not None]
    assert shapes.count("wait") == 7 * 8 and shapes.count("comm") == 8 * 8  # the straggler waits for nobody
    assert shapes.count("phase") == 2 * 8
    titles = [text(rect.find("title")) for rect in part.find("svg").iter("rect") if rect.get("class") == "optimizer"]
    assert titles == ["optimizer_step: 9.00 ms"] * 8
    thin = [path.get("class") for path in part.iter("path")]
    assert "compute" in thin and any(path.get("d") for path in part.iter("path"))


def test_comparison(page):
    tree = page("comparison")
    table = rows(next(tree.iter("section")))
    assert len(table) == 5 and [row[-1] for row in table[:2]] == ["communication"] * 2
    assert table[4][0] == "PyTorch FSDP, 2 GPUs & <more> CSV" and table[4][1] == "141.20" and table[4][-1] == "–"
    speeds = [float(row[2]) for row in table]
    assert speeds[0] == 1 and all(abs(speed - float(table[0][1]) / float(row[1])) < 0.006
                                  for speed, row in zip(speeds, table))
    best = [text(e) for e in tree.iter("td") if e.get("class") == "best"]
    assert min(table, key=lambda row: float(row[1]))[1] in best
    bars = rows(section(tree, "Peak memory"))
    assert [row[2] for row in bars][2] == "–" and bars[4][2] == "3,076"
    assert len(rows(section(tree, "Time of a step by part"))) == 5
    assert len(list(section(tree, "What limits each strategy").iter("h3"))) == 4
