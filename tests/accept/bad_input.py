"""Lines of first-light about bad input: one clear line (what, where, what to do), its exit code, nothing lost."""

import os
import re
import shutil
import subprocess

from accept.stories import RUN_TIMEOUT_S, STEP_TIMEOUT_S, settings, undisturbed
from cluster import ROOT, TINY, Cluster, ClusterError, Process, make_text, program

SHORT_TIMEOUT_S = 20
EXIT_CONFIG, EXIT_SERVER, EXIT_FAILED = 2, 3, 4
CLEAR_LINE_BYTES_MAX = 800
PLACE = r"config\.yaml:\d+:\d+"


def complaint(text):
    """The error lines: a program's final line, and lines logged as error or warning."""
    lines = [t for t in text.splitlines() if re.search(r"^dpt-\w+: |^\S+Z [EW][ :]", t)]
    return lines or text.splitlines()[-1:]


def show_complaint(line, what, code, codes, output, patterns):
    """One line of the output must match every pattern (what, where, what to do); the exit code is one of `codes`."""
    found = [t for t in complaint(output) if all(re.search(p, t, re.I) for p in patterns)]
    line.show(f"{what}: exit code", code, " or ".join(f"== {c}" for c in codes), code in codes)
    shown = found[0] if found else (complaint(output) or [output[-300:]])[-1]
    line.show(f"{what}: says", shown, "one line with " + ", ".join(f"/{p}/" for p in patterns),
              bool(found) and len(shown) <= CLEAR_LINE_BYTES_MAX)


def run_worker(line, name, yaml=None, sets=None, args=(), timeout=SHORT_TIMEOUT_S, env=None, prefix=()):
    """Runs a single worker with an embedded server to its end; returns (exit code, output, log.dir)."""
    folder = line.folder / name
    with Cluster(folder, sets=dict(settings(8, steps=20), **(sets or {}))) as cluster:
        config = TINY
        if yaml is not None:
            config = folder / "config.yaml"
            config.write_text(yaml)
        argv = [*prefix, *cluster.worker_argv("a", config=config, nnodes=1, endpoint=False, args=args)]
        worker = Process(f"worker {name}", argv, folder / "worker.log", dict(cluster.env, **(env or {})), cwd=folder)
        code = worker.wait(timeout)
        return code, worker.log(), folder


def bad_config(line):
    """Unknown or ill-typed keys, impossible combinations: one clear line with file:line:column, the key and what to do;
    exit 2."""
    base = TINY.read_text()
    cases = [
        ("unknown key", base.replace("  micro_batch:", "  micro_bach:"), {}, [PLACE, "micro_bach", "micro_batch"]),
        ("ill-typed key", base.replace("  steps: 40", "  steps: many"), None, [PLACE, r"train\.steps", "many"]),
        ("out of range", base.replace("dropout: 0.1", "dropout: 1.5"), {}, [PLACE, r"model\.dropout", "1"]),
        ("broken YAML", base + "train: {a: [\n", {}, [PLACE]),
        ("unknown key in --set", base, {"train.stepz": 5}, [r"train\.stepz", r"train\.steps"]),
        ("impossible batch", base, {"train.global_batch": 10, "train.micro_batch": 4},
         ["global_batch", "micro_batch", r"\d"]),
        ("impossible heads", base, {"model.n_embd": 65}, [r"n_embd", r"n_head"]),
        ("impossible sequence", base, {"train.seq_len": 4096}, [r"seq_len", r"context"]),
        ("unknown model", base, {"model.name": "resnext"}, [r"model\.name", "resnet"]),
        ("a model of images for text", base, {"model.name": "resnet", "model.labels": 10}, [r"data\.kind", "cifar10"]),
    ]
    for name, yaml, sets, patterns in cases:
        if sets is None:  # the key at fault is one that --set would hide
            code, output = run_bare(line, name.replace(" ", "-"), yaml)
        else:
            code, output, _ = run_worker(line, name.replace(" ", "-"), yaml, sets)
        show_complaint(line, name, code, [EXIT_CONFIG], output, patterns)
    for what, flags, patterns in (("unknown flag", ["--confg", "x"], ["--confg", "--config"]),
                                  ("missing config file", ["--config", line.folder / "none.yaml"], [r"none\.yaml"])):
        run = subprocess.run([program("dpt-worker"), *flags], capture_output=True, text=True, timeout=SHORT_TIMEOUT_S)
        show_complaint(line, what, run.returncode, [EXIT_CONFIG], run.stderr, patterns)


