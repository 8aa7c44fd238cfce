"""Lines that compare with the programs of an earlier commit, 5365607; DPT_BEFORE_BIN names their folder."""

import json
import os
import random
import re
import statistics
import subprocess
from pathlib import Path

from accept.harness import NotRun
from accept.speed import bench
from accept.told import collected, cpu_flags, run_stories
from cluster import bin_dir

BEFORE = "DPT_BEFORE_BIN"
BEFORE_COMMIT = "5365607"
STORY_TIMEOUT_S = 240
PAIRS = 5           # of dpt-bench train, before and now
LOSS_MAX = 0.02     # of speed: how low the bar may go, however much pairs of one program differ
TRAIN_TIMEOUT_S = 1200
GPT2 = ("--preset", "gpt2-124m", "--threads", "2", "--steps", "12")
PRECISIONS = ("fp32", "bf16")
NOW_AVX2, BEFORE_AVX2 = {"DPT_TEST_ISA": "avx2"}, {"DPT_ISA": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}

# Stories that are new with this work: FILE::TEST, or FILE::TEST[CASES] with a regular expression of the cases' names.
NEW = (
    "test_outage.py::test_rescue_in_a_formation",
    "test_outage.py::test_server_is_back_after_the_join_time",
    "test_outage.py::test_all_are_told_without_a_server",
    "test_outage.py::test_nowhere_to_save",
    "test_outage.py::test_told_twice_counts_what_is_lost",
    "test_outage.py::test_end_without_a_server",
    "test_outage.py::test_rank_dies_without_a_server",
    "test_outage.py::test_rescue_without_the_writer_of_the_log",
    "test_start.py::test_divergence_is_said",
    "test_start.py::test_lone_node_of_two",
    "test_start.py::test_too_few_nodes_come",
    "test_start.py::test_name_that_is_used_again",
    "test_start.py::test_clock_that_was_set_back",
    "test_start.py::test_first_step_takes_too_long",
    "test_start.py::test_rank_hangs_in_the_first_step",
    "test_loss.py::test_newcomer_cannot_use_its_folder",
    "test_loss.py::test_one_incident_costs_one_restart",
    "test_loss.py::test_steps_lost_with_the_whole_world",
    "test_loss.py::test_data_of_the_last_node_end",
    "test_refused.py::test_same_node_id_twice",
    "test_refused.py::test_other_config_of_a_node_id",
    "test_control.py::test_a_broken_control_connection_costs_nothing",
    "test_control.py::test_a_node_dies_while_its_control_connection_is_broken",
    "test_control.py::test_an_agent_dies_alone",
    "test_hosts.py::test_two_worlds_write_one_log_in_turn",
    "test_hosts.py::test_server_is_cut_off_from_two_runs",
    "test_files.py::test_divergence_ends_the_run",
    "test_files.py::test_divergence_is_left_out",
    "test_files.py::test_divergence_limit",
    "test_files.py::test_what_is_kept",
    "test_files.py::test_all_checkpoints_damaged",
    "test_files.py::test_damaged_files_are_said_once",
    "test_files.py::test_same_command_twice",
    "test_files.py::test_same_command_twice_at_one_server",
    "test_files.py::test_one_that_stood_still_loses_the_folder",
    "test_files.py::test_contests",
    "test_end.py::test_server[1|3]",
    "test_end.py::test_worker_without_server[1|3]",
    "test_end.py::test_all_workers_leave[1|3]",
    "test_end.py::test_drain_time_is_a_key",
    "test_end.py::test_who_waits_for_another_loses_its_rank",
    "test_end.py::test_frozen_rank_of_a_node_that_leaves",
    r"test_refused.py::test_worker_options[.*train\.stepz.*]",
    r"test_refused.py::test_config_files[.*ufeff.*]",
    "test_refused.py::test_fatal_error_is_said_once",
    "test_refused.py::test_too_little_memory",
    "test_refused.py::test_more_steps",
    "test_refused.py::test_no_checkpoints",
    "test_refused.py::test_most_slots_of_a_step",
    "test_disk.py::test_logs",
    "test_disk.py::test_log_that_is_written_again",
    "test_disk.py::test_log_folder_that_is_full",
    "test_disk.py::test_checkpoints",
    "test_disk.py::test_leaving",
    "test_disk.py::test_all_leave_and_one_folder_is_full",
    "test_disk.py::test_limits_of_the_worker",
    "test_command_lines.py::test_drawn_lines",
    "test_terminal.py::test_live_line_below_events",
    "test_terminal.py::test_events_scroll_above_a_live_line",
    "test_terminal.py::test_terminal_without_live_line",
    "test_terminal.py::test_ascii_where_the_locale_is",
    "test_terminal.py::test_without_terminal",
    "test_terminal.py::test_quiet_and_verbose",
    "test_terminal.py::test_recovery_is_one_line_on_every_node",
    "test_reach.py::test_port_refuses",
    "test_reach.py::test_server_that_comes_late_is_found",
    "test_reach.py::test_name_without_address",
    "test_reach.py::test_other_program_listens",
    "test_reach.py::test_host_does_not_answer",
    "test_reach.py::test_server_on_localhost_is_told_apart",
    "test_reach.py::test_what_the_server_prints_is_what_works",
    "test_reach.py::test_server_prints_its_token",
    "test_reach.py::test_open_server_warns",
    "test_reach.py::test_worker_without_config_takes_the_only_run",
)


def before_bin():
    """The folder of the programs to compare with."""
    if not os.environ.get(BEFORE):
        raise NotRun(f"{BEFORE} names no programs of {BEFORE_COMMIT} to compare with")
    return Path(os.environ[BEFORE]).resolve()


