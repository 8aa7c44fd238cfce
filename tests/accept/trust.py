"""Topic trust: no silent loss, one clear line for every input, and a terminal that shows the events."""

import importlib
import json
import random
import re
import subprocess

from accept.bad_input import EXIT_FAILED
from accept.before import fails_before, no_allocations, not_slower
from accept.command_lines import command_lines
from accept.folders import KINDS, Lost, Mixed, kills
from accept.one_curve import STRATEGIES
from accept.simulator import simulate
from accept.speed import suite_at_every_isa
from accept.stories import RUN_TIMEOUT_S, settings
from accept.told import at_isas, build_folder, cases, stories
from cluster import ROOT, Cluster, ClusterError, program

SEEDS = 100_000      # of the simulator
KILLS = 200          # while others want the folders
DIVERGENCES = 100    # runs that diverge
DIVERGING_STEPS = 30
SHORT_TIMEOUT_S = 4 * 3600  # of a topic
DEPS_TIMEOUT_S = 300


def two_runs(line):
    """Timeouts, losses and refusals of a run do not affect another run on its server; pauses and backlogs of the server
    expel no node; restarts count by incident, not by node; nonces and generations are never used again."""
    cases(line, *(f"test_rendezvous_core_{name}" for name in (
        "hears_no_node", "late", "budget", "reuse", "wait", "fatal", "loss", "loss_end", "plan", "run_state",
        "timing")),
        "test_rendezvous_proto_message", "test_worker_train_rank")
    stories(line, "test_start.py::test_several_runs_on_one_server", "test_start.py::test_lone_node_of_two",
            "test_start.py::test_too_few_nodes_come", "test_start.py::test_name_that_is_used_again",
            "test_start.py::test_clock_that_was_set_back", "test_start.py::test_first_step_takes_too_long",
            "test_start.py::test_rank_hangs_in_the_first_step", "test_loss.py::test_newcomer_cannot_use_its_folder",
            "test_loss.py::test_one_incident_costs_one_restart", "test_disk.py::test_newcomer_with_a_broken_disk",
            "test_hosts.py::test_server_is_cut_off_from_two_runs")


def refused_changes_nothing(line):
    """A second worker with a living node's id is refused, with any config, and the healthy run continues."""
    cases(line, "test_rendezvous_core_join", "test_worker_agent_identity")
    stories(line, "test_refused.py::test_same_node_id_twice", "test_refused.py::test_other_config_of_a_node_id")


def broken_control(line):
    """A control connection that breaks over a healthy data plane costs nothing; real deaths are found at once."""
    cases(line, "test_rendezvous_core_broken", "test_rendezvous_core_return", "test_sim_agent", "test_sim_agent_life")
    stories(line, "test_control.py")


def outages(line):
    """The server is away for longer than every deadline: unsaved steps wait without limit, or are rescued when the
    nodes are told to end, and a restart continues from the rescue. Otherwise a line NOT SAVED has the number of lost
    steps."""
    cases(line, "test_sim_agent_outage", "test_sim_agent_failed", "test_rendezvous_core_final_save",
          "test_checkpoint_rescue", "test_worker_train_rank_rescue")
    stories(line, "test_outage.py", "test_disk.py::test_all_leave_and_one_folder_is_full",
            "test_loss.py::test_data_of_one_node_end", "test_loss.py::test_data_of_the_last_node_end")


def one_log(line):
    """Lines of the log wait until the server has answered: two worlds never write one log."""
    cases(line, "test_worker_train_pending_lines", "test_worker_train_run_files", "test_worker_train_fenced_record")
    stories(line, "test_hosts.py::test_two_worlds_write_one_log_in_turn")


def hugging_face(line):
    """Hugging Face's reader opens a trained checkpoint, and GPT-2 computed from it has the loss of --eval."""
    argv = [ROOT / "tests" / "run.d" / "python-deps", build_folder()]
    line.command(argv)
    deps = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=DEPS_TIMEOUT_S)
    if deps.returncode != 0:
        line.note(f"safetensors could not be installed: {deps.stderr[-500:]}")
    cases(line, "test_checkpoint_hugging_face", "test_checkpoint_pretrained")


def diverged_runs(line):
    """100 runs that diverge at a drawn step, over all strategies: exit 4, and the newest finite checkpoint, of the step
    before, exists, verifies and loads."""
    names, rng, wrong = sorted(STRATEGIES), random.Random(line.seed), []
    runs = line.repeat(DIVERGENCES)
    line.command(f"{runs} runs with DPT_TEST_SPOIL_STEPS=1:STEP, then dpt-ckpt verify and dpt-worker --eval")
    for i in range(runs):
        name, step, ranks = names[i % len(names)], rng.randrange(1, DIVERGING_STEPS), rng.choice((1, 2))
        try:
            diverged_run(line.folder / f"run{i}", name, step, ranks)
        except ClusterError as error:
            wrong.append(i)
            line.note(f"run {i}, {name}, step {step}, {ranks} ranks a node: {error}")
    line.show(f"runs of {runs} with a wrong end", len(wrong), "== 0", not wrong)
    line.note(f"{min(runs, len(names))} of {len(names)} strategies")