def run_bare(line, name, yaml):
    """Runs a worker with its config file as the only argument."""
    folder = line.folder / name
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml)
    worker = Process(name, [program("dpt-worker"), "--config", folder / "config.yaml", "--nnodes", "1"],
                     folder / "worker.log", cwd=folder)
    try:
        return worker.wait(SHORT_TIMEOUT_S), worker.log()
    finally:
        worker.kill()


def shard(path, tokens, magic=20240520, version=1, claimed=None):
    """A .bin token shard: 256 int32 of header, then uint16 tokens."""
    header = [magic, version, tokens if claimed is None else claimed] + [0] * 253
    body = b"".join((i % 199).to_bytes(2, "little") for i in range(tokens))
    path.write_bytes(b"".join(h.to_bytes(4, "little") for h in header) + body)


def flip_byte(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))


def bad_data(line):
    """Missing or truncated shards, wrong magic, damaged checkpoint: one clear line, its exit code, nothing lost."""
    data = line.folder / "shards"
    data.mkdir()
    made = {"missing": None, "truncated": {"tokens": 500, "claimed": 5000}, "wrong-magic": {"tokens": 5000, "magic": 7},
            "wrong-version": {"tokens": 5000, "version": 9}, "tiny": {"tokens": 5}}
    says = {"missing": ["missing.*bin", "no (such )?file|match|found|shard"], "truncated": [r"truncated\.bin", r"\d"],
            "wrong-magic": [r"wrong-magic\.bin", "magic"], "wrong-version": [r"wrong-version\.bin", "version"],
            "tiny": ["tiny", r"seq_len|sample|short"]}
    for name, how in made.items():
        path = data / f"{name}.bin"
        if how is not None:
            shard(path, **how)
        code, output, _ = run_worker(line, name, sets={"data.kind": "tokens", "data.train": path})
        show_complaint(line, f"{name} shard", code, [EXIT_CONFIG], output, says[name])
    code, output, _ = run_worker(line, "missing-text", sets={"data.train": line.folder / "nowhere.txt"})
    show_complaint(line, "missing text", code, [EXIT_CONFIG], output, [r"nowhere\.txt"])
    code, output, _ = run_worker(line, "folder-for-text", sets={"data.train": data})
    show_complaint(line, "a folder for a text", code, [EXIT_CONFIG], output, ["shards"])
    bad_images(line)
    damaged_checkpoint(line)


IMAGES = """run: images
cluster: {device: cpu, threads: 1, timeout_s: 2}
model: {name: resnet, n_layer: 3, width: 8, labels: 2}
"""
PIXEL = bytes.fromhex(  # a PNG of one grey pixel
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
    "0000000a49444154789c636800000082008177cd72b60000000049454e44ae426082")


