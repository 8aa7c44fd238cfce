"""Checkpoints as Hugging Face has them, without torch: read by its own `safetensors`, held against the tensors and the
config.json that transformers' GPT2LMHeadModel loads, and computed with: GPT-2 in numpy must give the loss of dpt-worker
--eval. Where torch and transformers are installed `from_pretrained` loads them, too.

Run by ctest: pytest test_hugging_face.py, with DPT_BIN naming the folder of the programs. tests/run installs numpy and
safetensors.
"""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cluster import Cluster, make_text  # noqa: E402

numpy = pytest.importorskip("numpy", reason="numpy is not installed: deploy/install-deps tests")
safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed: tests/run installs it by pip")

STEPS = 8
LAYERS, HEADS, WIDTH, CONTEXT, VOCAB = 3, 4, 48, 24, 256
LAYER_NORM_EPSILON = 1e-5  # GPT2Config's default
TOLERANCE = 1e-5  # float32's rounding over some thousand sums, in a loss of about 3

# GPT2LMHeadModel.state_dict() by transformers' modeling_gpt2.py. Conv1D keeps (inputs, outputs), not as nn.Linear.
OUTER = {
    "transformer.wte.weight": (VOCAB, WIDTH),
    "transformer.wpe.weight": (CONTEXT, WIDTH),
    "transformer.ln_f.weight": (WIDTH,),
    "transformer.ln_f.bias": (WIDTH,),
}
BLOCK = {
    "ln_1.weight": (WIDTH,),
    "ln_1.bias": (WIDTH,),
    "attn.c_attn.weight": (WIDTH, 3 * WIDTH),
    "attn.c_attn.bias": (3 * WIDTH,),
    "attn.c_proj.weight": (WIDTH, WIDTH),
    "attn.c_proj.bias": (WIDTH,),
    "ln_2.weight": (WIDTH,),
    "ln_2.bias": (WIDTH,),
    "mlp.c_fc.weight": (WIDTH, 4 * WIDTH),
    "mlp.c_fc.bias": (4 * WIDTH,),
    "mlp.c_proj.weight": (4 * WIDTH, WIDTH),
    "mlp.c_proj.bias": (WIDTH,),
}
# lm_head.weight is wte's: tied weights are saved once, under the name of the first.
EXPECTED = dict(OUTER, **{f"transformer.h.{i}.{name}": shape for i in range(LAYERS) for name, shape in BLOCK.items()})

# GPT2Config's keys without which the model computed something else; what is absent has GPT2Config's default.
CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_embd": WIDTH,
    "n_positions": CONTEXT,
    "vocab_size": VOCAB,
}
DEFAULTS = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": LAYER_NORM_EPSILON,
    "tie_word_embeddings": True,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "n_inner": None,
}


@pytest.fixture(scope="module", params=["ddp", "full_shard"])
def trained(request, tmp_path_factory):
    """(folder of the newest checkpoint, validation text, loss of it by dpt-worker --eval) of a training of two
    ranks."""
    folder = tmp_path_factory.mktemp(request.param)
    val = make_text(folder / "val.txt", 3000, seed=2)
    sets = {"model.n_layer": LAYERS, "model.n_head": HEADS, "model.n_embd": WIDTH, "model.context": CONTEXT,
            "train.seq_len": CONTEXT, "train.steps": STEPS, "data.val": val, "checkpoint.every_steps": STEPS}
    if request.param == "full_shard":
        sets.update({"strategy.name": "fsdp", "strategy.sharding": "full_shard"})
    with Cluster(folder, sets=sets) as cluster:
        worker = cluster.start_worker("a", endpoint=False, nnodes=1, ranks=2)
        assert worker.wait(60) == 0, worker.log_tail()
        evaluated = cluster.start_worker("eval", endpoint=False, nnodes=1, args=["--eval"],
                                         sets={"checkpoint.dir": worker.checkpoint_dir})
        assert evaluated.wait(60) == 0, evaluated.log_tail()
        loss = evaluated.outputs.evaluation()["val_loss"]
    return worker.checkpoint_dir / f"step-{STEPS:08d}", val, loss


def read_all(step):
    """name -> array by the library, each tensor from the file that the index names."""
    index = json.loads((step / "model.safetensors.index.json").read_text())["weight_map"]
    tensors = {}
    for file in sorted(set(index.values())):
        with safetensors.safe_open(str(step / file), framework="numpy") as opened:
            assert opened.metadata() == {"format": "pt"}  # transformers refuses a file without
            for name in opened.keys():
                assert name not in tensors and index[name] == file, name
                tensors[name] = opened.get_tensor(name)
    assert set(index) == set(tensors)
    return tensors


