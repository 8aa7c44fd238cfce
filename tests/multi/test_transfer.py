"""Weights in and out: `dpt-ckpt import`, a run that starts from them, `dpt-ckpt export`."""

import array
import json
import re
import shutil
import struct
import subprocess

import pytest

import hf_folder
from cluster import ROOT, program
from test_init_from import FAMILIES, STANDING_STILL, base_names, config, start  # noqa: F401 (a fixture)

RECORDED = ROOT / "tests" / "worker" / "data" / "recorded"
TORCH = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}


def ckpt(*args):
    return subprocess.run([str(program("dpt-ckpt")), *map(str, args)], capture_output=True, text=True, timeout=60)


def done(*args):
    run = ckpt(*args)
    assert run.returncode == 0, run.stderr
    return run


def refused(code, said, *args):
    run = ckpt(*args)
    assert run.returncode == code and run.stderr.count("\n") == 1 and said in run.stderr, (run.returncode, run.stderr)


@pytest.fixture
def trained(make_cluster, slow, config):  # noqa: F811
    """A checkpoint with a folder's weights, of a run whose only step changes nothing."""
    def train(folder, **sets):
        worker = start(make_cluster(folder.name + "-run", sets=STANDING_STILL), config, folder, sets=sets)
        assert worker.wait(60 * slow) == 0, worker.log_tail()
        return worker.checkpoint_dir
    return train


@pytest.mark.parametrize("family, dtype, shards", [
    ("gpt2", "fp16", 1), ("gpt2", "bf16", 2), ("llama", "bf16", 3), ("llama", "fp32", 1)])
