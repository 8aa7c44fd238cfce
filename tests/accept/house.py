"""Topic house: the code was restructured; results, speed and the faults that tests find are those of the commit
before."""

import re
import statistics
import subprocess

from accept.faults import show_faults
from accept.history import clone, git, lines_of, programs_of
from accept.pairs import compare
from accept.speed import FULL_BAR_S, RUN_BAR_S, bench, suite
from accept.told import build_folder
from cluster import ROOT, bin_dir

BASELINE, PROGRAMS_OF_IT = "26e1113", "DPT_BASELINE_BIN"
CONFIGS, HASHES_LEAST = 80, 20
SLOWER_MAX, NOISE_MAX, ROUNDS = 0.02, 0.10, 5
SHORTER_LINES = 4000
CODE = (".c", ".h", ".cu", ".cuh", ".def", ".proto")
NOT_PRODUCT = ("tests/", "worker/bench/")
MAP, TOUR = "docs/architecture.md", "docs/tour.md"

# A question, the words of its row in the tour, and what stands in the right file.
QUESTIONS = (
    ("where is the order of addition decided", "order of addition", r"dpt_tree_split\("),
    ("where is a dead rank noticed", "dead rank", r"RANK_DEAD"),
    ("which process may write a checkpoint", "may write a checkpoint", r"grant"),
    ("where does a config key take effect", "config key", r"KEY\(INT64, train\.steps\)"),
    ("what does a new op touch", "new op", r"DPT_OP\("),
    ("what does GO mean", "GO mean", r"COMMAND_GO"),
)


def no_bit_moved(line):
    """The programs of 26e1113 (built from the history, or those of DPT_BASELINE_BIN) and the present ones end with the
    same weights_hash for 80 configs: 13 strategies x both orders x fp32, bf16 and fp16 x worlds of 1 to 4 x activation
    checkpointing, compression, SGD, shadows, model families, resumes from the old program's checkpoints, kills. In
    undisturbed runs the bytes sent in each step and the memory by tag are equal, too."""
    old, new = programs_of(line, BASELINE, PROGRAMS_OF_IT), bin_dir().resolve()
    line.command(f"dpt-worker of {old} and of {new}, in turn")
    count, hashes = compare(line, old, new)
    line.show("configs", count, f"== {line.repeat(CONFIGS)}", count == line.repeat(CONFIGS))
    line.at_least("distinct weights_hash among them", hashes, line.repeat(HASHES_LEAST))


def death(report):
    (found,) = [row for row in report["faults"] if row["fault"] == "death"]
    return {f"{what}, p50": found[what]["p50"] for what in ("total_ms", "pause_ms")}


# What dpt-bench measures: its flags, and the times of its report by name.
MEASURED = {
    "train": (("--preset", "gpt2-124m", "--threads", "2", "--steps", "12"),
              lambda report: {"step_ms": report["step_ms"]}),
    "strategies": (("--rounds", "1", "--steps", "12"),
                   lambda report: {f"{row['strategy']}, step_ms": row["step_ms"] for row in report["rows"]}),
    "allreduce": (("--sizes", f"{100 << 10},{26 << 20}"),
                  lambda report: {f"{row['bytes']} bytes, us": row["median_us"] for row in report["rows"]}),
    "recover": (("--trials", "12", "--kills", "--strategy", "ddp,full_shard+shadow"), death),
}


def paired(found, each):
    """Median ratios of a figure in the same round: of the present programs to the mean of the two runs of the earlier
    ones around it, and of those two runs to each other."""
    rounds = list(zip(*(found[what].get(each, []) for what in found), strict=True))
    if not rounds:
        return 0, 0
    return (statistics.median(2 * now / (before + again) for before, now, again in rounds),
            statistics.median(again / before for before, _, again in rounds))


def no_slower(line):
    """dpt-bench train, strategies, allreduce and recover with the programs of 26e1113, the present ones and those of
    26e1113 again, in turn. A ratio is the median over rounds of the present time to the mean of the two earlier times
    of the same round. Over all figures of a benchmark the median of the ratios is at most 1.02. So is each single
    ratio; if the two runs of the earlier programs differ by more than 2 % (the median over rounds), its bar is that
    difference, 10 % at most."""
    old, new = programs_of(line, BASELINE, PROGRAMS_OF_IT), bin_dir().resolve()
    for name, (flags, times_of) in MEASURED.items():
        found = {"before": {}, "now": {}, "again": {}}
        for turn in range(line.repeat(ROUNDS)):
            for what in reversed(found) if turn % 2 else found:
                report = bench(line, name, *flags, programs=new if what == "now" else old)
                for each, time in times_of(report).items():
                    found[what].setdefault(each, []).append(time)
        ratios = []
        for each in found["before"]:
            ratio, control = paired(found, each)
            ratios.append(ratio)
            medians = ", ".join(f"{statistics.median(found[what][each]):.4g} {what}" for what in found)
            line.note(f"{name}, {each}: {medians}; the control differs by {control - 1:.3f}")
            noise = min(max(SLOWER_MAX, abs(control - 1)), NOISE_MAX)
            line.at_most(f"{name}, {each}, now over before", round(ratio, 4), round(1 + noise, 4))
        line.at_most(f"{name}, now over before, median of {len(ratios)}", round(statistics.median(ratios), 4),
                     1 + SLOWER_MAX)
        missing = [each for each in found["before"] if each not in found["now"]]
        line.show(f"figures of {name} that it no longer measures", ", ".join(missing) or "none", "none", not missing)


