"""train.lora: trains adapters of a folder's weights, and writes them as PEFT's files or merged into the weights."""

import array
import json
import os

import pytest

import hf_folder
from cluster import make_text
from test_init_from import FAMILIES, STANDING_STILL, config, folder_of, refused, start  # noqa: F401 (a fixture)
from test_labels import WORDS, make_table
from test_transfer import done, shards_of_bytes
from test_transfer import refused as ckpt_refused

RANK, ALPHA, STEPS = 2, 6, 4
LORA = {"train.lora.rank": RANK, "train.lora.alpha": ALPHA, "train.steps": STEPS, "checkpoint.every_steps": STEPS,
        "optimizer.schedule": "constant", "optimizer.warmup_steps": 0}
TARGETS = {"gpt2": ["c_attn", "c_proj", "c_fc"], "llama": ["q_proj", "v_proj"]}


def lora(family="llama", **sets):
    return {**LORA, "train.lora.targets": f"[{', '.join(TARGETS[family])}]", **sets}


def floats(tensor):
    return array.array("f", tensor[2])


def merged(family, base, adapters):
    """name → floats of the base's tensors with (alpha / rank) B A added, in double precision."""
    result = {}
    for name, (dtype, shape, data) in base.items():
        w = list(array.array("f", hf_folder.widened(dtype, data)))
        front = "base_model.model." + name.removesuffix(".weight")
        if f"{front}.lora_A.weight" in adapters:
            a, b = (floats(adapters[f"{front}.lora_{x}.weight"]) for x in "AB")
            outs, ins = shape if family == "llama" else shape[::-1]
            for o in range(outs):
                for i in range(ins):
                    at = o * ins + i if family == "llama" else i * outs + o
                    w[at] += ALPHA / RANK * sum(b[o * RANK + r] * a[r * ins + i] for r in range(RANK))
        result[name] = w
    return result


def opened(folder):
    """The tensors and settings in PEFT's two files; checks that no other file claims a whole model."""
    found = {path.name for path in folder.iterdir()} - {"optimizer", "state.json", "MANIFEST.json"}
    assert found == {"adapter_model.safetensors", "adapter_config.json"}
    return hf_folder.read(folder), json.loads((folder / "adapter_config.json").read_text())


@pytest.fixture
def trained(make_cluster, slow, config):  # noqa: F811
    """Returns a function that trains adapters of a folder to the end of the run and returns the worker."""
    def train(folder, family, **sets):
        worker = start(make_cluster(folder.name + "-lora"), config, folder, sets=lora(family, **sets))
        assert worker.wait(60 * slow) == 0, worker.log_tail()
        return worker
    return train


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_in_files(tmp_path, trained, family):
    """Checkpoint and export have PEFT's two files; a merged export has the base's weights plus B A."""
    folder = folder_of(tmp_path / "base", family)
    worker = trained(folder, family)
    (checkpoint,) = worker.checkpoint_dir.glob("step-*")
    adapters, settings = opened(checkpoint)
    done("export", worker.checkpoint_dir, tmp_path / "adapters")
    assert opened(tmp_path / "adapters") == (adapters, settings)
    for pair in (worker.checkpoint_dir, tmp_path / "adapters"), (tmp_path / "adapters", checkpoint):
        assert done("diff", *pair).stdout == (
            f"{len(adapters)} tensors are equal, 0 differ, 0 in one alone or of another shape\n")
    ckpt_refused(2, f"'{tmp_path}/adapters' has LoRA adapters (adapter_config.json) and no model: name the folder of",
                 "generate", tmp_path / "adapters", "--prompt", "the ")
    ckpt_refused(2, f"'{checkpoint}' has LoRA adapters", "import", worker.checkpoint_dir, tmp_path / "out")
    assert all(".lora_" in name for name in adapters)
    assert all(any(floats(tensor)) for tensor in adapters.values())  # B, too, is not zero any more
    assert settings["base_model_name_or_path"] == str(folder)
    assert (settings["peft_type"], settings["task_type"], settings["r"], settings["lora_alpha"]) == (
        "LORA", "CAUSAL_LM", RANK, ALPHA)
    assert sorted(settings["target_modules"]) == sorted(TARGETS[family])
    assert settings["fan_in_fan_out"] == (family == "gpt2") and settings["modules_to_save"] is None
    done("export", worker.checkpoint_dir, tmp_path / "merged", "--merge")
    found = hf_folder.read(tmp_path / "merged")
    expected = merged(family, hf_folder.read(folder), adapters)
    assert sorted(found) == sorted(expected)
    for name, values in expected.items():
        assert max(abs(a - b) for a, b in zip(floats(found[name]), values)) < 1e-7, name
    assert (tmp_path / "merged" / "config.json").exists()


