"""dpt-trace puts the files of one window together, and refuses files that do not belong together.

Run by ctest: pytest test_windows.py, with DPT_TRACE naming the program."""

import pytest
import synthetic
from dpt_trace import change_events, near, refused, report, rows_of, trace
from synthetic import Run, even

OTHER = "00000000000000b2"  # the generation_id of another run


def mixed(folder, *runs):
    """Rank r of the r-th run."""
    paths = [synthetic.write(folder / str(i), run)[i] for i, run in enumerate(runs)]
    return ",".join(map(str, paths))


def test_all_windows_in_folders(tmp_path):
    for window in range(3):
        run = Run(even(ranks=2), window=window, first_step=3 + 5 * window, shift_us=window * 1e6)
        synthetic.write(tmp_path / "traces", run, 1_790_000_000_000_000_000 + window * 10 ** 9)
    done = trace(tmp_path, "ddp", "--select", "all")
    assert done.returncode == 0, done.stderr
    folders = sorted(path.name for path in (tmp_path / "reports" / "ddp").iterdir())
    assert folders == [f"run_{i}_{1_790_000_000_000_000_000 + i * 10 ** 9}" for i in range(3)]
    done = trace(tmp_path, "ddp", "--out", "elsewhere")
    assert rows_of(tmp_path / "elsewhere" / "ddp" / "summary.csv")[0]["window"] == "2", done.stderr


def test_a_run_after_another_in_one_folder(tmp_path):
    """Both have window 0 of generation 1."""
    synthetic.write(tmp_path / "traces", Run(even(ranks=2)))
    later = Run(even(ranks=2, compute_ms=80.0), shift_us=3600e6)
    synthetic.write(tmp_path / "traces", later, 1_791_000_000_000_000_000)
    done = trace(tmp_path, "ddp")
    assert done.returncode == 0, done.stderr
    near(rows_of(tmp_path / "reports" / "ddp" / "summary.csv")[0]["step_ms"], 83.5, 0.001)


@pytest.mark.parametrize("apart_s", [10, 3600])
def test_ranks_of_two_runs_make_no_window(tmp_path, apart_s):
    """Rank 0 is of one run and rank 1 of a later one: the later run is reported, without its rank 0."""
    first = synthetic.write(tmp_path / "traces", Run(even(ranks=2)))
    later = Run(even(ranks=2, compute_ms=80.0), generation_id=OTHER, shift_us=apart_s * 1e6)
    second = synthetic.write(tmp_path / "traces", later, 1_790_000_000_000_000_000 + apart_s * 10 ** 9)
    first[1].unlink()
    second[0].unlink()
    done = trace(tmp_path, "ddp")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ("dpt-trace: warning: no trace of rank 0 (world size 2): the figures are those of 1 rank; "
                           f"'{first[0].relative_to(tmp_path)}' is of another run (generation_id 00000000000000a1)\n")
    rows = rows_of(tmp_path / "reports" / "ddp" / "summary.csv")
    assert [row["rank"] for row in rows] == ["1"]
    near(rows[0]["step_ms"], 83.5, 0.001)
    assert trace(tmp_path, "ddp", "--select", "all").returncode == 0
    assert len(list((tmp_path / "reports" / "ddp").glob("run_*"))) == 2


def without_steps(path):
    change_events(path, lambda events: [event for event in events if not event["name"].startswith("ProfilerStep")])


@pytest.mark.parametrize("has_steps", [True, False])
@pytest.mark.parametrize("apart", [2, 200])
def test_windows_of_another_program_with_a_missing_file(tmp_path, has_steps, apart):
    """Rank 1 has no file of window 0: its file of window 1 joins that of rank 0, by its steps or, without steps, by its
    times. Both windows have the same steps if rank 0 was started again, 2 s later."""
    first = synthetic.write(tmp_path / "traces", Run(even(ranks=2), form="pytorch"))
    first_step = 3 if apart == 2 else 30
    later = Run(even(ranks=2, compute_ms=80.0), form="pytorch", first_step=first_step, shift_us=apart * 1e6)
    second = synthetic.write(tmp_path / "traces", later, 1_790_000_000_000_000_000 + apart * 10 ** 9)
    first[1].unlink()
    for path in [] if has_steps else [first[0], *second]:
        without_steps(path)
    done = trace(tmp_path, "ddp", "--select", "all")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "dpt-trace: warning: no trace of rank 1 (world size 2): the figures are those of 1 rank\n"
    windows = [[row["rank"] for row in rows_of(path / "summary.csv")]
               for path in sorted((tmp_path / "reports" / "ddp").iterdir())]
    assert windows == [["0"], ["0", "1"]]