def test_import_then_export(tmp_path, trained, family, dtype, shards):
    """Import and export return each tensor byte for byte: through fp32, a run and its checkpoint, and directly in the
    same dtype."""
    settings, shapes = FAMILIES[family]
    tensors = hf_folder.draw(shapes, TORCH[dtype])
    source = hf_folder.write(tmp_path / "source", settings, base_names(tensors) if family == "gpt2" else tensors,
                             shards=shards)
    (source / "tokenizer.json").write_text("{}")
    out = done("import", source, tmp_path / "imported").stdout
    assert out.startswith(f"{tmp_path}/imported  {family}, {len(tensors)} tensors, "), out
    wide = hf_folder.read(tmp_path / "imported")
    assert {name: data for name, (_, _, data) in wide.items()} == {
        name: hf_folder.widened(kind, data) for name, (kind, _, data) in tensors.items()}
    done("export", trained(tmp_path / "imported"), tmp_path / "exported", "--dtype", dtype)
    done("import", source, tmp_path / "direct", f"--dtype={dtype}", "--shard-size=40KB")
    for folder in ("exported", "direct"):
        assert hf_folder.read(tmp_path / folder) == tensors, folder
        assert json.loads((tmp_path / folder / "config.json").read_text())["torch_dtype"] == {
            "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[dtype]
    assert (tmp_path / "direct" / "tokenizer.json").read_text() == "{}"
    index = json.loads((tmp_path / "direct" / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "direct").glob("model-*.safetensors"))
    assert len(files) > 1 and sorted(set(index["weight_map"].values())) == files
    assert index["metadata"]["total_size"] == sum(len(data) for _, _, data in tensors.values())
    assert (tmp_path / "exported" / "model.safetensors").exists()
    assert not (tmp_path / "exported" / "model.safetensors.index.json").exists()


def shards_of_bytes(root):
    """Keys of a run on token shards, with no tokenizer in the config."""
    (root / "text").write_bytes(bytes(range(32, 127)) * 50)
    run = subprocess.run([str(program("dpt-data")), "encode", "--tokenizer", "bytes", "--out", str(root / "tokens"),
                          str(root / "text")], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return {"data.kind": "tokens", "data.train": root / "tokens" / "*.bin"}


def test_the_tokenizer_of_the_run_comes_along(tmp_path, trained, config):  # noqa: F811
    """An export has the tokenizer's file that the config names; if that file is missing, a line says so."""
    settings, shapes = FAMILIES["llama"]
    source = hf_folder.write(tmp_path / "source", settings, hf_folder.draw(shapes, "F32"))
    (tmp_path / "tokenizer.json").write_text("{}")
    checkpoints = trained(source, **shards_of_bytes(tmp_path),
                          **{"data.tokenizer": "hf", "data.tokenizer_json": tmp_path / "tokenizer.json"})
    done("export", checkpoints, tmp_path / "with")
    assert (tmp_path / "with" / "tokenizer.json").read_text() == "{}"
    (tmp_path / "tokenizer.json").unlink()
    run = done("export", checkpoints, tmp_path / "without")
    assert run.stderr.count("\n") == 1 and "(data.tokenizer_json of the run) is not there" in run.stderr
    assert not (tmp_path / "without" / "tokenizer.json").exists()


@pytest.mark.parametrize("family", FAMILIES)
def test_what_text_needs_comes_along(tmp_path, trained, family):
    """Special tokens and the tokenizer's files are in an import, and in the export of a run that started from it."""
    settings, shapes = FAMILIES[family]
    source = hf_folder.write_for_text(hf_folder.write(tmp_path / "source", settings, hf_folder.draw(shapes, "F32")))
    whole = hf_folder.for_text(source)
    assert whole[0] == hf_folder.SPECIAL and sorted(whole[1]) == sorted(hf_folder.FOR_TEXT)
    done("import", source, tmp_path / "imported")
    assert hf_folder.for_text(tmp_path / "imported") == whole
    checkpoints = trained(source, **shards_of_bytes(tmp_path))
    assert done("export", checkpoints, tmp_path / "exported").stderr == ""
    assert hf_folder.for_text(tmp_path / "exported") == whole
    source.rename(tmp_path / "gone")
    run = done("export", checkpoints, tmp_path / "without")
    assert run.stderr.count("\n") == 1 and f"'{source}' (model.init_from of the run) is not there" in run.stderr
    assert hf_folder.for_text(tmp_path / "without") == ({}, {})


def test_the_tokenizer_of_the_run_comes_first(tmp_path, trained):
    """The folder's files and special tokens belong to its tokenizer: the export of a run with another tokenizer lacks
    them."""
    settings, shapes = FAMILIES["llama"]
    source = hf_folder.write_for_text(hf_folder.write(tmp_path / "source", settings, hf_folder.draw(shapes, "F32")))
    mine = tmp_path / "mine.json"
    mine.write_text("the run's")
    checkpoints = trained(source, **shards_of_bytes(tmp_path), **{"data.tokenizer": "hf", "data.tokenizer_json": mine})
    done("export", checkpoints, tmp_path / "other")
    assert hf_folder.for_text(tmp_path / "other") == ({}, {"tokenizer.json": "the run's"})
    (source / "tokenizer.json").write_text("the run's")
    done("export", checkpoints, tmp_path / "same")
    assert hf_folder.for_text(tmp_path / "same") == hf_folder.for_text(source)
    (source / "tokenizer.json").unlink()
    done("export", checkpoints, tmp_path / "only")
    specials, files = hf_folder.for_text(source)
    assert hf_folder.for_text(tmp_path / "only") == (specials, {**files, "tokenizer.json": "the run's"})


def test_bytes_are_no_tokens_of_the_folder(tmp_path, trained):
    """A run by bytes does not take the folder's special tokens, unless the folder has no tokenizer."""
    settings, shapes = FAMILIES["llama"]
    source = hf_folder.write_for_text(hf_folder.write(tmp_path / "source", settings, hf_folder.draw(shapes, "F32")))
    checkpoints = trained(source)
    done("export", checkpoints, tmp_path / "other")
    assert hf_folder.for_text(tmp_path / "other") == ({}, {})
    for name in hf_folder.FOR_TEXT:
        (source / name).unlink()
    done("export", checkpoints, tmp_path / "none")
    assert hf_folder.for_text(tmp_path / "none") == (hf_folder.SPECIAL, {})


# ---- text of a folder ----

PROMPT = ["--prompt", "Hello, world", "--max-tokens", "24", "--temperature", "0"]


def of_tokens(path, family, tokens, dtype="F32", shards=1):
    settings, shapes = FAMILIES[family]
    shapes = {name: [tokens, *shape[1:]] if name.endswith(("embed_tokens.weight", "wte.weight")) else shape
              for name, shape in shapes.items()}
    return hf_folder.write(path, {**settings, "vocab_size": tokens}, hf_folder.draw(shapes, dtype), shards=shards)


@pytest.mark.parametrize("family, dtype, shards", [("gpt2", "F16", 2), ("llama", "BF16", 3)])
def test_text_of_a_folder(tmp_path, trained, family, dtype, shards):
    """A folder generates the text of the same weights after import and in a checkpoint: by its tokenizer.json, and by
    bytes without one."""
    hf = {"data.tokenizer": "hf", "data.tokenizer_json": RECORDED / "hf_llama3.json"}
    sources = {name: of_tokens(tmp_path / name, family, tokens, dtype, shards)
               for name, tokens in (("hf", 512), ("bytes", 256))}
    shutil.copy(RECORDED / "hf_llama3.json", sources["hf"] / "tokenizer.json")
    for name, source in sources.items():
        run = done("generate", source, *PROMPT)
        assert run.stdout.startswith("Hello, world") and len(run.stdout) > len("Hello, world\n")
        assert re.fullmatch(r"dpt-ckpt: [0-9]+ tokens in [0-9.]+ s \([0-9.]+ a second\)\n", run.stderr), run.stderr
        done("import", source, tmp_path / f"{name}-imported")
        checkpoints = trained(tmp_path / f"{name}-imported", **(hf if name == "hf" else {}))
        for other in tmp_path / f"{name}-imported", checkpoints:
            assert done("generate", other, *PROMPT).stdout == run.stdout


def test_text_by_merges_and_vocab(tmp_path):
    """Without tokenizer.json the folder's merges.txt and vocab.json are its tokenizer."""
    folder = of_tokens(tmp_path / "hf", "llama", 700)
    refused(2, f"'{folder}' has no tokenizer.json, nor merges.txt and vocab.json: give --tokenizer-json FILE",
            "generate", folder, *PROMPT)
    text = done("generate", folder, *PROMPT, "--any-vocab", "--vocab-bpe", RECORDED / "tiny.bpe", "--encoder-json",
                RECORDED / "tiny.json").stdout
    by_json = done("generate", folder, *PROMPT, "--tokenizer-json", RECORDED / "hf_llama3.json").stdout
    shutil.copy(RECORDED / "tiny.bpe", folder / "merges.txt")
    shutil.copy(RECORDED / "tiny.json", folder / "vocab.json")
    assert done("generate", folder, *PROMPT).stdout == text != by_json
    shutil.copy(RECORDED / "hf_llama3.json", folder / "tokenizer.json")
    assert done("generate", folder, *PROMPT).stdout == by_json
    refused(2, "tokens, the model 256: it was trained with another one (--tokenizer)", "generate",
            of_tokens(tmp_path / "bytes", "llama", 256), *PROMPT, "--tokenizer-json", RECORDED / "hf_llama3.json")


def drawn(tmp_path, *args):
    """The tokens that generate chooses greedily."""
    done("generate", *args, *PROMPT, "--logprobs", tmp_path / "lines")
    return [json.loads(line)["token"] for line in (tmp_path / "lines").read_text().splitlines()]


def say_end(folder, name, **tokens):
    path = folder / name
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **tokens}))