def test_the_base_is_named_by_its_absolute_path(tmp_path, trained):
    """The adapters name the base by its absolute path; if that folder is missing, they have the value of
    model.init_from."""
    folder = folder_of(tmp_path / "base", "llama")
    relative = os.path.relpath(folder)
    worker = trained(folder, "llama", **{"model.init_from": relative})
    (checkpoint,) = worker.checkpoint_dir.glob("step-*")
    assert opened(checkpoint)[1]["base_model_name_or_path"] == str(folder.resolve())
    folder.rename(tmp_path / "gone")
    done("export", worker.checkpoint_dir, tmp_path / "adapters")
    assert opened(tmp_path / "adapters")[1]["base_model_name_or_path"] == relative


@pytest.mark.parametrize("family, classifier", [("gpt2", "GPT2ForSequenceClassification"),
                                                ("llama", "LlamaForSequenceClassification")])
def test_adapters_of_a_classifier(tmp_path, trained, family, classifier):
    """The trained head over labels is in PEFT's modules_to_save and in the merged model."""
    sets = {"data.kind": "classification", "model.labels": len(WORDS),
            "data.train": make_table(tmp_path / "train.csv", 90, 1)}
    worker = trained(folder_of(tmp_path / "base", family), family, **sets)
    done("export", worker.checkpoint_dir, tmp_path / "adapters")
    adapters, settings = opened(tmp_path / "adapters")
    assert opened(next(worker.checkpoint_dir.glob("step-*"))) == (adapters, settings)
    assert (settings["task_type"], settings["modules_to_save"]) == ("SEQ_CLS", ["score"])
    head = adapters.pop("base_model.model.score.weight")
    assert head[1] == [len(WORDS), 64] and all(".lora_" in name for name in adapters)
    done("export", worker.checkpoint_dir, tmp_path / "merged", "--merge")
    assert hf_folder.read(tmp_path / "merged")["score.weight"] == head
    merged_config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert merged_config["architectures"] == [classifier] and len(merged_config["id2label"]) == len(WORDS)


