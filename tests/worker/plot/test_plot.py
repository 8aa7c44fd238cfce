"""dpt-plot on logs of every kind: the elements of its SVG, the size of its PNG, and one line for files that it cannot
draw.

Run by ctest: pytest test_plot.py, with DPT_PLOT naming the program and DPT_PLOT_HAS_PNG whether it was built with
librsvg.
"""

import json
import os
import re
import struct
import subprocess
import xml.etree.ElementTree as ElementTree
import zlib

import pytest

PROGRAM, HAS_PNG = os.environ["DPT_PLOT"], os.environ.get("DPT_PLOT_HAS_PNG") == "1"
SVG = "{http://www.w3.org/2000/svg}"
PANELS = ("loss", "throughput", "learning-rate", "memory")


def step(number, **changes):
    return {"step": number, "loss": 5 / number, "lr": 1e-4 * number, "grad_norm": 1, "tokens_per_s": 20_000.5,
            "memory_bytes": 3 << 20, "generation": 1, "world_size": 2, "run": "a-run", "time": 1.7e9 + number} | changes


def event(kind, resume_step, generation=2):
    return {"kind": kind, "generation": generation, "cause": "<node b> & \"c\"", "resume_step": resume_step}


@pytest.fixture
def make_run(tmp_path):
    def make(name, lines, events=()):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        if events:
            (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in events))
        return folder
    return make


