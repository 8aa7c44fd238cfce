/* Llama's config.json, as Hugging Face's LlamaConfig reads it. */
#include "worker/model/llama.h"

#include <jansson.h>

static json_t *rope_scaling(const struct dpt_llama *m)
{
    if (m->rope.scaling == DPT_ROPE_SCALING_NONE)
        return json_null();
    return json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", m->rope.factor,
                     "low_freq_factor", m->rope.low_freq_factor, "high_freq_factor",
                     m->rope.high_freq_factor, "original_max_position_embeddings",
                     (json_int_t)m->rope.original_context);
}

enum dpt_status dpt_llama_hf_config(const struct dpt_model *model, char **ret_json,
                                    struct dpt_err *err)
{
    const struct dpt_llama *m = (const struct dpt_llama *)model;
    const bool attention_bias = m->place[DPT_LLAMA_Q_B] >= 0;
    const bool mlp_bias = m->place[DPT_LLAMA_DOWN_B] >= 0;
    json_t *json = json_pack(
        "{s:[s], s:s, s:s, s:I, s:I, s:i, s:I, s:I, s:I, s:I, s:i, s:f, s:f, s:f, s:o, s:b, s:b, "
        "s:f, s:b, s:n, s:n, s:b, s:s}",
        "architectures", "LlamaForCausalLM", "model_type", "llama", "hidden_act", "silu",
        "hidden_size", (json_int_t)m->c, "intermediate_size", (json_int_t)m->inner,
        "num_hidden_layers", m->layers, "num_attention_heads", (json_int_t)m->heads,
        "num_key_value_heads", (json_int_t)m->kv_heads, "head_dim", (json_int_t)m->head,
        "max_position_embeddings", (json_int_t)model->context, "vocab_size", model->vocab,
        "initializer_range", 0.02, "rms_norm_eps", m->eps, "rope_theta", m->rope.theta,
        "rope_scaling", rope_scaling(m), "attention_bias", attention_bias, "mlp_bias", mlp_bias,
        "attention_dropout", m->dropout, "tie_word_embeddings", m->tied, "bos_token_id",
        "eos_token_id", "use_cache", 1, "torch_dtype", "float32");
    char *text = json == NULL
                     ? NULL
                     : json_dumps(json, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(12));
    json_decref(json);
    if (text == NULL)
        return dpt_fail(err, DPT_ENOMEM, "config.json of the model");
    *ret_json = text;
    return DPT_OK;
}