def bad_images(line):
    """A truncated file of CIFAR-10, a label outside the range, a damaged image, a class without images."""
    record = bytes(3072)
    files = {"truncated": b"\0" + record + b"\1" + record[:-100], "label": b"\0" + record + b"\7" + record}
    says = {"truncated": [r"truncated\.bin", "truncated", "fetch|copy"],
            "label": [r"label\.bin", "record 1", "label 7", r"model\.labels"],
            "damaged": [r"a/2\.png", "damaged", r"data\.damaged_images"], "empty": [r"empty/b", "no image", "put"]}
    for name, data in files.items():
        (line.folder / f"{name}.bin").write_bytes(data)
        code, output, _ = run_worker(line, f"cifar-{name}", yaml=IMAGES,
                                     sets={"data.kind": "cifar10", "data.train": line.folder / f"{name}.bin"})
        show_complaint(line, f"CIFAR-10, {name}", code, [EXIT_CONFIG], output, says[name])
    for name in ("damaged", "empty"):
        folder = line.folder / name
        for label in "ab":
            (folder / label).mkdir(parents=True)
            if (name, label) != ("empty", "b"):
                (folder / label / "1.png").write_bytes(PIXEL)
        if name == "damaged":
            (folder / "a" / "2.png").write_bytes(PIXEL[:-20])
        code, output, _ = run_worker(line, f"images-{name}", yaml=IMAGES,
                                     sets={"data.kind": "images", "data.train": folder})
        show_complaint(line, f"images, {name}", code, [EXIT_CONFIG], output, says[name])