def is_product(name):
    return name.endswith(CODE) and not name.startswith(NOT_PRODUCT)


def shorter(line):
    """Product code (C, CUDA, op and message tables; without tests and bench) is at least 4,000 lines shorter than at
    26e1113, and tests/tidy finds no function over 60 lines or with more than 6 parameters, no struct with more than 30
    members, no file over 500 lines and no calls in circles within a folder, with five exceptions at most."""
    line.command(f"git ls-tree -r {BASELINE}, git ls-tree -r HEAD")
    before, now = lines_of(BASELINE, is_product), lines_of("HEAD", is_product)
    line.note(f"{before} lines at {BASELINE}, {now} now")
    line.at_least("lines fewer", before - now, SHORTER_LINES)
    argv = [ROOT / "tests" / "tidy", "--calls", build_folder()]
    line.command(argv)
    run = subprocess.run(argv, capture_output=True, text=True)
    rules = [text.split(": ")[1] for text in run.stdout.splitlines()[:-1]]
    for rule in sorted(set(rules)):
        line.note(f"{rule}: {rules.count(rule)} findings")
    line.show("findings of tests/tidy", len(rules), "== 0", run.returncode == 0)


def faults_found(line):
    """Ten deliberate faults (order of addition, commit, lease, checkpoint seal, an op, a heal, a grant, a shard
    boundary, a retry, a message check), each alone in a clone of this commit: a test that tests/run runs by default
    fails with it, and passes without."""
    show_faults(line)


def test_times(line):
    """`tests/run` takes at most 15 minutes and `tests/run --full` at most 40 minutes on 2 cores, each in a fresh clone
    without a compiler cache; both pass, with tests of all presets."""
    for args, bar_s in (((), RUN_BAR_S), (("--full",), FULL_BAR_S)):
        tree = clone(line.folder / ("tree" + "".join(args)))
        suite(line, root=tree, args=args, bar_s=bar_s, env={"CCACHE_DISABLE": "1"})


def rows_of(page):
    """[(question, file, names)] of the table of a page that begins with questions."""
    rows = re.findall(r"^\| ([^|]*\?) \| `([^`]*)`[^|]* \| ([^|]*) \|$", (ROOT / page).read_text(), re.M)
    return [(question, file, re.findall(r"`([^`]*)`", names)) for question, file, names in rows]


def show_paths(line, page):
    """Every path of the tree that a page names exists."""
    tops = {name.split("/")[0] for name in git("ls-files").splitlines() if "/" in name}
    named = {path for path in re.findall(r"`([\w.-]+/[\w./*-]*)`", (ROOT / page).read_text())
             if path.split("/")[0] in tops and not path.startswith(("build", "runs"))}
    missing = sorted(path for path in named if not list(ROOT.glob(path.rstrip("/"))))
    line.show(f"of {len(named)} paths in {page}, missing ones", ", ".join(missing) or "none", "none",
              named and not missing)


def newcomer(line):
    """docs/architecture.md leads to docs/tour.md, whose table names one file and its functions for each question of a
    newcomer: the order of addition, a dead rank, who may write a checkpoint, a config key, a new op, GO. The file
    exists, has these functions and is about the question. All paths of both pages exist. (People tried which file they
    open first.)"""
    line.command(f"{MAP}, {TOUR}")
    rows = rows_of(TOUR)
    leads = "(tour.md)" in (ROOT / MAP).read_text()
    line.show(f"{MAP} leads to the tour", leads, "True", leads)
    for question, words, witness in QUESTIONS:
        named = [(file, names) for asked, file, names in rows if words in asked]
        file, names = named[0] if len(named) == 1 else (f"{len(named)} rows", [])
        text = (ROOT / file).read_text() if (ROOT / file).is_file() else ""
        good = names and re.search(witness, text) and all(re.search(rf"\b{name}\b", text) for name in names)
        line.show(question, f"{file}: {', '.join(names)}", f"one file, with these and {witness}", good)
    for page in (MAP, TOUR):
        show_paths(line, page)


LINES = [no_bit_moved, no_slower, shorter, faults_found, test_times, newcomer]