def test_what_text_needs_comes_along_merged(tmp_path, trained):
    """A merged export has the special tokens and tokenizer files of the run's base or of --base; adapters alone have
    only the run's tokenizer."""
    folder = hf_folder.write_for_text(folder_of(tmp_path / "base", "llama"))
    whole = hf_folder.for_text(folder)
    worker = trained(folder, "llama", **shards_of_bytes(tmp_path))
    done("export", worker.checkpoint_dir, tmp_path / "merged", "--merge")
    assert hf_folder.for_text(tmp_path / "merged") == whole
    done("export", worker.checkpoint_dir, tmp_path / "adapters")
    assert sorted(path.name for path in (tmp_path / "adapters").iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors"]
    folder.rename(tmp_path / "moved")
    done("export", worker.checkpoint_dir, tmp_path / "moved-merged", "--merge", "--base", tmp_path / "moved")
    assert hf_folder.for_text(tmp_path / "moved-merged") == whole


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_weights_compute_the_same(tmp_path, trained, make_cluster, slow, config, family):  # noqa: F811
    """Adapters and merged weights have the same validation loss and the same greedy text."""
    folder = folder_of(tmp_path / "base", family)
    val = {"data.val": make_text(tmp_path / "val.txt", 2000, seed=3), "train.eval_every": STEPS}
    worker = trained(folder, family, **val)
    done("export", worker.checkpoint_dir, tmp_path / "merged", "--merge")
    whole = start(make_cluster("whole", sets={**STANDING_STILL, **val, "train.eval_every": 1}), config,
                  tmp_path / "merged")
    assert whole.wait(60 * slow) == 0, whole.log_tail()
    losses = [w.outputs.evaluations()[-1]["val_loss"] for w in (worker, whole)]
    assert abs(losses[0] - losses[1]) < 1e-5, losses
    argv = ["--prompt", "the ", "--temperature", "0", "--max-tokens", "24"]
    assert done("generate", worker.checkpoint_dir, *argv).stdout == done("generate", whole.checkpoint_dir, *argv).stdout
    evaluated = start(make_cluster("eval"), config, folder, args=["--eval"],
                      sets={**lora(family, **val), "checkpoint.dir": worker.checkpoint_dir})
    assert evaluated.wait(60 * slow) == 0, evaluated.log_tail()
    assert abs(evaluated.outputs.evaluation()["val_loss"] - losses[0]) < 1e-6


def test_a_run_goes_on_from_its_checkpoint(tmp_path, trained, make_cluster, slow, config):  # noqa: F811
    """A run of adapters resumes with its base at another path and in another dtype; another base is refused and changes
    nothing."""
    settings, shapes = FAMILIES["llama"]
    halves = hf_folder.draw(shapes, "BF16")
    wide = {name: ("F32", shape, hf_folder.widened(dtype, data)) for name, (dtype, shape, data) in halves.items()}
    base = hf_folder.write(tmp_path / "base", settings, halves, shards=2)
    moved = hf_folder.write(tmp_path / "moved", settings, wide)
    other = folder_of(tmp_path / "other", "llama", seed=9)
    whole = trained(base, "llama", **{"train.steps": 2 * STEPS})
    cluster = make_cluster("again")
    first = start(cluster, config, base, sets=lora())
    assert first.wait(60 * slow) == 0, first.log_tail()
    wrong = start(cluster, config, other, sets=lora(**{"train.steps": 2 * STEPS}))
    assert wrong.wait(60 * slow) == 2, wrong.log_tail()
    assert "of a run with other settings: train.lora.base_hash (" in wrong.log()
    assert "--allow-change KEY for each" in wrong.log()
    for sets in {"train.lora.rank": RANK + 1}, {"train.lora.targets": "[q_proj]"}:  # other tensors
        wrong = start(cluster, config, base, sets=lora(**{**sets, "train.steps": 2 * STEPS}))
        assert wrong.wait(60 * slow) == 2, wrong.log_tail()
        said = [line for line in wrong.log().splitlines() if f"settings: {next(iter(sets))} (" in line]
        assert said and all("other tensors than that step, which cannot be allowed" in line for line in said)
        assert not any("--allow-change" in line for line in said)
    again = start(cluster, config, moved, sets=lora(**{"train.steps": 2 * STEPS}))
    assert again.wait(60 * slow) == 0, again.log_tail()
    assert again.outputs.summary()["start_step"] == STEPS
    weights_hash = whole.outputs.summary()["weights_hash"]
    assert again.outputs.summary()["weights_hash"] == weights_hash
    assert done("hash", again.checkpoint_dir).stdout.strip() == weights_hash
    assert "  verified  " in done("list", "--verify", again.checkpoint_dir).stdout
    done("diff", again.checkpoint_dir, whole.checkpoint_dir)
    ckpt_refused(2, "has weights of the hash ", "export", again.checkpoint_dir, tmp_path / "out", "--merge", "--base",
                 other)
    assert not list(tmp_path.glob("out*"))  # the base is hashed while it is merged: nothing of it stays
    done("export", again.checkpoint_dir, tmp_path / "out", "--merge", "--base", moved, "--dtype", "bf16")
    prompt = ["--prompt", "the ", "--temperature", "0", "--max-tokens", "12"]
    text = done("generate", again.checkpoint_dir, *prompt).stdout
    moved.rename(tmp_path / "gone")
    ckpt_refused(2, f"--base FOLDER names another place): there is no folder '{moved}'", "generate",
                 again.checkpoint_dir, *prompt)
    assert done("generate", again.checkpoint_dir, *prompt, "--base", base).stdout == text
    ckpt_refused(2, f"--base FOLDER names another place): '{other}' has weights of the hash ", "generate",
                 again.checkpoint_dir, *prompt, "--base", other)


def test_a_worker_with_another_base_is_refused(tmp_path, make_cluster, slow, config):  # noqa: F811
    """A worker with another base is refused: by the server, with the key; or, if it takes the run's config, before it
    joins."""
    base, other = (folder_of(tmp_path / name, "llama", seed=seed) for seed, name in enumerate(("base", "other")))
    cluster = make_cluster(sets=lora(**{"train.steps": 100000, "cluster.nnodes": "1:2"}))
    cluster.start_server()
    first = cluster.start_worker("a", config=config, sets={"model.init_from": base})
    cluster.wait_step(2, timeout=60 * slow)
    second = cluster.start_worker("b", config=config, sets={"model.init_from": other})
    assert second.wait(60 * slow) == 2, second.log_tail()
    assert "train.lora.base_hash" in second.log() and "the run has others" in second.log()
    third = cluster.start_worker("c", config=False, sets={"model.init_from": other})
    assert third.wait(60 * slow) == 2, third.log_tail()
    assert f"model.init_from: '{other}' has weights of the hash " in third.log()
    before = first.outputs.step()
    cluster.wait_step(before + 5, timeout=60 * slow)
    assert first.alive()


REFUSED = {
    "no folder": ({"model.init_from": "null"}, "train.lora trains adapters of published weights"),
    "layers of another model": ({"train.lora.targets": "[c_attn]"}, "a llama has no layers [c_attn]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(make_cluster, slow, tmp_path, config, case):  # noqa: F811
    sets, said = REFUSED[case]
    worker = start(make_cluster(), config, folder_of(tmp_path / "base", "llama"), sets={**lora(), **sets})
    assert worker.wait(60 * slow) == 2 and said in worker.log(), worker.log_tail()


def test_a_base_that_is_not_there(make_cluster, slow, tmp_path, config):  # noqa: F811
    folder = folder_of(tmp_path / "base", "llama")
    (folder / "model.safetensors").unlink()
    refused(start(make_cluster(), config, folder, sets=lora()), slow, "has neither model.safetensors nor")


def test_a_base_of_no_numbers(make_cluster, slow, tmp_path, config):  # noqa: F811
    """The worker finds a NaN in the base while it hashes the base: no rank starts."""
    settings, shapes = FAMILIES["llama"]
    tensors = hf_folder.spoiled(hf_folder.draw(shapes, "BF16"), "model.layers.1.mlp.up_proj.weight", 0, "NaN")
    worker = start(make_cluster(), config, hf_folder.write(tmp_path / "base", settings, tensors), sets=lora())
    refused(worker, slow, "tensor 'model.layers.1.mlp.up_proj.weight' has the value NaN at element 0: no model")
    assert "rank" not in worker.log()


def test_adapters_are_no_base(tmp_path, trained, make_cluster, slow, config):  # noqa: F811
    """A checkpoint or an export of adapters is refused as a base, with a line that says what the folder is; the merged
    export is accepted."""
    folder = folder_of(tmp_path / "base", "llama")
    worker = trained(folder, "llama")
    done("export", worker.checkpoint_dir, tmp_path / "adapters")
    for adapters in tmp_path / "adapters", next(worker.checkpoint_dir.glob("step-*")):
        said = f"'{adapters}' has LoRA adapters (adapter_config.json) and no model: name the folder of their base"
        for sets in {}, lora():
            refused(start(make_cluster(f"{adapters.name}-{len(sets)}"), config, adapters, sets=sets), slow, said)
        ckpt_refused(2, said, "import", adapters, tmp_path / "out")
    done("export", worker.checkpoint_dir, tmp_path / "merged", "--merge")
    begun = start(make_cluster("begun"), config, tmp_path / "merged", sets=STANDING_STILL)
    assert begun.wait(60 * slow) == 0, begun.log_tail()


def test_a_base_of_more_layers(tmp_path, trained, make_cluster, slow, config):  # noqa: F811
    """A base with more layers than config.json says is refused, in training and when adapters are merged."""
    folder = folder_of(tmp_path / "base", "llama")
    said = "by the model's sizes there is no tensor 'model.layers.2.input_layernorm.weight'"
    worker = trained(folder, "llama")
    deeper = hf_folder.read(folder)
    deeper["model.layers.2.input_layernorm.weight"] = deeper["model.norm.weight"]
    hf_folder.write_file(folder / "model.safetensors", deeper)
    refused(start(make_cluster(), config, folder, sets=lora()), slow, said)
    ckpt_refused(2, said, "export", worker.checkpoint_dir, tmp_path / "out", "--merge")


def test_export_refused(tmp_path, trained, make_cluster, slow, config):  # noqa: F811
    folder = folder_of(tmp_path / "base", "llama")
    worker = trained(folder, "llama")
    out = tmp_path / "out"
    ckpt_refused(2, "--shard-size: adapters are one file", "export", worker.checkpoint_dir, out, "--shard-size", "5MB")
    ckpt_refused(2, "--base is for --merge", "export", worker.checkpoint_dir, out, "--base", folder)
    ckpt_refused(2, "--merge and --base are for export", "import", folder, out, "--merge")
    whole = start(make_cluster("whole", sets=STANDING_STILL), config, folder)
    assert whole.wait(60 * slow) == 0, whole.log_tail()
    ckpt_refused(2, "--merge: the checkpoint has all weights", "export", whole.checkpoint_dir, out, "--merge")
    ckpt_refused(2, f"--base: '{whole.checkpoint_dir}' has all weights of its model and no adapters", "generate",
                 whole.checkpoint_dir, "--prompt", "x", "--base", folder)
    folder.rename(tmp_path / "gone")
    ckpt_refused(2, "--base FOLDER names another place): there is no folder '", "export", worker.checkpoint_dir, out,
                 "--merge")
    assert not out.exists()