def test_text_ends_where_the_folder_says(tmp_path):
    """A text ends at eos_token_id of generation_config.json, or of config.json without that file; an id, or one of a
    list."""
    folder = of_tokens(tmp_path / "hf", "llama", 256)
    tokens = drawn(tmp_path, folder)
    late = next(token for token in reversed(tokens) if tokens.index(token) > 2)
    early = tokens[1]
    up_to = {token: tokens[:tokens.index(token) + 1] for token in (late, early)}
    assert len(tokens) == 24 and len(up_to[early]) < len(up_to[late])
    say_end(folder, "config.json", eos_token_id=late)
    assert drawn(tmp_path, folder) == up_to[late]
    say_end(folder, "config.json", eos_token_id=[999, early, late])
    assert drawn(tmp_path, folder) == up_to[early]
    say_end(folder, "generation_config.json", eos_token_id=[late])
    assert drawn(tmp_path, folder) == up_to[late]
    say_end(folder, "generation_config.json", eos_token_id=None)
    assert drawn(tmp_path, folder) == tokens
    say_end(folder, "generation_config.json", eos_token_id="</s>")
    refused(2, 'generation_config.json\': eos_token_id is "</s>", which is neither an id nor', "generate", folder,
            *PROMPT)


def test_the_vocabulary_ends_a_text(tmp_path):
    """Without an eos_token_id in the folder a text ends at the vocabulary's end of text; with one it does not."""
    folder = of_tokens(tmp_path / "hf", "llama", 512)
    shutil.copy(RECORDED / "hf_llama3.json", folder / "tokenizer.json")
    tokens = drawn(tmp_path, folder)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())
    (end,) = (token for token in vocabulary["added_tokens"] if token["content"] == "<|end_of_text|>")
    assert end["id"] not in tokens
    # The token of the end of text and one that is drawn change places.
    names = {id: name for name, id in vocabulary["model"]["vocab"].items()}
    second = next(token for token in tokens[1:] if token != tokens[0])
    del vocabulary["model"]["vocab"][names[second]]
    vocabulary["model"]["vocab"][names[second]], end["id"] = end["id"], second
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
    assert drawn(tmp_path, folder)[-1] == second
    say_end(folder, "config.json", eos_token_id=999)
    assert len(drawn(tmp_path, folder)) == 24