def test_tensors_are_those_of_gpt2_lm_head_model(trained):
    step, _, _ = trained
    tensors = read_all(step)
    assert {name: tensor.shape for name, tensor in tensors.items()} == EXPECTED
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"float32"}
    total = json.loads((step / "model.safetensors.index.json").read_text())["metadata"]["total_size"]
    assert total == sum(tensor.nbytes for tensor in tensors.values())


def test_config_is_gpt2s(trained):
    step, _, _ = trained
    config = json.loads((step / "config.json").read_text())
    assert {key: config.get(key) for key in CONFIG} == CONFIG
    assert {key: config.get(key, value) for key, value in DEFAULTS.items()} == DEFAULTS


def layer_norm(x, weight, bias):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / numpy.sqrt(variance + LAYER_NORM_EPSILON) * weight + bias


def gelu_new(x):
    return 0.5 * x * (1 + numpy.tanh(numpy.sqrt(2 / numpy.pi) * (x + 0.044715 * x**3)))


def attention(x, w, prefix):  # x: (B, T, C)
    b, t, c = x.shape
    qkv = x @ w[prefix + "c_attn.weight"] + w[prefix + "c_attn.bias"]
    q, k, v = (part.reshape(b, t, HEADS, c // HEADS).transpose(0, 2, 1, 3) for part in numpy.split(qkv, 3, axis=-1))
    scores = q @ k.transpose(0, 1, 3, 2) / numpy.sqrt(c // HEADS)  # (B, heads, T, T)
    scores = numpy.where(numpy.tril(numpy.ones((t, t), bool)), scores, -numpy.inf)
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    joined = (weights @ v).transpose(0, 2, 1, 3).reshape(b, t, c)
    return joined @ w[prefix + "c_proj.weight"] + w[prefix + "c_proj.bias"]


def gpt2_loss(tensors, tokens, targets):
    """Mean cross entropy; tokens and targets (B, T). GPT2LMHeadModel in float64."""
    w = {name.removeprefix("transformer."): tensor.astype(numpy.float64) for name, tensor in tensors.items()}
    x = w["wte.weight"][tokens] + w["wpe.weight"][: tokens.shape[1]]
    for i in range(LAYERS):
        h = f"h.{i}."
        x = x + attention(layer_norm(x, w[h + "ln_1.weight"], w[h + "ln_1.bias"]), w, h + "attn.")
        inner = layer_norm(x, w[h + "ln_2.weight"], w[h + "ln_2.bias"]) @ w[h + "mlp.c_fc.weight"]
        inner = gelu_new(inner + w[h + "mlp.c_fc.bias"])
        x = x + inner @ w[h + "mlp.c_proj.weight"] + w[h + "mlp.c_proj.bias"]
    logits = layer_norm(x, w["ln_f.weight"], w["ln_f.bias"]) @ w["wte.weight"].T  # (B, T, V)
    largest = logits.max(-1, keepdims=True)
    log_sum = numpy.log(numpy.exp(logits - largest).sum(-1)) + largest[..., 0]
    return float((log_sum - numpy.take_along_axis(logits, targets[..., None], -1)[..., 0]).mean())


def test_gpt2_computes_the_loss_of_eval(trained):
    step, val, expected = trained
    text = numpy.frombuffer(val.read_bytes(), numpy.uint8).astype(numpy.int64)
    n = (len(text) - 1) // CONTEXT
    tokens, targets = text[: n * CONTEXT].reshape(n, CONTEXT), text[1 : n * CONTEXT + 1].reshape(n, CONTEXT)
    tensors = read_all(step)
    assert abs(gpt2_loss(tensors, tokens, targets) / expected - 1) < TOLERANCE
    # A matrix that is laid out as nn.Linear has it is another model.
    name = "transformer.h.1.attn.c_proj.weight"
    turned = dict(tensors, **{name: tensors[name].T})
    assert abs(gpt2_loss(turned, tokens, targets) / expected - 1) > 10 * TOLERANCE


def test_from_pretrained(trained):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    step, val, expected = trained
    model, info = transformers.GPT2LMHeadModel.from_pretrained(step, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    state = model.state_dict()
    for name, tensor in read_all(step).items():
        assert (state[name].numpy() == tensor).all(), name
    assert model.lm_head.weight is model.transformer.wte.weight
    text = torch.tensor(list(val.read_bytes()))
    n = (len(text) - 1) // CONTEXT
    with torch.no_grad():
        logits = model.eval()(text[: n * CONTEXT].reshape(n, CONTEXT)).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), text[1 : n * CONTEXT + 1])
    assert abs(loss.item() / expected - 1) < TOLERANCE
