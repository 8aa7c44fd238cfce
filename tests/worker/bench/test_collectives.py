"""dpt-bench collectives: its table is read as nccl-tests' is, its rates follow from its times, every element of every
collective is right within a host and between hosts, and its pictures are well-formed.

Run by ctest: pytest test_collectives.py, with DPT_BENCH naming the program.
"""

import json
import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

PROGRAM = os.environ["DPT_BENCH"]
SVG = "{http://www.w3.org/2000/svg}"
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv"]
FACTORS = {"all_reduce": lambda n: 2 * (n - 1) / n, "all_gather": lambda n: (n - 1) / n,
           "reduce_scatter": lambda n: (n - 1) / n, "broadcast": lambda n: 1, "send_recv": lambda n: 1}


def bench(*args, code=0):
    done = subprocess.run([PROGRAM, "collectives", *map(str, args)], capture_output=True, text=True, timeout=100,
                          check=False)
    assert done.returncode == code, done.stderr
    return done


def tables_of(text):
    """[(collective, algorithm, ranks, rows, average)]; a row is the list of its columns."""
    tables = []
    for block in re.split(r"^# dpt-bench collectives: ", text, flags=re.M)[1:]:
        collective, algorithm, ranks = re.match(r"(\w+), (\w+), (\d+) ranks", block).groups()
        rows = [line.split() for line in block.splitlines() if not line.startswith("#") and line.strip()][1:]
        average = float(re.search(r"^# Avg bus bandwidth    : (\S+)$", block, re.M)[1])
        assert re.search(r"^# Out of bounds values : 0 OK$", block, re.M)
        tables.append((collective, algorithm, int(ranks), rows, average))
    return tables


def check_rates(collective, ranks, rows, average):
    rates, errors = [], []
    for size, count, kind, redop, root, *figures in rows:
        assert kind == "float" and redop == ("sum" if "reduce" in collective else "none")
        assert root == ("0" if collective == "broadcast" else "-1")
        shares = ranks if collective in ("all_gather", "reduce_scatter") else 1
        assert int(size) == 4 * int(count) * shares
        assert len(figures) == 8
        for time, algbw, busbw, wrong in (figures[:4], figures[4:]):
            if time == "N/A":
                continue
            assert wrong == "0"
            rate = int(size) / float(time) * 1e-3
            digits = len(time.partition(".")[2])  # of a short time two, of a long one fewer
            error = rate * 0.51 * 10 ** -digits / float(time) + 0.006
            factor = FACTORS[collective](ranks)
            assert float(algbw) == pytest.approx(rate, abs=error)
            assert float(busbw) == pytest.approx(rate * factor, abs=error * factor + 0.006)
            rates.append(rate * factor)
            errors.append(error * factor + 0.006)
    assert rates and average == pytest.approx(sum(rates) / len(rates), abs=sum(errors) / len(errors))


@pytest.mark.parametrize("hosts", [1, 2])
def test_every_collective(tmp_path, hosts):
    done = bench("--collective", "all", "--algorithm", "all", "--ranks", "2,3", "--hosts", hosts, "--begin", "1K",
                 "--end", "1M", "--factor", 31, "--rounds", 2, "--warmup", 1, "--json", tmp_path / "figures.json")
    tables = tables_of(done.stdout)
    assert [(name, ranks) for name, algorithm, ranks, _, _ in tables if algorithm == "direct"] == [
        (name, ranks) for ranks in (2, 3) for name in COLLECTIVES]
    assert [name for name, algorithm, _, _, _ in tables if algorithm == "ring"] == COLLECTIVES[:4] * 2
    for name, algorithm, ranks, rows, average in tables:
        assert len(rows) == 3
        check_rates(name, ranks, rows, average)
        absent = [[place for place in (5, 9) if row[place] == "N/A"] for row in rows]
        reducer = algorithm == "direct" and name in ("all_reduce", "reduce_scatter")
        assert absent == [[5] if reducer else [9] if name == "send_recv" else []] * 3
    report = json.loads((tmp_path / "figures.json").read_text())
    assert report["wrong"] == 0 and len(report["tables"]) == len(tables)
    for table, (name, algorithm, ranks, rows, _) in zip(report["tables"], tables):
        assert (table["collective"], table["algorithm"], table["ranks"]) == (name, algorithm, ranks)
        assert [row["bytes"] for row in table["rows"]] == [int(row[0]) for row in rows]


def check_every_table(done):
    tables = tables_of(done.stdout)
    assert len(tables) == 9
    for name, _, ranks, rows, average in tables:
        check_rates(name, ranks, rows, average)


def test_ranks_that_relay():
    """Six ranks on hosts of their own, each without a connection to one of them."""
    done = bench("--collective", "all", "--algorithm", "all", "--ranks", "6", "--hosts", "6", "--mesh-max", "2",
                 "--begin", "1K", "--end", "1M", "--factor", 31, "--rounds", 2, "--warmup", 1)
    check_every_table(done)