def test_text_of_a_checkpoint_ends_as_its_origin_says(tmp_path, trained):
    """The text of a checkpoint ends as that of its exported folder; if the folder of origin is missing, it has no
    effect."""
    folder = of_tokens(tmp_path / "hf", "llama", 256)
    checkpoints = trained(folder)
    tokens = drawn(tmp_path, checkpoints)
    say_end(folder, "generation_config.json", eos_token_id=tokens[3])
    short = tokens[:tokens.index(tokens[3]) + 1]
    done("export", checkpoints, tmp_path / "exported")
    assert drawn(tmp_path, checkpoints) == drawn(tmp_path, tmp_path / "exported") == short
    (folder / "tokenizer.json").write_text("{}")  # the run's tokens are bytes
    assert drawn(tmp_path, checkpoints) == tokens
    (folder / "tokenizer.json").unlink()
    folder.rename(tmp_path / "gone")
    assert drawn(tmp_path, checkpoints) == tokens


def test_text_refused(tmp_path):
    settings, shapes = FAMILIES["llama"]
    tensors = hf_folder.draw(shapes, "F32")

    def folder(name, change=None, **more):
        return hf_folder.write(tmp_path / name, {**settings, **more}, {**tensors, **(change or {})})

    refused(2, "by the model's sizes it is [128, 64]", "generate", folder("shape", intermediate_size=128), *PROMPT)
    refused(2, "there is no tensor 'model.layers.1.", "generate", folder("layers", num_hidden_layers=1), *PROMPT)
    refused(2, "labels/' predicts labels, not tokens: there is no text to generate", "generate",
            f"{folder('labels', {'score.weight': ('F32', [3, 64], bytes(768))})}/", *PROMPT)
    refused(2, "predicts labels, not tokens", "generate",
            hf_folder.write(tmp_path / "images", hf_folder.RESNET, hf_folder.draw(hf_folder.resnet_shapes(3), "F32")),
            *PROMPT)
    refused(2, f"--base: '{folder('whole')}' has all weights", "generate", tmp_path / "whole", *PROMPT, "--base",
            tmp_path / "whole")
    (tmp_path / "whole" / "config.json").unlink()
    refused(2, "config.json': No such file", "generate", tmp_path / "whole", *PROMPT)


