"""model.init_from: a run starts from the weights of a Hugging Face folder."""

import json
import shutil

import pytest

import hf_folder
from cluster import ROOT

RECORDED = ROOT / "tests" / "worker" / "data" / "recorded"
FAMILIES = {"gpt2": (hf_folder.GPT2, hf_folder.gpt2_shapes()), "llama": (hf_folder.LLAMA, hf_folder.llama_shapes())}
STANDING_STILL = {"train.steps": 1, "optimizer.lr": 0, "optimizer.min_lr": 0, "optimizer.warmup_steps": 0}


@pytest.fixture
def config(tmp_path):
    """tiny.yaml without the keys of the model."""
    lines, inside = [], False
    for line in (ROOT / "configs" / "tiny.yaml").read_text().splitlines():
        inside = line == "model:" or (inside and line.startswith(" "))
        if not inside:
            lines.append(line)
    path = tmp_path / "no-model.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def folder_of(path, family, dtype="F32", seed=1, **options):
    settings, shapes = FAMILIES[family]
    return hf_folder.write(path, settings, hf_folder.draw(shapes, dtype, seed), **options)


def start(cluster, config, folder, node="a", nnodes=1, sets=None, **options):
    return cluster.start_worker(node, config=config, nnodes=nnodes, endpoint=None if nnodes > 1 else False,
                                sets={"model.init_from": folder, **(sets or {})}, **options)


