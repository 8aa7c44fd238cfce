"""GPT-2 and the Llama family of torch's tensor operations, beside transformers' models: a part of reference.py."""

import math

import torch
import transformers


def causal(q, k, v):
    """Causal attention of (B, H, T, D)."""
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    future = torch.triu(torch.ones(q.shape[2], q.shape[2], dtype=torch.bool), 1)
    return (torch.softmax(scores.masked_fill(future, -math.inf), dim=3) @ v).transpose(1, 2)


def labels_key(model):
    return f", labels: {model.labels}" if model.labels else ""


def labels_of_config(model):
    return {"num_labels": model.labels, "pad_token_id": 0} if model.labels else {}


class Gpt2:
    """Linear weights are (in, out)."""

    layer, head, embd, context, vocab = 2, 3, 48, 32, 67
    spread, pace, clip = 0.15, 1.0, 1.0  # of matrices' weights; factor of the learning rates; largest norm

    def __init__(self, labels=0):
        self.labels = labels
        if labels:  # few losses; keeps them away from zero, where only the rounding of a norm would be left
            self.pace, self.clip = 0.05, 3.0

    def config(self):
        return (f"model: {{name: gpt2, n_layer: {self.layer}, n_head: {self.head}, n_embd: {self.embd}, "
                f"context: {self.context}, vocab: {self.vocab}{labels_key(self)}}}")

    def shapes(self):
        """Names and shapes in the order of dpt's flat vector."""
        c = self.embd
        yield "transformer.wte.weight", (self.vocab, c)
        yield "transformer.wpe.weight", (self.context, c)
        for i in range(self.layer):
            h = f"transformer.h.{i}."
            yield h + "ln_1.weight", (c,)
            yield h + "ln_1.bias", (c,)
            yield h + "attn.c_attn.weight", (c, 3 * c)
            yield h + "attn.c_attn.bias", (3 * c,)
            yield h + "attn.c_proj.weight", (c, c)
            yield h + "attn.c_proj.bias", (c,)
            yield h + "ln_2.weight", (c,)
            yield h + "ln_2.bias", (c,)
            yield h + "mlp.c_fc.weight", (c, 4 * c)
            yield h + "mlp.c_fc.bias", (4 * c,)
            yield h + "mlp.c_proj.weight", (4 * c, c)
            yield h + "mlp.c_proj.bias", (c,)
        yield "transformer.ln_f.weight", (c,)
        yield "transformer.ln_f.bias", (c,)
        if self.labels:
            yield "score.weight", (self.labels, c)

    def norm(self, x, p, name):
        return torch.nn.functional.layer_norm(x, (self.embd,), p[name + ".weight"], p[name + ".bias"], 1e-5)

    def attention(self, x, p, h):
        q, k, v = (x @ p[h + "attn.c_attn.weight"] + p[h + "attn.c_attn.bias"]).split(self.embd, dim=2)
        q, k, v = (z.view(z.shape[0], z.shape[1], self.head, -1).transpose(1, 2) for z in (q, k, v))
        return causal(q, k, v).reshape(x.shape) @ p[h + "attn.c_proj.weight"] + p[h + "attn.c_proj.bias"]

    def states(self, p, tokens):
        x = p["transformer.wte.weight"][tokens] + p["transformer.wpe.weight"][:tokens.shape[1]]
        for i in range(self.layer):
            h = f"transformer.h.{i}."
            x = x + self.attention(self.norm(x, p, h + "ln_1"), p, h)
            y = self.norm(x, p, h + "ln_2") @ p[h + "mlp.c_fc.weight"] + p[h + "mlp.c_fc.bias"]
            y = 0.5 * y * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * y**3)))
            x = x + y @ p[h + "mlp.c_proj.weight"] + p[h + "mlp.c_proj.bias"]
        return self.norm(x, p, "transformer.ln_f")

    def output(self):
        return "score.weight" if self.labels else "transformer.wte.weight"

    def transformers(self):
        kind = transformers.GPT2ForSequenceClassification if self.labels else transformers.GPT2LMHeadModel
        return kind(transformers.GPT2Config(
            n_layer=self.layer, n_head=self.head, n_embd=self.embd, n_positions=self.context, vocab_size=self.vocab,
            **labels_of_config(self)))