def test_older_files_have_no_generation_id(tmp_path):
    """Their ranks are told apart by their times only."""
    rows, done = report(tmp_path, Run(even(ranks=2), generation_id=""))
    assert len(rows) == 2 and not done.stderr
    files = mixed(tmp_path, Run(even(ranks=2), generation_id=""),
                  Run(even(ranks=2), generation_id="", shift_us=3600e6))
    refused(trace(tmp_path, "ddp", "--trace-files", files), "do not belong together", "more than a minute apart")


@pytest.mark.parametrize("change, words", [
    ({"strategy": "full_shard"}, ["strategies ddp and full_shard"]), ({"world_size": 3}, ["world sizes 2 and 3"]),
    ({"generation": 2}, ["generations 1 and 2"]), ({"window": 1}, ["two windows are mixed", "0 and 1"]),
    ({"first_step": 30}, ["two windows are mixed", "3 to 5 and 30 to 32"]), ({"form": "pytorch"}, ["another program"]),
    ({"generation_id": OTHER, "shift_us": 10e6}, ["of two runs", "00000000000000a1 and 00000000000000b2"]),
    ({"generation_id": ""}, ["of two runs", "00000000000000a1 and (none)"]),
    ({"shift_us": 3600e6}, ["more than a minute apart"]),
])
def test_refuses_ranks_of_different_runs(tmp_path, change, words):
    files = mixed(tmp_path, Run(even(ranks=2)), Run(even(ranks=2), **change))
    refused(trace(tmp_path, "ddp", "--trace-files", files), "do not belong together", *words)


def test_refuses_two_files_of_a_rank(tmp_path):
    paths = synthetic.write(tmp_path / "traces", Run(even(ranks=2)))
    twin = tmp_path / "twin.json.gz"
    twin.write_bytes(paths[1].read_bytes())
    files = ",".join(map(str, [*paths, twin]))
    refused(trace(tmp_path, "ddp", "--trace-files", files), "twin.json.gz", "both of rank 1")
    refused(trace(tmp_path, "ddp", "--trace-files", twin, "--trace-files", twin), "both of rank 1")


def test_refuses_a_rank_outside_its_world(tmp_path):
    paths = synthetic.write(tmp_path, Run(even(ranks=3), world_size=2))
    refused(trace(tmp_path, "ddp", "--trace-files", paths[2]), "rank 2 in a world of 2")


# ---------------------------------------------------------------- a damaged file beside windows that can be reported

def damage(folder, strategy, time_ns, rank=1):
    path = folder / "traces" / "profile" / strategy / f"rank_{rank}" / f"worker_{rank}.{time_ns}.pt.trace.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x1f\x8b damaged")
    return path


WRITTEN_NS = 1_790_000_000_000_000_000


@pytest.mark.parametrize("strategy, time_ns", [("full_shard", WRITTEN_NS + 10 ** 9), ("ddp", WRITTEN_NS - 10 ** 9)])
def test_damaged_file_of_another_window(tmp_path, strategy, time_ns):
    """Another strategy, or an older window of a rank that the newest window has."""
    synthetic.write(tmp_path / "traces", Run(even(ranks=2)), WRITTEN_NS)
    path = damage(tmp_path, strategy, time_ns)
    done = trace(tmp_path, "ddp")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"dpt-trace: warning: '{path.relative_to(tmp_path)}'"), done.stderr
    assert done.stderr.endswith("; it is of no window that is reported\n") and done.stderr.count("\n") == 1
    assert len(rows_of(tmp_path / "reports" / "ddp" / "summary.csv")) == 2
    if strategy == "ddp":
        refused(trace(tmp_path, "ddp", "--select", "all"), str(time_ns))
    else:
        refused(trace(tmp_path, "sharding"), str(time_ns))
    refused(trace(tmp_path, "compare"), str(time_ns))


def test_damaged_file_beside_sharding(tmp_path):
    synthetic.write(tmp_path / "traces", Run(even(ranks=2), strategy="full_shard"), WRITTEN_NS)
    path = damage(tmp_path, "ddp", WRITTEN_NS)
    done = trace(tmp_path, "sharding")
    assert done.returncode == 0 and str(path.name) in done.stderr, done.stderr
    path.unlink()
    path = damage(tmp_path, "mine", WRITTEN_NS)
    refused(trace(tmp_path, "sharding"), path.name)


@pytest.mark.parametrize("strategy, time_ns, rank", [
    ("ddp", WRITTEN_NS + 10 ** 9, 1), ("ddp", WRITTEN_NS - 10 ** 9, 2), ("..", WRITTEN_NS - 10 ** 9, 1)])
def test_damaged_file_that_may_be_of_the_window(tmp_path, strategy, time_ns, rank):
    """It is newer, of a rank that the window lacks, or in no folder of a strategy."""
    synthetic.write(tmp_path / "traces", Run(even(ranks=2), world_size=3), WRITTEN_NS)
    damage(tmp_path, strategy, time_ns, rank)
    refused(trace(tmp_path, "ddp"), str(time_ns))