@pytest.mark.parametrize("how", ["mac", "data"])
def test_protected_connections(how):
    done = bench("--collective", "all", "--algorithm", "all", "--ranks", "3", "--hosts", "3", "--encrypt", how,
                 "--begin", "1K", "--end", "1M", "--factor", 31, "--rounds", 1, "--warmup", 0)
    check_every_table(done)


def test_parts_of_a_ring(tmp_path):
    """Vectors of many parts, whose chunks are not equal."""
    done = bench("--algorithm", "ring", "--collective", "all", "--ranks", "5", "--begin", 1234567, "--end", 1234567,
                 "--part", "8K", "--rounds", 1)
    for name, _, ranks, rows, average in tables_of(done.stdout):
        check_rates(name, ranks, rows, average)


@pytest.mark.parametrize("args, says", [
    (["--begin", "2M", "--end", "1M"], "--end: 1048576 bytes are less than --begin, 2097152 bytes"),
    (["--hosts", "3", "--ranks", "2"], "--hosts: 3 hosts are more than 2 ranks"),
    (["--ranks", "17"], "--ranks: expected an integer from 2 to 16"),
    (["--collective", "gather"], "expected all_reduce, all_gather, reduce_scatter, broadcast, send_recv or all"),
    (["--algorithm", "tree"], "--algorithm: expected direct, ring or all, got 'tree'"),
    (["--encrypt", "all"], "--encrypt: expected none, mac or data, got 'all'"),
    (["--begin", "1Q"], "--begin: expected bytes from 1024"),
    (["--cuda", "--hosts", "2"], "--cuda: NCCL chooses the algorithm and the links"),
    (["--cuda", "--algorithm", "ring"], "--cuda: NCCL chooses the algorithm and the links"),
])
def test_wrong_options(args, says):
    assert says in bench(*args, code=2).stderr


def test_more_memory_than_there_is():
    done = bench("--begin", "1024G", "--end", "1024G", code=1)
    assert re.search(r"2 ranks need 2199.0 GB of memory for vectors of 1099511627776 bytes, and \S+ GB are available: "
                     "choose a smaller --end or fewer --ranks", done.stderr)


def pictures(folder, *args):
    done = bench("--draw", folder, *args)
    files = done.stdout.split()
    assert sorted(files) == sorted(str(path) for path in folder.iterdir())
    return {path.stem: ElementTree.parse(path).getroot() for path in folder.iterdir()}


def classed(tree, word):
    return [each for each in tree.iter() if word in each.get("class", "").split()]


def test_pictures(tmp_path):
    drawn = pictures(tmp_path / "four")
    assert set(drawn) == {"all_reduce-direct", "all_reduce-ring", "all_reduce-direct-hosts", "all_gather-direct",
                          "all_gather-ring", "reduce_scatter-direct", "reduce_scatter-ring", "broadcast-direct",
                          "broadcast-ring", "send_recv-direct", "lane-tree"}
    steps = {name: len(classed(tree, "step-frame")) - 1 for name, tree in drawn.items()}
    assert steps["all_reduce-ring"] == 6 and steps["all_reduce-direct"] == 2 and steps["all_reduce-direct-hosts"] == 3
    moves = {name: len(classed(tree, "move")) - 2 for name, tree in drawn.items() if name != "lane-tree"}
    assert moves["all_reduce-ring"] == 6 * 4 and moves["all_reduce-direct"] == 2 * 4 * 3
    for name, tree in drawn.items():
        text = "".join(tree.itertext())
        assert "prefers-color-scheme: dark" in text, name
        if name.startswith("all_reduce") and "hosts" not in name:
            assert "each rank sends 6 chunks, 1.5 times the vector" in text
    tree = drawn["lane-tree"]
    # Eight lanes have seven joins: nothing is joined in the first frame, one join a rank in the second, all at last.
    assert [len(classed(frame, "sum")) for frame in classed(tree, "step-frame")] == [8, 12, 15]


def test_pictures_of_other_worlds(tmp_path):
    assert len(pictures(tmp_path / "two", "--ranks", "2")) == 10
    assert len(pictures(tmp_path / "sixteen", "--ranks", "16")) == 11


def test_picture_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    assert re.search("create '.*/file/all_reduce-direct.svg': Not a directory",
                     bench("--draw", tmp_path / "file", code=1).stderr)
    assert "create the folder" in bench("--draw", tmp_path / "none" / "below", code=1).stderr
    deep = tmp_path / ("d" * 200) / ("e" * 200) / ("f" * 200)
    deep.mkdir(parents=True)
    assert "too long" in bench("--draw", deep, code=1).stderr


def test_full_disk(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    (tmp_path / "all_reduce-direct.svg").symlink_to("/dev/full")
    assert "write 'all_reduce-direct.svg': No space left on device" in bench("--draw", tmp_path, code=1).stderr