class Llama:
    """Linear weights are (out, in). Queries in groups; tied or not; biases; Llama 3's rotary scaling."""

    spread, pace, clip = 0.1, 0.5, 1.2  # as Gpt2's

    def __init__(self, embd, heads, size, inner, tied, bias, scaling, labels=0):
        self.layer, self.context, self.vocab, self.theta = 2, 32, 67, 10000.0
        self.embd, (self.head, self.kv_head), self.size, self.inner = embd, heads, size, inner
        self.tied, self.bias, self.scaling, self.labels = tied, bias, scaling, labels
        if labels:
            self.pace, self.clip = 0.1, 3.0

    def config(self):
        text = (f"model: {{name: llama, n_layer: {self.layer}, n_head: {self.head}, n_kv_head: {self.kv_head}, "
                f"head_size: {self.size}, n_embd: {self.embd}, n_inner: {self.inner}, context: {self.context}, "
                f"vocab: {self.vocab}, tied_head: {str(self.tied).lower()}, "
                f"attention_bias: {str(self.bias).lower()}, mlp_bias: {str(self.bias).lower()}")
        if self.scaling:
            factor, low, high, original = self.scaling
            text += (f", rope_scaling: llama3, rope_factor: {factor}, rope_low_freq_factor: {low}, "
                     f"rope_high_freq_factor: {high}, rope_original_context: {original}")
        return text + labels_key(self) + "}"

    def shapes(self):
        """Names and shapes in the order of dpt's flat vector."""
        c, q, kv, i = self.embd, self.head * self.size, self.kv_head * self.size, self.inner
        yield "model.embed_tokens.weight", (self.vocab, c)
        for layer in range(self.layer):
            h = f"model.layers.{layer}."
            yield h + "input_layernorm.weight", (c,)
            yield h + "self_attn.q_proj.weight", (q, c)
            yield h + "self_attn.k_proj.weight", (kv, c)
            yield h + "self_attn.v_proj.weight", (kv, c)
            if self.bias:
                yield h + "self_attn.q_proj.bias", (q,)
                yield h + "self_attn.k_proj.bias", (kv,)
                yield h + "self_attn.v_proj.bias", (kv,)
            yield h + "self_attn.o_proj.weight", (c, q)
            if self.bias:
                yield h + "self_attn.o_proj.bias", (c,)
            yield h + "post_attention_layernorm.weight", (c,)
            yield h + "mlp.gate_proj.weight", (i, c)
            yield h + "mlp.up_proj.weight", (i, c)
            if self.bias:
                yield h + "mlp.gate_proj.bias", (i,)
                yield h + "mlp.up_proj.bias", (i,)
            yield h + "mlp.down_proj.weight", (c, i)
            if self.bias:
                yield h + "mlp.down_proj.bias", (c,)
        yield "model.norm.weight", (c,)
        if self.labels:
            yield "score.weight", (self.labels, c)
        elif not self.tied:
            yield "lm_head.weight", (self.vocab, c)

    def norm(self, x, p, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * p[name + ".weight"]

    def linear(self, x, p, name):
        y = x @ p[name + ".weight"].T
        return y + p[name + ".bias"] if self.bias else y

    def frequencies(self):
        f = self.theta ** -(torch.arange(0, self.size, 2, dtype=torch.float64) / self.size)
        if self.scaling:
            factor, low, high, original = self.scaling
            kept = ((original * f / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
            f = f * (kept + (1 - kept) / factor)
        return f

    def rotated(self, x):
        """Rotary embedding of (B, H, T, D)."""
        angle = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * self.frequencies()
        a, b = x.split(self.size // 2, dim=3)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=3)

    def attention(self, x, p, h):
        def part(name, heads):
            return self.linear(x, p, h + name).view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)

        q, k = self.rotated(part("q_proj", self.head)), self.rotated(part("k_proj", self.kv_head))
        group = self.head // self.kv_head
        k, v = (z.repeat_interleave(group, dim=1) for z in (k, part("v_proj", self.kv_head)))
        return self.linear(causal(q, k, v).reshape(*x.shape[:2], -1), p, h + "o_proj")

    def states(self, p, tokens):
        x = p["model.embed_tokens.weight"][tokens]
        for layer in range(self.layer):
            h = f"model.layers.{layer}."
            x = x + self.attention(self.norm(x, p, h + "input_layernorm"), p, h + "self_attn.")
            y = self.norm(x, p, h + "post_attention_layernorm")
            y = torch.nn.functional.silu(self.linear(y, p, h + "mlp.gate_proj")) * self.linear(y, p, h + "mlp.up_proj")
            x = x + self.linear(y, p, h + "mlp.down_proj")
        return self.norm(x, p, "model.norm")

    def output(self):
        if self.labels:
            return "score.weight"
        return "model.embed_tokens.weight" if self.tied else "lm_head.weight"

    def transformers(self):
        scaling = None
        if self.scaling:
            factor, low, high, original = self.scaling
            scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                       "original_max_position_embeddings": original}
        kind = transformers.LlamaForSequenceClassification if self.labels else transformers.LlamaForCausalLM
        return kind(transformers.LlamaConfig(
            num_hidden_layers=self.layer, num_attention_heads=self.head, num_key_value_heads=self.kv_head,
            head_dim=self.size, hidden_size=self.embd, intermediate_size=self.inner, vocab_size=self.vocab,
            max_position_embeddings=self.context, rms_norm_eps=1e-5, rope_theta=self.theta, rope_scaling=scaling,
            attention_bias=self.bias, mlp_bias=self.bias, tie_word_embeddings=self.tied,
            **labels_of_config(self)))