def diverged_run(root, name, step, ranks):
    """One run whose gradients of `step` (from 0) are spoiled. hybrid_shard has two nodes, each with the whole state;
    the others one."""
    nodes = ["a", "b"] if name == "hybrid_shard" else ["a"]
    sets = settings(4, DIVERGING_STEPS, checkpoint__every_steps=5, train__log_every=1, cluster__nnodes=len(nodes))
    sets.update(STRATEGIES[name], **{"data.val": root / "text.txt", "train.eval_tokens": 1024})
    with Cluster(root, sets=sets, shared_dirs=True) as cluster:
        def run(**how):
            workers = [cluster.start_worker(node, ranks=ranks, endpoint=None if cluster.server else False, **how)
                       for node in nodes]
            return workers, [worker.wait(RUN_TIMEOUT_S) for worker in workers]

        if len(nodes) > 1:
            cluster.start_server()
        workers, codes = run(env={"DPT_TEST_SPOIL_STEPS": f"1:{step}"})
        ensure(set(codes) == {EXIT_FAILED}, f"exit codes {codes}\n{cluster.log_tails()}")
        told = [e["step"] for e in workers[0].outputs.events() if e["kind"] == "diverged"]
        ensure(told == [step + 1], f"the events name the steps {told}, not {step + 1}")
        folder = workers[0].checkpoint_dir
        saved = sorted(int(p.name[5:]) for p in folder.glob("step-*"))
        ensure(saved and saved[-1] == step, f"checkpoints {saved}, the newest is not of step {step}")
        verify = subprocess.run([program("dpt-ckpt"), "verify", folder / f"step-{step:08}"], capture_output=True,
                                text=True)
        ensure(verify.returncode == 0, verify.stdout + verify.stderr)
        workers, codes = run(args=["--eval"])
        ensure(set(codes) == {0}, f"--eval: exit codes {codes}\n{cluster.log_tails()}")
        found = workers[0].outputs.evaluation() or {}
        ensure(found.get("step") == step and 0 < found["val_loss"] < 100, f"--eval found {found}, not step {step}")


def ensure(held, otherwise):
    if not held:
        raise ClusterError(otherwise)


def divergence_is_told(line):
    """Divergence ends the run with exit 4 and its step, and no state that is not finite is saved; kept checkpoints
    stay."""
    cases(line, "test_worker_optim_step_fate", "test_checkpoint_keep", "test_worker_train_rank_divergence")
    stories(line, "test_files.py::test_divergence_ends_the_run", "test_files.py::test_divergence_is_left_out",
            "test_files.py::test_divergence_limit", "test_files.py::test_what_is_kept",
            "test_start.py::test_divergence_is_said")


def contested_folders(line):
    """200 seeded kills of the owner, the server or everything while two other runs try to use the same folders: no
    committed checkpoint lost, no mixed log, one hash."""
    wanted = line.repeat(KILLS)
    line.command(f"contests, seeds from {line.seed * 1000}, until {wanted} kills found the run at work")
    killed, refused, count, errors = kills(line.folder, wanted, line.seed * 1000)
    for error in errors:
        line.note(str(error))
    line.at_least("kills", killed.total(), wanted)
    for kind in KINDS:
        line.at_least(f"kills of {kind}", killed[kind], 1)
    lost, mixed = (sum(isinstance(error, what) for error in errors) for what in (Lost, Mixed))
    line.show(f"contests of {count} in which a committed checkpoint was lost", lost, "== 0", lost == 0)
    line.show("in which a log was mixed", mixed, "== 0", mixed == 0)
    line.show("with another wrong end", len(errors) - lost - mixed, "== 0", len(errors) == lost + mixed)
    line.at_least("starts that were refused meanwhile", refused, count)


def one_owner(line):
    """A second run in a folder, or the same command twice, is refused with the owner's name; a start after kill -9
    continues the run; an owner that was suspended in between writes nothing."""
    cases(line, "test_base_claim", "test_worker_agent_claims", "test_worker_train_saver")
    stories(line, "test_files.py::test_same_command_twice", "test_files.py::test_same_command_twice_at_one_server",
            "test_files.py::test_one_that_stood_still_loses_the_folder")