def test_export_refused(tmp_path, trained):
    settings, shapes = FAMILIES["gpt2"]
    tensors = hf_folder.draw(shapes, "F32")
    name = "transformer.ln_f.weight"
    tensors[name] = "F32", [64], array.array("f", [70000.0] * 64).tobytes()
    checkpoints = trained(hf_folder.write(tmp_path / "source", settings, tensors))
    folders = tmp_path / "out"
    folders.mkdir()
    refused(2, "is there already", "export", checkpoints, folders)
    refused(2, f"tensor '{name}' has the value 70000, which fp16 cannot hold", "export", checkpoints, folders / "fp16",
            "--dtype", "fp16")
    refused(1, "no complete checkpoint", "export", tmp_path / "absent", folders / "absent")
    refused(2, "--dtype: expected fp32, bf16 or fp16, got 'int8'", "export", checkpoints, folders / "x",
            "--dtype", "int8")
    refused(2, "--shard-size: expected a number with KB", "export", checkpoints, folders / "x", "--shard-size", "5")
    refused(2, "expected the weights to read and the folder to write", "export", checkpoints)
    refused(2, "unexpected argument 'more'", "export", checkpoints, folders / "x", "more")
    refused(2, "--dtype needs a value", "export", checkpoints, folders / "x", "--dtype")
    refused(2, "--dtype: expected fp32, bf16 or fp16, got ''", "export", checkpoints, folders / "x", "--dtype=")
    refused(2, "--merge takes no value", "export", checkpoints, folders / "x", "--merge=yes")
    refused(2, "unknown option '--dtyp'", "export", checkpoints, folders / "x", "--dtyp=bf16")
    refused(2, "unexpected argument '-d'", "export", checkpoints, "-d", folders / "x")
    damaged = next(checkpoints.glob("step-*/model-*.safetensors"))
    raw = bytearray(damaged.read_bytes())
    raw[-5] ^= 1
    damaged.write_bytes(raw)
    refused(1, damaged.name, "export", checkpoints, folders / "damaged")
    assert not list(folders.iterdir())  # nothing half done


