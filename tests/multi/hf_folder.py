"""Writes and reads Hugging Face folders for tests, with the standard library only."""

import array
import json
import random
import struct

WIDTH = {"F32": 4, "BF16": 2, "F16": 2, "I32": 4}
LLAMA = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "vocab_size": 256,
         "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
         "tie_word_embeddings": True, "hidden_act": "silu"}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 256,
        "activation_function": "gelu_new", "resid_pdrop": 0.1}
RESNET = {"model_type": "torchvision_resnet", "block": "basic", "layers": [1, 1], "width": 8, "stem": "cifar"}


def llama_shapes():
    c, kv, inner = 64, 32, 96
    shapes = {"model.embed_tokens.weight": [256, c], "model.norm.weight": [c]}
    for i in range(2):
        for name, shape in (("input_layernorm", [c]), ("post_attention_layernorm", [c]), ("self_attn.q_proj", [c, c]),
                            ("self_attn.k_proj", [kv, c]), ("self_attn.v_proj", [kv, c]), ("self_attn.o_proj", [c, c]),
                            ("mlp.gate_proj", [inner, c]), ("mlp.up_proj", [inner, c]), ("mlp.down_proj", [c, inner])):
            shapes[f"model.layers.{i}.{name}.weight"] = shape
    return shapes


def gpt2_shapes():
    c = 64
    shapes = {"transformer.wte.weight": [256, c], "transformer.wpe.weight": [32, c],
              "transformer.ln_f.weight": [c], "transformer.ln_f.bias": [c]}
    for i in range(2):
        for name, shape in (("ln_1", [c]), ("attn.c_attn", [c, 3 * c]), ("attn.c_proj", [c, c]), ("ln_2", [c]),
                            ("mlp.c_fc", [c, 4 * c]), ("mlp.c_proj", [4 * c, c])):
            shapes[f"transformer.h.{i}.{name}.weight"] = shape
            shapes[f"transformer.h.{i}.{name}.bias"] = shape[-1:]
    return shapes


def resnet_shapes(labels):
    shapes = {"conv1.weight": [8, 3, 3, 3], "layer2.0.downsample.0.weight": [16, 8, 1, 1],
              "layer1.0.conv1.weight": [8, 8, 3, 3], "layer1.0.conv2.weight": [8, 8, 3, 3],
              "layer2.0.conv1.weight": [16, 8, 3, 3], "layer2.0.conv2.weight": [16, 16, 3, 3]}
    for norm, c in (("bn1", 8), ("layer1.0.bn1", 8), ("layer1.0.bn2", 8), ("layer2.0.bn1", 16), ("layer2.0.bn2", 16),
                    ("layer2.0.downsample.1", 16)):
        for name in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{norm}.{name}"] = [c]
    return {**shapes, "fc.weight": [labels, 16], "fc.bias": [labels]}


def numel(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def draw(shapes, dtype, seed=1):
    """name → (dtype, shape, bytes): small random numbers that use all bits of the dtype."""
    rng, tensors = random.Random(seed), {}
    for name, shape in shapes.items():
        values = [rng.uniform(-0.1, 0.1) for _ in range(numel(shape))]
        floats = array.array("f", values).tobytes()
        if dtype == "BF16":
            floats = b"".join(floats[i + 2:i + 4] for i in range(0, len(floats), 4))
        elif dtype == "F16":
            floats = struct.pack(f"<{len(values)}e", *values)
        tensors[name] = dtype, shape, floats
    return tensors


ODD = {"F32": {"NaN": "0000c07f", "infinity": "000080ff"}, "BF16": {"NaN": "c07f", "infinity": "80ff"},
       "F16": {"NaN": "007e", "infinity": "00fc"}}


def spoiled(tensors, name, element, value):
    """A copy of the tensors in which one element is NaN or an infinity."""
    dtype, shape, data = tensors[name]
    at = element * WIDTH[dtype]
    return {**tensors, name: (dtype, shape, data[:at] + bytes.fromhex(ODD[dtype][value]) + data[at + WIDTH[dtype]:])}


def widened(dtype, data):
    """The bytes of the same values as F32."""
    if dtype == "F32":
        return data
    if dtype == "BF16":
        return b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
    return array.array("f", struct.unpack(f"<{len(data) // 2}e", data)).tobytes()


def write_file(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def write(folder, config, tensors, shards=1):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        write_file(folder / "model.safetensors", tensors)
        return folder
    names, where = list(tensors), {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        write_file(folder / file, part)
        where.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


SPECIAL = {"bos_token_id": 1, "eos_token_id": [2, 7], "pad_token_id": 3}
FOR_TEXT = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
            "chat_template.jinja", "vocab.json", "merges.txt", "tokenizer.model", "generation_config.json"]


def write_for_text(folder):
    """Adds special tokens and the files that a tokenizer and generate() read to the folder."""
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, **SPECIAL}))
    for name in FOR_TEXT:
        (folder / name).write_text(f"the folder's {name}")
    return folder


def for_text(folder):
    """({special token: value, unless null}, {file: text}) of what write_for_text adds."""
    settings = json.loads((folder / "config.json").read_text())
    files = {name: (folder / name).read_text() for name in FOR_TEXT if (folder / name).exists()}
    return {name: settings[name] for name in SPECIAL if settings.get(name) is not None}, files


def read(folder):
    """name → (dtype, shape, bytes) of all tensors of a folder, of a model or of PEFT's adapters."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        (n,) = struct.unpack_from("<Q", raw)
        header = json.loads(raw[8:8 + n])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            tensors[name] = entry["dtype"], entry["shape"], raw[8 + n + begin:8 + n + end]
    return tensors