def cases_of(story, ids):
    """The test ids that match an entry of NEW."""
    test, _, wanted = story.partition("[")
    found = [each for each in ids if each.partition("[")[0] == test
             and (not wanted or re.fullmatch(wanted[:-1], each.partition("[")[2][:-1]))]
    if not found:
        raise AssertionError(f"{story}: there is no such story")
    return found


def fails_before(line):
    """Each story that tests a later change fails with the programs of 5365607 (in DPT_BEFORE_BIN): none passes, is
    skipped, or breaks outside its own body. A story that exceeds its time has failed."""
    programs = before_bin()
    ids = collected(sorted({story.partition("::")[0] for story in NEW}))
    ids = [each for story in NEW for each in cases_of(story, ids)]
    ids = [ids[i] for i in sorted(random.Random(line.seed).sample(range(len(ids)), line.repeat(len(ids))))]
    line.command(f"DPT_BIN={programs} pytest tests/multi/…: {len(ids)} stories, each for {STORY_TIMEOUT_S} s at most")
    held = []
    for i, name in enumerate(ids):
        told, in_time = run_stories(line.folder / str(i), [name], programs, STORY_TIMEOUT_S)
        verdict = told[0].verdict if len(told) == 1 else "not run"
        if not in_time:
            line.note(f"did not end within {STORY_TIMEOUT_S} s  {name}")
        else:
            line.note(f"{verdict}  {name}{': ' + first_line(told[0].why) if told else ''}")
        if in_time and verdict != "failed":
            held.append(f"{name} {verdict}")
    line.show(f"stories of {len(ids)} that do not fail with the programs of {BEFORE_COMMIT}",
              ", ".join(held) or "none", "none", not held)


def first_line(text):
    return (text.splitlines() or [""])[0][:160]


def environment(extra):
    """The environment of this process; only `extra` may limit the instruction set."""
    return {**{k: v for k, v in os.environ.items() if k not in {**NOW_AVX2, **BEFORE_AVX2}}, **extra}


def allocations(line, what, programs, env, device):
    """{precision: allocations in a step}. The programs' fingerprint must match the regular expression `device`."""
    found = bench(line, "gemm", "--threads", "2", "--repeats", "1", env=env, programs=programs)["fingerprint"]
    line.show(f"device of {what}", found, device, re.match(device, found))
    return {precision: bench(line, "train", *GPT2, "--batch", "1", "--seq", "64", "--precision", precision, env=env,
                             programs=programs)["allocations_in_step"] for precision in PRECISIONS}


def no_allocations(line):
    """A step makes no allocation, at ISA avx2 and at the machine's best. If DPT_BEFORE_BIN is set, the programs of
    5365607 must show allocations at avx2, which proves that the measurement sees them."""
    at_avx2, best = r"cpu avx2 \S+ isa-7 ", r"cpu avx512 " if "avx512bw" in cpu_flags() else r"cpu avx2 "
    for what, extra, device in (("avx2", NOW_AVX2, at_avx2), ("best", {}, best)):
        line.command(f"at ISA {what}: {extra}")
        for precision, count in allocations(line, what, bin_dir(), environment(extra), device).items():
            line.show(f"allocations in a step, {what}, {precision}", count, "== 0", count == 0)
    if not os.environ.get(BEFORE):
        line.note(f"{BEFORE} is not set: that the earlier programs made allocations is not measured")
        return
    line.command(f"the programs of {BEFORE_COMMIT}: {BEFORE_AVX2}")
    for precision, count in allocations(line, "before", before_bin(), environment(BEFORE_AVX2), at_avx2).items():
        line.show(f"allocations in a step, before, {precision}", count, "> 0", count > 0)


def not_slower(line):
    """dpt-bench train at ISA avx2, fp32 and bf16, is not slower than the programs of 5365607: the median ratio of
    tokens a second in interleaved pairs, in which the newer program comes first every second time. The bar is 1 less
    the median difference between pairs of the earlier program, which run in between. If this difference is above 0.02,
    smaller differences cannot be seen, and the bar is 0.98."""
    before = before_bin()
    for precision in PRECISIONS:
        for shape in (("--batch", "4", "--seq", "64"), ("--batch", "1", "--seq", "256")):
            name = f"{precision} {' '.join(shape)}"
            line.command(f"dpt-bench train {' '.join(GPT2)} --precision {name}, before and now")
            now, control = [], []
            for pair in range(line.repeat(PAIRS)):
                order, rates = ["before", "now", "again"], {}
                for what in reversed(order) if pair % 2 else order:
                    programs, limit = (bin_dir(), NOW_AVX2) if what == "now" else (before, BEFORE_AVX2)
                    rates[what] = rate(line.folder / "rate.json", programs, limit, precision, shape)
                now.append(rates["now"] / rates["before"])
                control.append(rates["again"] / rates["before"])
            for what, ratios in (("now", now), ("before", control)):
                line.note(f"{name}, {what} beside before: {', '.join(f'{ratio:.3f}' for ratio in ratios)}")
            noise = statistics.median(abs(ratio - 1) for ratio in control)
            line.note(f"{name}: pairs of the earlier program differ by {noise:.3f}")
            line.at_least(f"tokens a second beside before, {name}, median of {len(now)}",
                          round(statistics.median(now), 3), round(1 - min(noise, LOSS_MAX), 3))


def rate(path, programs, limit, precision, shape):
    """Tokens a second of `dpt-bench train`."""
    argv = [str(programs / "dpt-bench"), "train", *GPT2, "--precision", precision, *shape, "--json", str(path)]
    subprocess.run(argv, env=environment(limit), check=True, capture_output=True, timeout=TRAIN_TIMEOUT_S)
    return json.loads(path.read_text())["tokens_per_s"]