def damaged_checkpoint(line):
    """One byte of the newest checkpoint is flipped: the run reports it, resumes from the checkpoint before, and ends
    with equal bits."""
    sets = settings(8, steps=40, checkpoint__every_steps=10)
    whole = undisturbed(line.folder / "whole", 1, sets=sets)
    with Cluster(line.folder / "damaged", sets=dict(sets, **{"cluster.nnodes": "1"})) as cluster:
        cluster.start_server()
        worker = cluster.start_worker("a")
        cluster.wait_step(32, STEP_TIMEOUT_S)
        worker.kill_machine()
        newest = sorted(worker.checkpoint_dir.glob("step-*"))[-1]
        weights = max(newest.glob("*.safetensors"), key=lambda p: p.stat().st_size)
        flip_byte(weights, weights.stat().st_size // 2)
        kept = {p.name for p in worker.checkpoint_dir.glob("step-*")}
        again = cluster.start_worker("a")
        code = again.wait(RUN_TIMEOUT_S)
        output = again.log() + "".join(p.read_text() for p in again.outputs.dir.glob("node-*/rank-*.log"))
        show_complaint(line, "damaged checkpoint", code, [0], output, [newest.name, "damaged|checksum|hash"])
        line.show("damaged checkpoint: checkpoints before the damage", sorted(kept), f"{newest.name} and an older one",
                  len(kept) >= 2)
        summary = again.outputs.summary() or {}
        line.show("damaged checkpoint: weights_hash at the end", summary.get("weights_hash"), f"{whole}",
                  summary.get("weights_hash") == whole)


def other_version(line):
    """dpt-worker of the same sources with another protocol version."""
    tree, build = line.folder / "other-version", line.folder / "other-build"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns("build", "build-*", "runs", ".git", "__pycache__"))
    header = tree / "rendezvous/proto/message.h"
    text, count = re.subn(r"DPT_PROTO_VERSION = \d+", "DPT_PROTO_VERSION = 4242", header.read_text())
    if count != 1:
        raise ClusterError(f"{header} has no DPT_PROTO_VERSION")
    header.write_text(text)
    for argv in (["cmake", "-S", tree, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"],
                 ["cmake", "--build", build, "--target", "dpt-worker"]):
        run = subprocess.run([str(a) for a in argv], capture_output=True, text=True)
        if run.returncode != 0:
            raise ClusterError(f"{argv}: {run.stdout[-1500:]}{run.stderr[-1500:]}")
    return build / "bin" / "dpt-worker"


def bad_peers(line):
    """Port in use, worker of another version or with another config, no server: one clear line (what, where, what to
    do), its exit code; the existing run continues."""
    argv_of_version = [other_version(line)]
    sets = settings(8, steps=1_000_000, checkpoint__every_steps=0)
    with Cluster(line.folder / "peers", sets=sets) as cluster:
        server = cluster.start_server()
        second = Process("second server", [program("dpt-rdzv"), "--port", cluster.port], line.folder / "second.log",
                         cluster.env)
        show_complaint(line, "port in use", second.wait(SHORT_TIMEOUT_S), [EXIT_CONFIG], second.log(),
                       [str(cluster.port), "in use", "--port|other"])
        first = cluster.start_worker("a")
        cluster.wait_step(3, STEP_TIMEOUT_S)
        other = cluster.start_worker("b", sets={"train.global_batch": 32, "optimizer.lr": 0.5})
        show_complaint(line, "another config", other.wait(SHORT_TIMEOUT_S), [EXIT_CONFIG], other.log(),
                       [r"train\.global_batch", r"optimizer\.lr"])
        text = make_text(line.folder / "other.txt", seed=2)
        other = cluster.start_worker("c", sets={"data.train": text})
        show_complaint(line, "other data", other.wait(SHORT_TIMEOUT_S), [EXIT_CONFIG], other.log(), ["data"])
        argv = argv_of_version + cluster.worker_argv("v")[1:]
        other = Process("worker of another version", argv, line.folder / "version.log", cluster.env)
        show_complaint(line, "another version", other.wait(SHORT_TIMEOUT_S), [EXIT_CONFIG], other.log(),
                       ["version", "4242|dpt"])
        step = cluster.step()
        cluster.wait_step(step + 5, STEP_TIMEOUT_S)
        line.show("the run and the server afterwards are alive", (first.alive(), server.alive()), "(True, True)",
                  first.alive() and server.alive())
        lone = cluster.start_worker("d", endpoint="127.0.0.1:9", sets={"cluster.timeout_s": 0.5})
        show_complaint(line, "no server", lone.wait(60), [EXIT_SERVER], lone.log(),
                       [r"127\.0\.0\.1:9", "--rdzv-endpoint"])


def full_disk(line):
    """Full disk under checkpoint.dir and under log.dir: one clear line, its exit code, nothing lost."""
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        raise ClusterError("a small disk needs a separate mount namespace, and unshare is not permitted here")
    # Room for one checkpoint of the tiny model (1.4 MB) and not for a second beside it; for logs, some lines.
    for what, key, size, steps in (("checkpoints", "checkpoint.dir", "2m", 40), ("logs", "log.dir", "16k", 400)):
        disk = line.folder / f"disk-{what}"
        disk.mkdir()
        # The disk is gone with the namespace, so what lies on it is looked at from inside.
        script = (f'mount -t tmpfs -o size={size} none "{disk}" || exit 99; "$@"; code=$?; find "{disk}" -type f; '
                  f'"{program("dpt-ckpt")}" verify "{disk}/d" && echo VERIFIED; exit $code')
        line.command(f"dpt-worker with {key} on a disk of {size}")
        code, output, folder = run_worker(line, what, sets={"checkpoint.every_steps": 10, "train.steps": steps},
                                          timeout=60, args=["--set", f"{key}={disk}/d"],
                                          prefix=[*unshare, "sh", "-c", script, "sh"])
        words = output + "".join(p.read_text() for p in folder.rglob("rank-*.log"))
        show_complaint(line, f"full disk, {what}", code, [EXIT_FAILED], words, ["no space", re.escape(disk.name)])
        if key == "checkpoint.dir":
            steps_kept = re.findall(r"/(step-\d+)/MANIFEST", output)
            line.show("full disk, checkpoints: the complete checkpoint is still complete", steps_kept,
                      "one, verified", len(steps_kept) >= 1 and "VERIFIED" in output)
        else:
            newest = sorted(p.name for p in (folder / "a" / "checkpoints").glob("step-*"))[-1:]
            whole = subprocess.run([program("dpt-ckpt"), "verify", folder / "a" / "checkpoints"], capture_output=True)
            line.show("full disk, logs: the newest checkpoint verifies", newest, "one, verified",
                      bool(newest) and whole.returncode == 0)