def plot(*args, cwd=None):
    return subprocess.run([PROGRAM, *map(str, args)], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def draw(tmp_path, *args, code=0):
    """The root of the SVG."""
    done = plot(*args, "--out", tmp_path / "out.svg")
    assert done.returncode == code, done.stderr
    return ElementTree.parse(tmp_path / "out.svg").getroot(), done.stderr


def panel(tree, name):
    return tree.find(f".//{SVG}g[@id='{name}']")


def curves(tree, name):
    """Of each run the segments of its curve, each a list of (x, y)."""
    found = []
    for path in panel(tree, name).findall(f"{SVG}path"):
        assert path.get("class").startswith("curve ")
        segments = path.get("d").replace(" h0", "").split("M")[1:]
        found.append([[tuple(map(float, point.split())) for point in segment.split("L")] for segment in segments])
    return found


def texts(element):
    return ["".join(text.itertext()) for text in element.iter(f"{SVG}text")]


def png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR"
    at, packed = 8, b""
    while at < len(data):
        (size,), kind = struct.unpack(">I", data[at:at + 4]), data[at + 4:at + 8]
        packed += data[at + 8:at + 8 + size] if kind == b"IDAT" else b""
        at += 12 + size
    pixels = zlib.decompress(packed)
    assert len(set(pixels)) > 2  # not one colour alone
    return struct.unpack(">II", data[16:24])


def one_line(done, *parts):
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("dpt-plot: "), done.stderr
    for part in parts:
        assert part in done.stderr, done.stderr


def test_elements(tmp_path, make_run):
    events = [event("start", 0, 1), event("joined", 10), event("redundancy", 12), event("node_lost", 20),
              {"kind": "diverged", "generation": 3, "step": 30, "action": "skip"}]
    lines = [step(i) for i in range(1, 41)]
    lines.insert(20, {"step": 20, "val_loss": 0.5, "generation": 1, "run": "a-run"})
    lines.insert(20, {"step": 20, "epoch": 1, "epochs": 2, "avg_loss": 2, "generation": 1})
    tree, said = draw(tmp_path, make_run("r", lines, events))
    assert said == "" and (tree.get("width"), tree.get("height")) == tuple(tree.get("viewBox").split()[2:])
    for name in PANELS:
        assert len(curves(tree, name)) == 1 and [len(s) for s in curves(tree, name)[0]] == [40]
        assert len(panel(tree, name).findall(f"{SVG}g[@class='generation']")) == 1
        failures = panel(tree, name).findall(f"{SVG}g[@class='failure']")
        assert [f.find(f"{SVG}title").text for f in failures] == \
            ['generation 2: node_lost, <node b> & "c"', "step 30 diverged"]
        assert "Step" in texts(panel(tree, name))
    assert len(panel(tree, "loss").findall(f"{SVG}circle")) == 1
    assert not panel(tree, "memory").findall(f"{SVG}circle")
    said = texts(tree)
    assert "a-run: steps 1 to 40, loss 5 to 0.125, 2 failures" in said
    assert {"Loss (nats)", "Throughput (thousand tokens/s)", "Learning rate (× 10⁻³)",
            "Memory allocated by the writing rank (MiB)", "new generation", "validation loss"} <= set(said)


def test_ticks(tmp_path, make_run):
    tree, _ = draw(tmp_path, make_run("r", [step(i, loss=2 + i / 12000) for i in range(1, 12001)]))
    said = texts(panel(tree, "loss"))
    assert {"0", "2,000", "12,000", "2.0", "2.2", "3.0"} <= set(said)
    assert {"0", "5", "10", "15", "20"} <= set(texts(panel(tree, "throughput")))


def test_long_run_has_few_points_and_keeps_a_spike(tmp_path, make_run):
    lines = [step(i, loss=50 if i == 5555 else 2) for i in range(1, 20001)]
    tree, _ = draw(tmp_path, make_run("r", lines))
    (segments,) = curves(tree, "loss")
    assert len(segments) == 1 and len(segments[0]) < 1200
    ys = [y for _, y in segments[0]]
    assert sum(y < min(ys) + 1 for y in ys) == 1 and max(ys) - min(ys) > 100


def test_values_that_are_not_finite_leave_gaps(tmp_path, make_run):
    values = {4: "nan", 5: "inf", 7: None}
    lines = [step(i, loss=values.get(i, 2.0 + i)) for i in range(1, 10)]
    tree, _ = draw(tmp_path, make_run("r", lines))
    assert [len(s) for s in curves(tree, "loss")[0]] == [3, 1, 2]
    assert [len(s) for s in curves(tree, "memory")[0]] == [9]
    tree, _ = draw(tmp_path, make_run("none", [step(i, loss="nan") for i in (1, 2)]))
    assert curves(tree, "loss") == [] and "No finite value" in texts(panel(tree, "loss"))


def test_log_without_memory(tmp_path, make_run):
    tree, _ = draw(tmp_path, make_run("r", [{"step": 1, "loss": 2, "lr": 1, "tokens_per_s": 5}]))
    assert curves(tree, "memory") == [] and "Memory is not in the log" in texts(panel(tree, "memory"))
    assert [len(s) for s in curves(tree, "loss")[0]] == [1]


def test_step_that_was_not_measured_leaves_a_gap(tmp_path, make_run):
    lines = [step(i, step_ms=0 if i == 4 else 2.5, tokens_per_s=0 if i == 4 else 5) for i in range(1, 10)]
    tree, _ = draw(tmp_path, make_run("r", lines))
    assert [len(s) for s in curves(tree, "throughput")[0]] == [3, 5]
    assert [len(s) for s in curves(tree, "loss")[0]] == [9]


def test_margin_does_not_grow_with_the_values(tmp_path, make_run):
    tree, _ = draw(tmp_path, make_run("r", [step(i, loss=10_000 + i % 2) for i in range(1, 10)]))
    said = texts(panel(tree, "loss"))
    assert {"10000.0", "10001.0", "10001.2"} <= set(said) and "10001.4" not in said


@pytest.mark.parametrize("evaluated", [[55], [140], [60, 130]])
def test_evaluations_outside_the_steps_are_in_the_frame(tmp_path, make_run, evaluated):
    lines = [step(i) for i in range(100, 121)] + [{"step": i, "val_loss": 0.03} for i in evaluated]
    lines.sort(key=lambda line: line["step"])
    tree, _ = draw(tmp_path, make_run("r", lines))
    frame = panel(tree, "loss").find(f"{SVG}rect")
    left, width = float(frame.get("x")), float(frame.get("width"))
    circles = panel(tree, "loss").findall(f"{SVG}circle")
    assert len(circles) == len(evaluated)
    assert all(left - 0.1 <= float(circle.get("cx")) <= left + width + 0.1 for circle in circles)


def test_logs_of_other_programs(tmp_path, make_run):
    lines = [{"step": i, "epoch": 0.1 * i, "loss": 2, "val_loss": 3} for i in range(1, 6)]
    tree, _ = draw(tmp_path, make_run("r", lines))
    assert [len(s) for s in curves(tree, "loss")[0]] == [5]
    assert not panel(tree, "loss").findall(f"{SVG}circle")


def test_line_that_is_too_long(tmp_path, make_run):
    run = make_run("r", [step(1), step(2, text="x" * (2 << 20)), step(3)])
    tree, said = draw(tmp_path, run, code=1)
    assert said == f"dpt-plot: '{run}/metrics.jsonl': 1 line is not a record and was left out; the first is line 2\n"
    assert [len(s) for s in curves(tree, "loss")[0]] == [2]


def test_metrics_that_are_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    done = plot(tmp_path, "--out", tmp_path / "out.svg")
    assert done.returncode == 2
    one_line(done, "is not a regular file")


def test_steps_computed_again_count_once(tmp_path, make_run):
    lines = [step(i, loss=9) for i in range(1, 31)] + [step(i, loss=3, generation=2) for i in range(11, 21)]
    tree, _ = draw(tmp_path, make_run("r", lines, [event("start", 10, 2)]))
    (segments,) = curves(tree, "loss")
    xs = [x for x, _ in segments[0]]
    assert len(xs) == 20 and xs == sorted(xs)
    assert "a-run: steps 1 to 20, loss 9 to 3, 0 failures" in texts(tree)


def test_start_from_the_beginning_forgets_earlier_events(tmp_path, make_run):
    events = [event("node_lost", 2), event("start", 0, 1), event("left", 3)]
    tree, _ = draw(tmp_path, make_run("r", [step(i) for i in range(1, 9)], events))
    assert not tree.findall(f".//{SVG}g[@class='failure']/{SVG}title")
    assert len(panel(tree, "loss").findall(f"{SVG}g[@class='generation']")) == 1


def test_several_runs(tmp_path, make_run):
    runs = [make_run(f"r{i}", [step(k, run=f"run-{min(i, 6)}", loss=i + k) for k in range(1, 5 * i + 6)],
                     [event("rank_lost", 2)]) for i in range(8)]
    tree, _ = draw(tmp_path, *runs, "--title", "Eight <runs>")
    assert len(curves(tree, "loss")) == 8
    colors = [path.get("stroke") for path in panel(tree, "loss").findall(f"{SVG}path")]
    assert len(set(colors)) == 8
    marks = panel(tree, "loss").findall(f"{SVG}g[@class='failure']")
    assert [mark.get("stroke") for mark in marks] == colors
    said = texts(tree)
    assert said[0] == "Eight <runs>" and any(text.startswith("run-3: steps 1 to 20") for text in said)
    assert any(f"{runs[6].name}: steps" in text for text in said)  # two of one name: by their paths
    one_line_of_nine = plot(*runs, runs[0])
    assert one_line_of_nine.returncode == 2
    one_line(one_line_of_nine, "one run too many: at most 8")


@pytest.mark.skipif(not HAS_PNG, reason="built without librsvg")
def test_png(tmp_path, make_run):
    run = make_run("r", [step(i) for i in range(1, 41)])
    done = plot(run, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.split() == ["plot.svg", "plot.png"], done.stderr
    tree = ElementTree.parse(tmp_path / "plot.svg").getroot()
    assert png_size(tmp_path / "plot.png") == (int(tree.get("width")), int(tree.get("height")))
    assert plot(run, "--out", "wide.png", "--width", 2400, cwd=tmp_path).returncode == 0
    assert png_size(tmp_path / "wide.png") == (2400, 2 * int(tree.get("height")))
    assert not list(tmp_path.glob("*.tmp*"))


@pytest.mark.skipif(HAS_PNG, reason="built with librsvg")
def test_no_png(tmp_path, make_run):
    run = make_run("r", [step(1)])
    done = plot(run, "--out", tmp_path / "a.png")
    assert done.returncode == 2
    one_line(done, "built without librsvg")
    assert plot(run, cwd=tmp_path).stdout.split() == ["plot.svg"]


@pytest.mark.parametrize("text, parts", [
    ("", ["has no record of a step yet"]),
    ("\n\n", ["has no record of a step yet"]),
    ('{"step": 1, "lo', ["line 1 is not a JSON object"]),
    ("time,loss\n1,2\n", ["line 1 is not a JSON object"]),
    ('{"kind": "start", "resume_step": 0}\n', ["line 1 is not a JSON object"]),
    ('[1, 2]\n{"step": -1, "loss": 2}\n', ["line 1 is not a JSON object"]),
    ('{"step": 1, "epoch": 1}\n', ["line 1 is not a JSON object"]),
    ('{"step": 1, "val_loss": 2}\n\n{"step": 1, "epoch": 1, "avg_loss": 2}\n', ["has 2 lines, none of a step"]),
    ('{"step": 1, "val_loss": 2}', ["has 1 line, none of a step"]),
    ("\x7fELF\x00\x01\x02", ["line 1 is not a JSON object"]),
])
def test_files_that_cannot_be_drawn(tmp_path, text, parts):
    (tmp_path / "metrics.jsonl").write_text(text)
    done = plot(tmp_path, "--out", tmp_path / "out.svg")
    assert done.returncode == 2 and not (tmp_path / "out.svg").exists()
    one_line(done, str(tmp_path / "metrics.jsonl"), *parts)


def test_lines_that_are_cut(tmp_path, make_run):
    """A full disk or a power failure cut lines: the others are drawn, and one line says so."""
    run = make_run("r", [step(i) for i in range(1, 6)])
    with open(run / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 6, "lo\n' + b"\0" * 5 + b"\n" + json.dumps(step(7)).encode() + b'\n{"step": 8')
    tree, said = draw(tmp_path, run, code=1)
    assert said == f"dpt-plot: '{run}/metrics.jsonl': 3 lines are not records and were left out; the first is line 6\n"
    assert [len(s) for s in curves(tree, "loss")[0]] == [6]
    (run / "events.jsonl").write_text('{"kind": "joined", "resume_step": 3}\nhalf')
    (run / "metrics.jsonl").write_text(json.dumps(step(1)) + "\n" + json.dumps(step(9)) + "\n")
    tree, said = draw(tmp_path, run, code=1)
    assert said == f"dpt-plot: '{run}/events.jsonl': 1 line is not a record and was left out; the first is line 2\n"
    assert len(panel(tree, "loss").findall(f"{SVG}g[@class='generation']")) == 1


def test_names_that_are_no_text(tmp_path, make_run):
    run = make_run("r", [step(1, run="a\u0001<b>\uffff" + "\u00e9" * 300)], [event("\ud83d\ude00" * 99, 1)])
    title = os.fsencode("bad \udcff ok")
    done = subprocess.run([PROGRAM, run, "--title", title, "--out", tmp_path / "o.svg"], capture_output=True,
                          timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert texts(ElementTree.parse(tmp_path / "o.svg"))[0] == "bad ? ok"


def test_metrics_file_by_name(tmp_path, make_run):
    run = make_run("r", [step(i) for i in (1, 2)], [event("rank_lost", 1)])
    tree, _ = draw(tmp_path, run / "metrics.jsonl")
    assert len(panel(tree, "loss").findall(f"{SVG}g[@class='failure']")) == 1


@pytest.mark.parametrize("args, part", [
    ([], "expected the log.dir of a run"),
    (["--out"], "--out"),
    (["--out", "a.pdf", "."], "ends with .svg or .png"),
    (["--width", "9", "."], "--width"),
    (["--wide", "."], "--wide"),
    (["nowhere"], "nowhere"),
])
def test_wrong_arguments(tmp_path, args, part):
    done = plot(*args, cwd=tmp_path)
    assert done.returncode == 2
    one_line(done, part)


def test_picture_that_cannot_be_written(tmp_path, make_run):
    done = plot(make_run("r", [step(1)]), "--out", tmp_path / "no" / "a.svg")
    assert done.returncode == 2 and done.stdout == ""
    one_line(done, "no/a.svg")


def test_help_names_all_options():
    said = plot("--help").stdout
    assert all(option in said for option in ("--out", "--title", "--width", "--version", "Exit codes"))
    assert re.fullmatch(r"dpt-plot \d+\.\d+\.\d+\n", plot("--version").stdout)