def test_import_refused(tmp_path):
    settings, shapes = FAMILIES["llama"]
    tensors = hf_folder.draw(shapes, "F32")
    del tensors["model.norm.weight"]
    refused(2, "tensor 'model.norm.weight' is missing", "import",
            hf_folder.write(tmp_path / "missing", settings, tensors), tmp_path / "out")
    (tmp_path / "missing" / "model.safetensors").unlink()
    refused(2, "has neither model.safetensors nor", "import", tmp_path / "missing", tmp_path / "out")
    refused(2, 'config.json\': eos_token_id is "</s>", which is neither an id nor', "import",
            hf_folder.write(tmp_path / "named", {**settings, "eos_token_id": "</s>"}, hf_folder.draw(shapes, "F32")),
            tmp_path / "out")
    (tmp_path / "missing" / "config.json").unlink()
    refused(2, "config.json': No such file", "import", tmp_path / "missing", tmp_path / "out")
    refused(2, f"there is no folder '{tmp_path}/absent'; give the path of one: a model of the Hugging Face hub is to "
            "be downloaded first", "import", tmp_path / "absent", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dtype, value", [("F32", "NaN"), ("BF16", "infinity"), ("F16", "NaN")])
def test_values_that_are_no_numbers(tmp_path, dtype, value):
    """import and generate name an infinity or a NaN; diff shows these weights, too."""
    settings, shapes = FAMILIES["gpt2"]
    name = "transformer.h.1.mlp.c_fc.weight"
    tensors = hf_folder.draw(shapes, dtype)
    whole = hf_folder.write(tmp_path / "whole", settings, tensors)
    folder = hf_folder.write(tmp_path / "odd", settings, hf_folder.spoiled(tensors, name, 5000, value), shards=2)
    file = next(path for path in folder.glob("model-*") if name.encode() in path.read_bytes())
    said = f"'{file}': tensor '{name}' has the value {value} at element 5000: no model computes with it"
    refused(2, said, "import", folder, tmp_path / "out")
    refused(2, said, "generate", folder, *PROMPT)
    assert not (tmp_path / "out").exists()
    run = ckpt("diff", whole, folder)
    assert run.returncode == 1 and name in run.stdout and run.stderr == "", (run.stdout, run.stderr)


@pytest.mark.parametrize("family, member", [("gpt2", "n_layer"), ("llama", "num_hidden_layers")])
def test_import_of_fewer_layers_is_refused(tmp_path, family, member):
    """config.json declares one layer and the tensors have two: refused. Buffers that older releases wrote do not count
    as tensors of a layer."""
    settings, shapes = FAMILIES[family]
    shapes = {**shapes, "transformer.h.0.attn.bias": [1, 1, 32, 32],
              "model.layers.0.self_attn.rotary_emb.inv_freq": [8]}
    folder = hf_folder.write(tmp_path / "source", {**settings, member: 1}, hf_folder.draw(shapes, "F32"))
    refused(2, "by the model's sizes there is no tensor '", "import", folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    hf_folder.write(folder, settings, hf_folder.draw(shapes, "F32"))
    assert done("import", folder, tmp_path / "out").stderr == ""


@pytest.mark.parametrize("family, tied, shards", [("gpt2", True, 1), ("llama", True, 2), ("llama", False, 1)])
def test_import_of_a_classifier_is_refused(tmp_path, family, tied, shards):
    """import refuses a classifier, because it writes no model with its head; model.init_from keeps the head."""
    settings, shapes = FAMILIES[family]
    tensors = hf_folder.draw({**shapes, "score.weight": [3, 64]}, "F32")
    folder = hf_folder.write(tmp_path / "source", {**settings, "tie_word_embeddings": tied}, tensors, shards=shards)
    refused(2, "import would lose its head over 3 labels (score.weight): to keep it, train with "
            f"model.init_from: {folder} and model.labels: 3", "import", folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_checkpoint_dir_is_no_folder_of_weights(tmp_path, trained, make_cluster, slow, config):  # noqa: F811
    """import and model.init_from refuse a checkpoint.dir and name the newest step in it, which they accept."""
    settings, shapes = FAMILIES["llama"]
    checkpoints = trained(hf_folder.write(tmp_path / "source", settings, hf_folder.draw(shapes, "F32")))
    (newest,) = checkpoints.glob("step-*")
    said = f"'{checkpoints}' has the checkpoints of a run; name one of them, of which the newest is '{newest}'"
    refused(2, said, "import", checkpoints, tmp_path / "out")
    worker = start(make_cluster("again"), config, checkpoints)
    assert worker.wait(60 * slow) == 2 and f"model.init_from: {said}" in worker.log(), worker.log_tail()
    done("import", newest, tmp_path / "out")


def test_import_of_images_is_refused(tmp_path):
    folder = hf_folder.write(tmp_path / "source", hf_folder.RESNET,
                             hf_folder.draw(hf_folder.resnet_shapes(3), "F32"))
    refused(2, f"'{folder}' has the weights of a model of images, whose head over labels would be lost: train with "
            f"model.init_from: {folder}", "import", folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("family", FAMILIES)
def test_diff_of_the_base_model(tmp_path, family):
    """In a folder with the base model alone the names lack a prefix; diff compares the same tensors."""
    settings, shapes = FAMILIES[family]
    tensors = hf_folder.draw(shapes, "F32")
    changed = dict(tensors)
    name = next(name for name in tensors if name.endswith(".weight"))
    kind, shape, data = tensors[name]
    changed[name] = kind, shape, bytes(4) + data[4:]
    whole = hf_folder.write(tmp_path / "whole", settings, tensors)
    for base in base_names(tensors), base_names(changed):
        folder = hf_folder.write(tmp_path / "base", settings, base, shards=2)
        for pair in (whole, folder), (folder, whole):
            differs = base != base_names(tensors)
            run = ckpt("diff", *pair)
            *lines, total = run.stdout.splitlines()
            assert run.returncode == differs and len(lines) == differs, run.stdout
            assert total == (f"{len(tensors) - differs} tensors are equal, {int(differs)} differ{'s' * differs}, "
                             "0 in one alone or of another shape")
    both = hf_folder.write(tmp_path / "both", settings, {**tensors, name.split(".", 1)[1]: tensors[name]})
    for pair, which in ((whole, both), "second"), ((both, whole), "first"):
        run = ckpt("diff", *pair)
        assert run.returncode == 1 and f"is only in the {which}\n{len(tensors)} tensors are equal, 0 d" in run.stdout


# ---- llm.c ----

GPT2_ORDER = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
              "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight",
              "mlp.c_proj.bias"]
PADDED = 384  # rows of 256


def transposed(shape, data, width):
    rows, columns = shape
    return b"".join(data[(r * columns + c) * width:(r * columns + c + 1) * width]
                    for c in range(columns) for r in range(rows))


def write_llmc(path, tensors, dtype, version):
    """Writes the file of llm.c's own writer: padded vocabulary, each kind of tensor for all layers, matrices (out,
    in)."""
    width = hf_folder.WIDTH[dtype]
    header = [20240326, version, 32, 256, 2, 4, 64, PADDED]
    parts = [struct.pack("<256i", *header, *[0] * (256 - len(header)))]

    def add(name):
        _, shape, data = tensors[f"transformer.{name}"]
        matrix = len(shape) == 2 and name.startswith("h.")
        parts.append(transposed(shape, data, width) if matrix else data)

    add("wte.weight")
    parts.append(bytes((PADDED - 256) * 64 * width))
    add("wpe.weight")
    for kind in GPT2_ORDER:
        for layer in range(2):
            add(f"h.{layer}.{kind}")
    add("ln_f.weight")
    add("ln_f.bias")
    path.write_bytes(b"".join(parts))


@pytest.mark.parametrize("dtype, version", [("fp32", 3), ("bf16", 5)])
def test_model_file_of_llmc(tmp_path, trained, dtype, version):
    tensors = hf_folder.draw(FAMILIES["gpt2"][1], TORCH[dtype])
    file = tmp_path / "gpt2.bin"
    write_llmc(file, tensors, TORCH[dtype], version)
    done("import", file, tmp_path / "imported", "--dtype", dtype)
    assert hf_folder.read(tmp_path / "imported") == tensors
    done("export", trained(tmp_path / "imported"), tmp_path / "exported", "--dtype", dtype)
    assert hf_folder.read(tmp_path / "exported") == tensors


def test_model_file_refused(tmp_path):
    file, out = tmp_path / "gpt2.bin", tmp_path / "out"
    write_llmc(file, hf_folder.draw(FAMILIES["gpt2"][1], "F32"), "F32", 3)
    whole = file.read_bytes()
    for at, value, said in ((0, 20240327, "is no model file of llm.c's GPT-2"),
                            (4, 1, "of llm.c's version 1; 3 and 5 are read"),
                            (12, 500, "a vocabulary of 500 is padded to 384"),
                            (16, 0, "its number of layers is 0"),
                            (20, 3, "gpt2.bin'"),
                            (24, 128, "by the sizes in its header it has")):
        file.write_bytes(whole[:at] + struct.pack("<i", value) + whole[at + 4:])
        refused(2, said, "import", file, out)
    file.write_bytes(whole[:1024] + bytes.fromhex(hf_folder.ODD["F32"]["NaN"]) + whole[1028:])
    refused(2, "gpt2.bin': tensor 'transformer.wte.weight' has the value NaN at element 0", "import", file, out)
    for size, said in ((1000, "is no model file"), (len(whole) - 4, "it is cut off, or another file")):
        file.write_bytes(whole[:size])
        refused(2, said, "import", file, out)
    assert not out.exists()