def damaged_checkpoints(line):
    """No start from step 0 over damaged checkpoints without --allow-fresh; dpt-ckpt list calls a checkpoint verified
    only after reading it."""
    stories(line, "test_files.py::test_all_checkpoints_damaged", "test_files.py::test_damaged_files_are_said_once")


def signals(line):
    """SIGHUP and SIGQUIT drain like SIGTERM, under nohup SIGHUP does not; the drain time is a key; without a server
    one signal ends the process in time."""
    cases(line, "test_base_signals", "test_rendezvous_core_timing")
    stories(line, "test_end.py")


def one_error(line):
    """A fatal error, too little memory, an unknown host, unknown keys and a full disk are each reported once, at once,
    with what to do."""
    cases(line, "test_base_config", "test_base_config_yaml", "test_base_config_table", "test_base_config_strategy",
          "test_base_config_optim", "test_base_config_compression", "test_configs_load", "test_worker_agent_options")
    stories(line, "test_refused.py", "test_disk.py", "test_reach.py::test_name_without_address")


def terminal(line):
    """The live line, the plain lines, the events, --quiet, --verbose, NO_COLOR and the closing summary."""
    cases(line, "test_worker_agent_progress_text", "test_worker_agent_progress", "test_worker_agent_progress_state",
          "test_worker_agent_terminal", "test_worker_agent_worker")
    stories(line, "test_terminal.py", "test_loss.py::test_steps_lost_with_the_whole_world")


def two_machines(line):
    """The commands that the server prints work on two machines; a worker that reaches no server says why within
    seconds."""
    cases(line, "test_rendezvous_server_announce")
    stories(line, "test_reach.py", "test_hosts.py")


def simulated(line):
    """100,000 seeds of the simulator, with outages, two runs on a server and overload: no broken invariant."""
    totals = simulate(line, line.seed * 1_000_000, line.repeat(SEEDS))
    for what in ("outages", "overloads", "second runs", "rescues"):
        line.at_least(what, sum(int(n) for text in totals for n in re.findall(rf"(\d+) {what}\b", text)), 1)


def same_bits(line):
    """The tests of ops, bits, ranges and packing pass at ISA avx2 and at the machine's best. There, too, runs on the
    host and on a device of another kind have the bits of the reference, and the times of ops add up."""
    cases(line, *at_isas(*(f"test_kernels_{name}" for name in (
        "ops", "bits", "range", "alloc", "pack", "decode", "op_times"))),
        *at_isas("test_worker_train_rank_settings_one_hash_0", isas=("avx2",)))


# The short form of a topic: these of its lines, whole but for their repetitions, of which there is this share. They
# hold the hashes of every world, strategy and precision, through kills and joins; losses beside PyTorch; recovery;
# refusals. The others measure speed and memory, which this work leaves alone, or need hours.
SHORT_SCALE = 0.05
SHORT = {
    "first-light": ("one_hash", "mutation", "kill_rank", "kill_worker"),
    "daily-bread": ("one_hash_bf16", "one_val_loss"),
    "one-curve": ("one_hash", "pytorch_losses", "recovery_trials", "refused"),
}


def short_forms(line):
    """The short forms of first-light, daily-bread and one-curve pass on this commit."""
    for topic, names in SHORT.items():
        lines = [each.__name__ for each in importlib.import_module(f"accept.{topic.replace('-', '_')}").LINES]
        only = ",".join(str(lines.index(name) + 1) for name in names)
        record = line.folder / f"{topic}.json"
        argv = [ROOT / "tests" / "acceptance", topic, "--scale", SHORT_SCALE, "--only", only, "--json", record]
        line.command(argv)
        with open(line.folder / f"{topic}.log", "w", encoding="utf-8") as log:
            code = subprocess.run([str(a) for a in argv], stdout=log, stderr=log, timeout=SHORT_TIMEOUT_S).returncode
        found = json.loads(record.read_text())
        line.show(f"{topic}, lines {only}: exit code", code, "== 0", code == 0)
        passed = [each["name"] for each in found["lines"] if each["verdict"] == "pass"]
        line.show(f"{topic}: lines that passed", ", ".join(passed), ", ".join(names), passed == list(names))
        rest = [name for name in lines if name not in names]
        not_run = [each["name"] for each in found["not_run"]]
        line.show(f"{topic}: lines that were not run", ", ".join(not_run), ", ".join(rest), not_run == rest)


LINES = [outages, two_runs, refused_changes_nothing, broken_control, one_log, hugging_face, divergence_is_told,
         one_owner, damaged_checkpoints, signals, one_error, terminal, two_machines, fails_before, simulated,
         command_lines, contested_folders, diverged_runs, no_allocations, same_bits, not_slower, suite_at_every_isa,
         short_forms]
