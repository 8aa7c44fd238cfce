"""Checkpoints read from outside: by the published format with the standard library only, and with dpt-ckpt. Run by
ctest: pytest test_pretrained.py, with MAKE_GPT2 and DPT_CKPT naming the programs."""

import json
import math
import os
import shutil
import struct
import subprocess

import pytest

MAKE_GPT2, DPT_CKPT = os.environ["MAKE_GPT2"], os.environ["DPT_CKPT"]
STEP = 12


def ckpt(*args):
    return subprocess.run([DPT_CKPT, *map(str, args)], capture_output=True, text=True, timeout=60)


@pytest.fixture(params=[1, 3])
def made(request, tmp_path):
    """(folder of the step, weights hash)"""
    command = [MAKE_GPT2, tmp_path, str(STEP), str(request.param)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return tmp_path / f"step-{STEP:08d}", done.stdout.strip()


def read_safetensors(path):
    """name → (shape, values), by the format's description alone."""
    raw = path.read_bytes()
    (n,) = struct.unpack_from("<Q", raw)
    assert raw[8:9] == b"{"
    header = json.loads(raw[8 : 8 + n])
    assert header.pop("__metadata__") == {"format": "pt"}
    data, at, tensors = raw[8 + n :], 0, {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert entry["dtype"] == "F32" and begin == at
        tensors[name] = entry["shape"], struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
        at = end
    assert at == len(data) and (8 + n) % 8 == 0
    return tensors


def test_format(made):
    step, _ = made
    index = json.loads((step / "model.safetensors.index.json").read_text())
    n_values, order = 0, []
    for file in sorted(set(index["weight_map"].values())):
        for name, (shape, values) in read_safetensors(step / file).items():
            assert index["weight_map"][name] == file
            t = len(order)
            assert values == tuple(t + i / 4096 for i in range(len(values))), name
            n_values += len(values)
            order.append(name)
    assert set(order) == set(index["weight_map"]) and "lm_head.weight" not in order
    assert order[0] == "transformer.wte.weight" and order[-1] == "transformer.ln_f.bias"
    assert index["metadata"]["total_size"] == 4 * n_values
    moments = {}
    for file in sorted((step / "optimizer").glob("m-*.safetensors")):
        moments.update(read_safetensors(file))
    assert list(moments) == order
    assert moments[order[5]][1][7] == -(5 + 7 / 4096)


def test_tool(made):
    step, weights_hash = made
    assert ckpt("hash", step).stdout.strip() == weights_hash
    assert ckpt("hash", step.parent).stdout.strip() == weights_hash
    assert ckpt("hash", f"{step}/").stdout.strip() == weights_hash
    command = [DPT_CKPT, "hash", step.name]
    relative = subprocess.run(command, cwd=step.parent, capture_output=True, text=True, timeout=60)
    assert relative.stdout.strip() == weights_hash
    listed = ckpt("list", step.parent)
    assert listed.returncode == 0 and listed.stdout.startswith(f"{step.name}  complete, not verified  ")
    listed = ckpt("list", "--verify", step.parent)
    assert listed.returncode == 0 and listed.stdout.startswith(f"{step.name}  verified  ")
    shown = ckpt("show", step)
    assert shown.returncode == 0 and weights_hash in shown.stdout
    assert "transformer.h.1.mlp.c_fc.weight" in shown.stdout
    assert "parameters    22080" in shown.stdout
    verified = ckpt("verify", step.parent)
    assert verified.returncode == 0 and "every byte checked" in verified.stdout


def test_tool_on_damage(made):
    step, _ = made
    victim = next(iter(sorted(step.glob("optimizer/v-*"))))
    raw = bytearray(victim.read_bytes())
    raw[-5] ^= 1
    victim.write_bytes(raw)
    verified = ckpt("verify", step)
    assert verified.returncode == 1 and victim.name in verified.stderr and verified.stderr.count("\n") == 1
    assert "block 0" in verified.stderr
    listed = ckpt("list", step.parent)
    assert listed.returncode == 0 and "  verified  " not in listed.stdout
    listed = ckpt("list", "--verify", step.parent)
    assert listed.returncode == 1 and "damaged: " in listed.stdout and victim.name in listed.stdout
    victim.write_bytes(raw[:-1])
    assert ckpt("hash", step).returncode == 1
    assert ckpt("hash", step.parent).returncode == 1
    listed = ckpt("list", step.parent)
    assert listed.returncode == 1 and "damaged: " in listed.stdout and victim.name in listed.stdout


def test_tool_usage(tmp_path):
    assert ckpt("--help").returncode == 0 and ckpt("--version").stdout.startswith("dpt-ckpt ")
    for args in [(), ("hash",), ("frobnicate", tmp_path), ("list", tmp_path, "x"),
                 ("list", "--verify"), ("-h",)]:
        done = ckpt(*args)
        assert done.returncode == 2 and "see dpt-ckpt --help" in done.stderr, args
    assert ckpt("list", tmp_path).returncode == 0
    for args in [("list", tmp_path / "absent"), ("hash", tmp_path), ("show", tmp_path / "step-00000001"), ("hash", "")]:
        done = ckpt(*args)
        assert done.returncode == 1 and done.stderr.startswith("dpt-ckpt: ") and done.stderr.count("\n") == 1, args


def test_tool_full_output():
    if not os.access("/dev/full", os.W_OK):
        pytest.skip("no /dev/full")
    with open("/dev/full", "w") as full:
        assert subprocess.run([DPT_CKPT, "--help"], stdout=full, stderr=subprocess.PIPE, timeout=60).returncode == 1


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)


def test_rescue_beside_checkpoint(tmp_path):
    """A rescue and a checkpoint of one step are listed by their own names, and a path to one of them opens only that
    one."""
    folder = tmp_path / "rescue-runs"  # the name of a folder above says nothing
    done = subprocess.run([MAKE_GPT2, folder, str(STEP), "1"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    step, rescue = folder / f"step-{STEP:08d}", folder / f"rescue-step-{STEP:08d}"
    listed = ckpt("list", folder)
    assert listed.returncode == 0 and listed.stdout.startswith(f"{step.name}  complete")
    shutil.copytree(step, rescue)
    flip(step / "config.json")
    listed = ckpt("list", "--verify", folder)
    assert listed.returncode == 1
    lines = listed.stdout.splitlines()
    assert len(lines) == 2 and lines[0].startswith(f"{step.name}  damaged: ")
    assert lines[1].startswith(f"{rescue.name}  verified")
    assert ckpt("verify", step).returncode == 1
    for path in (rescue, folder):  # of the step the run goes on from the rescue
        verified = ckpt("verify", path)
        assert verified.returncode == 0 and verified.stdout.startswith(f"{rescue}  verified")
    shutil.rmtree(step)
    (rescue / "state.json").unlink()
    listed = ckpt("list", folder)
    assert listed.returncode == 1 and listed.stdout.startswith(f"{rescue.name}  damaged: ")


def make(folder, writers, *changed):
    command = [MAKE_GPT2, folder, str(STEP), str(writers), *map(str, changed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return folder


def test_diff(tmp_path):
    """diff compares tensors, however their files are cut."""
    one, three, other = make(tmp_path / "1", 1), make(tmp_path / "3", 3), make(tmp_path / "other", 2, 2)
    same = ckpt("diff", one, three / f"step-{STEP:08d}")
    assert (same.returncode, same.stdout, same.stderr) == (
        0, "28 tensors are equal, 0 differ, 0 in one alone or of another shape\n", "")
    differs = ckpt("diff", one, other)
    assert differs.returncode == 1 and differs.stderr == ""
    line, total = differs.stdout.splitlines()
    # ln_1.weight of block 0 is tensor 2: 24 elements of 2 + i / 4096.
    assert line.split() == "transformer.h.0.ln_1.weight differs by 0.5 at most, 0.051 of its norm".split()
    assert total == "27 tensors are equal, 1 differs, 0 in one alone or of another shape"


def test_diff_of_a_nan(tmp_path):
    """A NaN at any element, on either side, is a difference; a checkpoint has none, a folder may."""
    one, other = make(tmp_path / "1", 1), tmp_path / "nan"
    other.mkdir()
    raw = bytearray(next((one / f"step-{STEP:08d}").glob("model-*.safetensors")).read_bytes())
    (n,) = struct.unpack_from("<Q", raw)
    begin, _ = json.loads(raw[8:8 + n])["transformer.h.0.ln_1.weight"]["data_offsets"]
    struct.pack_into("<f", raw, 8 + n + begin + 4 * 5, math.nan)
    (other / "model.safetensors").write_bytes(raw)
    for folders in ((one, other), (other, one)):
        differs = ckpt("diff", *folders)
        assert differs.returncode == 1 and differs.stderr == ""
        line, total = differs.stdout.splitlines()
        assert line.split() == "transformer.h.0.ln_1.weight differs by nan at most, nan of its norm".split()
        assert total == "27 tensors are equal, 1 differs, 0 in one alone or of another shape"


def test_diff_of_what_cannot_be_read(tmp_path):
    one, other = make(tmp_path / "1", 1), make(tmp_path / "2", 1)
    absent = ckpt("diff", one, tmp_path / "absent")
    assert absent.returncode == 2 and absent.stdout == "" and absent.stderr.count("\n") == 1
    assert "absent" in absent.stderr
    file = next((other / f"step-{STEP:08d}").glob("model-*.safetensors"))
    raw = bytearray(file.read_bytes())
    raw[-3] ^= 1
    file.write_bytes(raw)
    damaged = ckpt("diff", one, other)
    assert damaged.returncode == 2 and file.name in damaged.stderr and damaged.stderr.count("\n") == 1
    assert ckpt("diff", one).returncode == 2
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    (adapters / "adapter_config.json").write_text("{}")
    gone = ckpt("diff", one, adapters)
    assert gone.returncode == 2 and "adapter_model.safetensors': No such file" in gone.stderr


def test_diff_of_a_folder(tmp_path):
    """diff reads folders that are no checkpoints, with one file or shards; a damaged checkpoint does not count as such
    a folder."""
    one, three, other = make(tmp_path / "1", 1), make(tmp_path / "3", 3), make(tmp_path / "other", 2, 2)
    step = f"step-{STEP:08d}"
    shards = (three / step).rename(tmp_path / "folder")
    same = ckpt("diff", one, shards)
    assert (same.returncode, same.stdout, same.stderr) == (
        0, "28 tensors are equal, 0 differ, 0 in one alone or of another shape\n", "")
    (tmp_path / "single").mkdir()
    shutil.copy(next((one / step).glob("model-*.safetensors")), tmp_path / "single" / "model.safetensors")
    differs = ckpt("diff", tmp_path / "single", other)
    assert differs.returncode == 1 and differs.stderr == ""
    line = differs.stdout.splitlines()[0]
    assert line.split() == "transformer.h.0.ln_1.weight differs by 0.5 at most, 0.051 of its norm".split()
    (one / step / "state.json").unlink()
    damaged = ckpt("diff", one / step, shards)
    assert damaged.returncode == 2 and damaged.stdout == "" and "state.json" in damaged.stderr
    neither = ckpt("diff", shards, three)
    assert neither.returncode == 2 and neither.stdout == "" and neither.stderr.count("\n") == 1
    assert f"'{three}' has neither a complete checkpoint nor the weights of a Hugging Face folder" in neither.stderr


@pytest.mark.parametrize("command", ["show", "verify", "hash", "export"])
def test_a_folder_is_no_checkpoint(tmp_path, command):
    """A command that needs a checkpoint refuses a folder of weights; the message says what it is and which commands
    read it."""
    more = [tmp_path / "out"] if command == "export" else []
    for name, said in (("model.safetensors", "is a Hugging Face folder and no checkpoint: `dpt-ckpt diff`, `generate`"),
                       ("adapter_config.json", "is a folder of LoRA adapters (adapter_config.json) and no checkpoint")):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("{}")
        refused = ckpt(command, folder, *more)
        assert refused.returncode == 1 and refused.stdout == "" and refused.stderr.count("\n") == 1
        assert f"'{folder}' {said}" in refused.stderr


def test_diff_of_other_models(tmp_path):
    """diff reports a tensor that only one folder has, and one with another shape."""
    one, other = make(tmp_path / "1", 1), make(tmp_path / "2", 1, "flat")
    bias, positions = "transformer.ln_f.bias", "transformer.wpe.weight"
    for folders, which in (((one, other), "first"), ((other, one), "second")):
        found = ckpt("diff", *folders)
        assert found.returncode == 1 and found.stderr == ""
        *lines, total = found.stdout.splitlines()
        assert sorted(" ".join(line.split()) for line in lines) == [
            f"{bias} is only in the {which}", f"{positions} has another shape in the second"]
        assert total == "26 tensors are equal, 0 differ, 2 in one alone or of another shape"