def base_names(tensors):
    return {name.split(".", 1)[1]: tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("family, dtype, shards, base", [
    ("gpt2", "F32", 1, False), ("gpt2", "BF16", 3, True), ("llama", "F16", 2, False), ("llama", "F32", 1, True)])
def test_begins_from_these_weights(make_cluster, slow, tmp_path, config, family, dtype, shards, base):
    """A step that changes no weight leaves the folder's weights, widened: both families, one file and shards, names
    with and without the prefix."""
    settings, shapes = FAMILIES[family]
    tensors = hf_folder.draw(shapes, dtype)
    folder = hf_folder.write(tmp_path / "hf", settings, base_names(tensors) if base else tensors, shards=shards)
    cluster = make_cluster(sets=STANDING_STILL)
    worker = start(cluster, config, folder)
    assert worker.wait(60 * slow) == 0, worker.log_tail()
    assert "has tensors" not in worker.log()
    saved = hf_folder.read(next(worker.checkpoint_dir.glob("step-*")))
    assert sorted(saved) == sorted(tensors)
    for name, (kind, shape, data) in tensors.items():
        assert saved[name] == ("F32", shape, hf_folder.widened(kind, data)), name


def test_what_the_model_has_not_is_told_once(make_cluster, slow, tmp_path, config):
    """One line names a head that the model does not have; buffers that are no weights are ignored without a line."""
    settings, shapes = FAMILIES["gpt2"]
    shapes = {**shapes, "lm_head.weight": [256, 64], "score.weight": [5, 64],
              "transformer.h.0.attn.bias": [1, 1, 32, 32], "transformer.h.1.attn.masked_bias": []}
    tensors = hf_folder.draw(shapes, "F32")
    tensors["position_ids"] = "I64", [1, 2], bytes(16)
    folder = hf_folder.write(tmp_path / "hf", settings, tensors)
    worker = start(make_cluster(sets=STANDING_STILL), config, folder)
    assert worker.wait(60 * slow) == 0, worker.log_tail()
    said = [line for line in worker.log().splitlines() if "has tensors that are not in the model" in line]
    assert len(said) == 1 and ": lm_head.weight, position_ids, score.weight; they are left out" in said[0], said


def test_a_run_that_goes_on_does_not_need_the_folder(make_cluster, slow, tmp_path, config):
    folder = folder_of(tmp_path / "hf", "llama")
    cluster = make_cluster(sets={"train.steps": 4, "checkpoint.every_steps": 2, "optimizer.schedule": "constant",
                                 "optimizer.warmup_steps": 0})
    worker = start(cluster, config, folder)
    assert worker.wait(60 * slow) == 0, worker.log_tail()
    folder.rename(tmp_path / "elsewhere")
    again = start(cluster, config, folder, sets={"train.steps": 6})
    assert again.wait(60 * slow) == 0, again.log_tail()
    assert again.outputs.summary()["start_step"] == 4
    # Nor when the newest checkpoint is damaged where its sizes are: the one before has them, too.
    state = worker.checkpoint_dir / "step-00000006" / "state.json"
    raw = bytearray(state.read_bytes())
    raw[-5] ^= 1
    state.write_bytes(raw)
    again = start(cluster, config, folder, sets={"train.steps": 8})
    assert again.wait(60 * slow) == 0, again.log_tail()
    assert again.outputs.summary()["start_step"] == 4


def drop(tensors, name):
    return {key: value for key, value in tensors.items() if key != name}


NORM, BIAS = "model.norm.weight", "model.layers.0.self_attn.q_proj.bias"
BROKEN = {
    "a missing tensor": (lambda t: drop(t, NORM), {}, "model.safetensors': tensor 'model.norm.weight' is missing"),
    "a shape": (lambda t: {**t, NORM: ("F32", [8, 8], bytes(256))}, {},
                "model.safetensors': tensor 'model.norm.weight' has the shape [8, 8], by the model's sizes it is [64]"),
    "a dtype": (lambda t: {**t, NORM: ("I32", [64], bytes(256))}, {},
                "model.safetensors': tensor 'model.norm.weight' has dtype I32; F32, BF16 and F16 are read"),
    "sizes that are not the tensors'": (lambda t: t, {"intermediate_size": 128},
                                        "tensor 'model.layers.0.mlp.gate_proj.weight' has the shape [96, 64], by the "
                                        "model's sizes it is [128, 64]"),
    "another architecture": (lambda t: t, {"model_type": "mamba"},
                             "config.json': model_type is \"mamba\"; weights of gpt2 and llama are read"),
    "fewer layers than the tensors": (lambda t: t, {"num_hidden_layers": 1},
                                      "model.safetensors': by the model's sizes there is no tensor 'model.layers.1."
                                      "input_layernorm.weight' and 8 more; config.json and the tensors must be of one "
                                      "model"),
    "a bias that config.json has not": (lambda t: {**t, BIAS: ("F32", [64], bytes(256))}, {},
                                        f"by the model's sizes there is no tensor '{BIAS}'; config.json and"),
    "fewer layers, of the base model": (lambda t: {n.removeprefix("model."): v for n, v in t.items()},
                                        {"num_hidden_layers": 1},
                                        "there is no tensor 'layers.1.input_layernorm.weight'"),
    "a part that Llama has not": (lambda t: {**t, "model.adapter.weight": t[NORM]}, {},
                                  "there is no tensor 'model.adapter.weight'"),
    "a tensor under two names": (lambda t: {**t, "norm.weight": t[NORM]}, {},
                                 "tensor 'norm.weight' is there as 'model.norm.weight', too; remove one of the two"),
    "a head that is not there": (lambda t: t, {"tie_word_embeddings": False}, "tensor 'lm_head.weight' is missing"),
}


def refused(worker, slow, said):
    assert worker.wait(60 * slow) == 2, worker.log_tail()
    lines = [line for line in worker.log().splitlines() if "model.init_from" in line]
    assert len(lines) == 1 and said in lines[0], worker.log_tail()
    assert not list(worker.checkpoint_dir.glob("step-*"))


@pytest.mark.parametrize("case", BROKEN)
def test_refused(make_cluster, slow, tmp_path, config, case):
    change, settings, said = BROKEN[case]
    tensors = change(hf_folder.draw(hf_folder.llama_shapes(), "F32"))
    folder = hf_folder.write(tmp_path / "hf", {**hf_folder.LLAMA, **settings}, tensors)
    refused(start(make_cluster(), config, folder), slow, said)


def cut_file(folder, size):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])


def put_folder(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


def put_index(folder, text):
    (folder / "model.safetensors.index.json").write_text(text)


def put_twice(folder):
    """Writes a tensor of the first shard into the second, too."""
    first, second = sorted(folder.glob("model-*.safetensors"))
    second.write_bytes(first.read_bytes())


MANY = json.dumps({"weight_map": {f"t{i}": f"f{i}.safetensors" for i in range(1025)}})
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{64 * 'a'}\nsize 723674912\n"
FILES = {
    "shards": (2, lambda f: (f / "model-00002-of-00002.safetensors").unlink(),
               "model-00002-of-00002.safetensors': No such file"),
    "cut": (1, lambda f: cut_file(f, -100), "model.safetensors': tensor 'model.layers.1.mlp.down_proj.weight' lies at"),
    "header": (1, lambda f: cut_file(f, 5), "model.safetensors' has 5 bytes: it is cut off"),
    "pointer": (1, lambda f: (f / "model.safetensors").write_text(POINTER),
                "model.safetensors' is a pointer of Git LFS and has no weights; run `git lfs pull` in the clone"),
    "no file": (1, put_folder, "model.safetensors' is no regular file"),
    "no JSON": (2, lambda f: put_index(f, "{"), "model.safetensors.index.json', line 1: no JSON: "),
    "no map": (2, lambda f: put_index(f, "[]"), "model.safetensors.index.json' has no weight_map"),
    "elsewhere": (2, lambda f: put_index(f, '{"weight_map": {"a": "../b.safetensors"}}'),
                  "model.safetensors.index.json': tensor 'a' is in no file of this folder"),
    "many": (2, lambda f: put_index(f, MANY), "model.safetensors.index.json': more than 1024 files"),
    "twice": (2, put_twice, "' is in another file, too"),
    "empty": (1, lambda f: (f / "model.safetensors").unlink(), "has neither model.safetensors nor"),
    "folder": (1, lambda f: (f / "config.json").unlink(), "config.json': No such file"),
}


@pytest.mark.parametrize("case", FILES)
def test_refused_files(make_cluster, slow, tmp_path, config, case):
    """A missing shard, truncated files, a folder without weights, and a folder without config.json are refused."""
    shards, damage, said = FILES[case]
    folder = folder_of(tmp_path / "hf", "llama", shards=shards)
    damage(folder)
    refused(start(make_cluster(), config, folder), slow, said)


@pytest.mark.parametrize("family, dtype, value, strategy", [
    ("llama", "F32", "NaN", "ddp"), ("llama", "BF16", "infinity", "zero3"), ("gpt2", "F16", "NaN", "ddp")])
def test_values_that_are_no_numbers(make_cluster, slow, tmp_path, config, family, dtype, value, strategy):
    """The rank that reads an infinity or NaN names it before training."""
    settings, shapes = FAMILIES[family]
    name = "model.norm.weight" if family == "llama" else "transformer.ln_f.bias"
    tensors = hf_folder.spoiled(hf_folder.draw(shapes, dtype), name, 63, value)
    worker = start(make_cluster(), config, hf_folder.write(tmp_path / "hf", settings, tensors), ranks=2,
                   sets={"strategy.name": strategy, "train.accumulate": "auto"})
    refused(worker, slow, f"model.safetensors': tensor '{name}' has the value {value} at element 63: no model computes")
    assert "step 1/" not in worker.log()


def test_text_without_a_tokenizer(make_cluster, slow, tmp_path, config):
    """A vocabulary other than that of bytes needs data.tokenizer; `bytes` is accepted."""
    config.write_text("".join(line for line in config.read_text().splitlines(True) if "tokenizer:" not in line))
    settings, shapes = FAMILIES["llama"]
    shapes = {**shapes, "model.embed_tokens.weight": [400, 64]}
    folder = hf_folder.write(tmp_path / "hf", {**settings, "vocab_size": 400}, hf_folder.draw(shapes, "F32"))
    refused(start(make_cluster("without", sets=STANDING_STILL), config, folder), slow,
            f"data.tokenizer: the weights of model.init_from ('{folder}') have a vocabulary of 400 tokens, and no key "
            "names their tokenizer; set data.tokenizer: hf and data.tokenizer_json: ")
    worker = start(make_cluster("bytes", sets=STANDING_STILL), config, folder, sets={"data.tokenizer": "bytes"})
    assert worker.wait(60 * slow) == 0, worker.log_tail()


def test_another_tokenizer(make_cluster, slow, tmp_path, config):
    """A tokenizer other than the weights' gives a warning, and one that does not fit them is refused; both messages
    name both tokenizers."""
    settings, shapes = FAMILIES["llama"]

    def folder(name, tokens):
        more = {**shapes, "model.embed_tokens.weight": [tokens, 64]}
        made = hf_folder.write(tmp_path / name, {**settings, "vocab_size": tokens}, hf_folder.draw(more, "F32"))
        shutil.copy(RECORDED / "hf_llama3.json", made / "tokenizer.json")
        return made

    def run(name, folder, **sets):
        return start(make_cluster(name, sets=STANDING_STILL), config, folder,
                     sets={f"data.{key}": value for key, value in sets.items()})

    def told(worker):
        assert worker.wait(60 * slow) == 0, worker.log_tail()
        return [line for line in worker.log().splitlines() if "is another tokenizer than" in line]

    known, mine = folder("known", 700), tmp_path / "mine.json"
    own = f"'{known}/tokenizer.json' of model.init_from"
    of_gpt2 = {"tokenizer": "gpt2", "any_vocab": "true", "vocab_bpe": RECORDED / "tiny.bpe",
               "encoder_json": RECORDED / "tiny.json"}
    shutil.copy(RECORDED / "hf_llama3.json", mine)
    assert told(run("same", known, tokenizer="hf", tokenizer_json=mine)) == []
    mine.write_text(mine.read_text() + "\n")
    for name, sets, said in (("file", {"tokenizer": "hf", "tokenizer_json": mine}, f"data.tokenizer_json ('{mine}')"),
                             ("bytes", {"tokenizer": "bytes"}, "data.tokenizer: bytes"),
                             ("gpt2", of_gpt2, f"data.encoder_json ('{RECORDED}/tiny.json')")):
        (line,) = told(run(name, known, **sets))
        assert (f"{said} is another tokenizer than {own}, with which the weights were trained: if this is not "
                "intended") in line
    small = folder("small", 300)
    refused(run("large", small, tokenizer="hf", tokenizer_json=mine), slow,
            f"and the weights of model.init_from ('{small}') a vocabulary of 300: it is not their tokenizer; set "
            f"data.tokenizer: hf and data.tokenizer_json: {small}/tokenizer.json")


def test_a_name_of_the_hub(make_cluster, slow, config):
    """A name of the Hugging Face hub is no path, and nothing is downloaded."""
    refused(start(make_cluster(), config, "HuggingFaceTB/SmolLM2-360M"), slow,
            "there is no folder 'HuggingFaceTB/SmolLM2-360M'; give the path of one: a model of the Hugging Face hub is "
            "to be downloaded first (hf download MODEL --local-dir FOLDER)")


def test_a_key_that_contradicts(make_cluster, slow, tmp_path, config):
    folder = folder_of(tmp_path / "hf", "llama")
    worker = start(make_cluster(), config, folder, sets={"model.n_layer": 3})
    assert worker.wait(60 * slow) == 2, worker.log_tail()
    assert (f"--set model.n_layer=3: model.n_layer: 3 contradicts '{folder}/config.json', whose num_hidden_layers is "
            "2; leave the key out") in worker.log()


def test_nodes_with_the_same_weights_elsewhere(make_cluster, slow, tmp_path, config):
    """Two nodes have the same weights in two folders, one in bf16 and one in fp32: they train one run."""
    settings, shapes = FAMILIES["llama"]
    halves = hf_folder.draw(shapes, "BF16")
    wide = {name: ("F32", shape, hf_folder.widened(dtype, data)) for name, (dtype, shape, data) in halves.items()}
    folders = {"a": hf_folder.write(tmp_path / "bf16", settings, halves, shards=2),
               "b": hf_folder.write(tmp_path / "fp32", settings, wide)}
    cluster = make_cluster(sets={"train.steps": 5}, shared_dirs=True)
    cluster.start_server()
    workers = [start(cluster, config, folder, node, 2, {"strategy.name": "zero3", "train.accumulate": "auto"})
               for node, folder in folders.items()]
    for worker in workers:
        assert worker.wait(60 * slow) == 0, worker.log_tail()


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_nodes_with_other_weights(make_cluster, slow, tmp_path, config, strategy):
    """Two nodes have different weights with equal names, shapes and file sizes: the run ends before it trains, and both
    nodes report the difference. A node that learns it from the other ends as in a failed run."""
    cluster = make_cluster(sets={"train.steps": 5}, shared_dirs=True)
    cluster.start_server()
    workers = [start(cluster, config, folder_of(tmp_path / node, "llama", seed=seed), node, 2,
                     {"strategy.name": strategy, "train.accumulate": "auto"}) for seed, node in enumerate("ab")]
    codes = sorted(worker.wait(60 * slow) for worker in workers)
    assert codes in ([2, 2], [2, 4]), cluster.log_tails()
    for worker in workers:
        assert "model.init_from: rank 1 begins from other weights than rank 0; give all nodes a folder" in worker.log()
        assert "step 1/" not in worker.log()


# The demo has samples of 64 tokens, these models a context of 32.
DEMO = {**STANDING_STILL, "train.seq_len": 32, "optimizer.schedule": "constant"}


def test_without_a_config_file(make_cluster, slow, tmp_path):
    """Without a config file the folder's model takes the place of the demo's, at the start and at a resume."""
    folder = folder_of(tmp_path / "hf", "llama")
    cluster = make_cluster()
    worker = start(cluster, False, folder, sets=DEMO)
    assert worker.wait(60 * slow) == 0, worker.log_tail()
    (checkpoint,) = worker.checkpoint_dir.glob("step-*")
    assert hf_folder.read(checkpoint) == hf_folder.read(folder)
    settings = json.loads((checkpoint / "config.json").read_text())
    assert (settings["model_type"], settings["rope_theta"]) == ("llama", 50000)
    again = start(cluster, False, folder, sets={**DEMO, "train.steps": 2})
    assert again.wait(60 * slow) == 0, again.log_tail()
    assert again.outputs.summary()["start_step"] == 1


def test_without_a_config_file_refused(make_cluster, slow, tmp_path):
    """Without a config file a missing folder, a --set that contradicts the folder, and a tokenizer without a key are
    refused."""
    folder = folder_of(tmp_path / "hf", "llama")
    refused(start(make_cluster("absent"), False, tmp_path / "nowhere", sets=DEMO), slow,
            f"there is no folder '{tmp_path}/nowhere'; give the path of one")
    refused(start(make_cluster("other"), False, folder, sets={**DEMO, "model.n_layer": 3}), slow,
            f"--set model.n_layer=3: model.n_layer: 3 contradicts '{folder}/config.json', whose num_hidden_layers is 2")
    settings, shapes = FAMILIES["llama"]
    shapes = {**shapes, "model.embed_tokens.weight": [400, 64]}
    large = hf_folder.write(tmp_path / "large", {**settings, "vocab_size": 400}, hf_folder.draw(shapes, "F32"))
    refused(start(make_cluster("tokens"), False, large, sets=DEMO), slow,
            "data.tokenizer: the weights of model.init_from")


def test_without_a_config_file_at_a_server(make_cluster, slow, tmp_path):
    """A worker without a config file takes the demo when the server has no run; the folder is read then."""
    cluster = make_cluster()
    cluster.start_server()
    refused(start(cluster, False, tmp_path / "absent", nnodes=2, sets=DEMO), slow,
            f"there is no folder '{tmp_path}/absent'")
