/* Sizes of models: presets, sizes that follow from others, and impossible combinations. Every
 * refusal names the nearest legal setting. */
#include "base/config_table.h"

#include <stdio.h>
#include <string.h>

#define COUNT(list) (sizeof(list) / sizeof *(list))

enum {
    GPT2_CONTEXT = 1024,
    INNER_STEP = 64,     /* model.n_inner: auto becomes a multiple of this */
    LINE = 32,           /* alignment of tensors in elements (DPT_PARAM_ALIGN of worker/model) */
    HEAD_SIZE_MAX = 256, /* the limit in the table */
    N_INNER_MAX = 262144 /* the limit in the table */
};

/* Sources: GPT-2: Radford et al. 2019, table 2; SmolLM2 and Llama: their config.json; residual
 * networks: config_resnet.c. */
static const struct preset {
    const char *name, *model;
    int n_layer, n_head, n_embd, context, vocab;
    int n_kv_head, n_inner;         /* for llama */
    double rope_theta, rope_factor; /* rope_factor 0: no scaling */
} presets[] = {
    {"gpt2-124m", "gpt2", 12, 12, 768, GPT2_CONTEXT, DPT_VOCAB_GPT2, 0, 0, 0, 0},
    {"gpt2-350m", "gpt2", 24, 16, 1024, GPT2_CONTEXT, DPT_VOCAB_GPT2, 0, 0, 0, 0},
    {"gpt2-774m", "gpt2", 36, 20, 1280, GPT2_CONTEXT, DPT_VOCAB_GPT2, 0, 0, 0, 0},
    {"gpt2-1558m", "gpt2", 48, 25, 1600, GPT2_CONTEXT, DPT_VOCAB_GPT2, 0, 0, 0, 0},
    {"smollm2-135m", "llama", 30, 9, 576, 8192, 49152, 3, 1536, 1e5, 0},
    {"smollm2-360m", "llama", 32, 15, 960, 8192, 49152, 5, 2560, 1e5, 0},
    {"smollm2-1.7b", "llama", 24, 32, 2048, 8192, 49152, 32, 8192, 1.3e5, 0},
    {"llama-3.2-1b", "llama", 16, 32, 2048, 131072, 128256, 8, 8192, 5e5, 32},
    {.name = "small_resnet", .model = "resnet"},
    {.name = "resnet18", .model = "resnet"},
    {.name = "resnet34", .model = "resnet"},
    {.name = "resnet50", .model = "resnet"},
};

/* Keys that only models of texts have, and keys that only models of images have. */
static const char *const of_texts[] = {"model.n_head", "model.n_embd", "model.context",
                                       "model.vocab", "model.dropout"};
static const char *const of_resnet[] = {"model.width", "model.stem", "model.block", "model.stages",
                                        "model.batch_norm_momentum"};

/* Keys that only llama has. */
static const char *const of_llama[] = {"model.n_kv_head",
                                       "model.head_size",
                                       "model.n_inner",
                                       "model.norm_eps",
                                       "model.tied_head",
                                       "model.attention_bias",
                                       "model.mlp_bias",
                                       "model.rope_theta",
                                       "model.rope_scaling",
                                       "model.rope_factor",
                                       "model.rope_low_freq_factor",
                                       "model.rope_high_freq_factor",
                                       "model.rope_original_context"};

static bool is_llama(const struct dpt_config *c)
{
    return strcmp(c->model.name, "llama") == 0;
}

static bool is_resnet(const struct dpt_config *c)
{
    return strcmp(c->model.name, "resnet") == 0;
}

static const struct preset *find_preset(const struct dpt_config *c)
{
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (strcmp(c->model.preset, presets[i].name) == 0)
            return &presets[i];
    return NULL;
}

static void fill_size(const struct dpt_config_load *load, const char *path, int *size, int preset)
{
    if (!dpt_config_given(load, path))
        *size = preset;
}

static void fill_number(const struct dpt_config_load *load, const char *path, double *number,
                        double preset)
{
    if (!dpt_config_given(load, path))
        *number = preset;
}

static void fill_preset(struct dpt_config_load *load, const struct preset *preset)
{
    struct dpt_config *c = &load->config;
    if (!dpt_config_given(load, "model.name"))
        (void)snprintf(c->model.name, sizeof c->model.name, "%s", preset->model);
    if (strcmp(preset->model, "resnet") == 0) {
        dpt_config_fill_resnet(load, preset->name);
        return;
    }
    fill_size(load, "model.n_layer", &c->model.n_layer, preset->n_layer);
    fill_size(load, "model.n_head", &c->model.n_head, preset->n_head);
    fill_size(load, "model.n_embd", &c->model.n_embd, preset->n_embd);
    fill_size(load, "model.context", &c->model.context, preset->context);
    fill_size(load, "model.vocab", &c->model.vocab, preset->vocab);
    if (preset->n_inner == 0)
        return;
    fill_size(load, "model.n_kv_head", &c->model.n_kv_head, preset->n_kv_head);
    fill_size(load, "model.n_inner", &c->model.n_inner, preset->n_inner);
    fill_number(load, "model.rope_theta", &c->model.rope_theta, preset->rope_theta);
    if (preset->rope_factor > 0 && !dpt_config_given(load, "model.rope_scaling"))
        c->model.rope_scaling = DPT_ROPE_SCALING_LLAMA3;
    if (preset->rope_factor > 0)
        fill_number(load, "model.rope_factor", &c->model.rope_factor, preset->rope_factor);
}

static bool is_byte_text(const struct dpt_config *c)
{
    return dpt_config_reads_text(c) && c->data.tokenizer == DPT_TOKENIZER_BYTES;
}

/* A SwiGLU of 8/3 C has as many weights as an MLP of 4 C (Shazeer 2020). */
static int usual_inner(int n_embd)
{
    const int exact = (int)((8LL * n_embd + 2) / 3);
    return (exact + INNER_STEP - 1) / INNER_STEP * INNER_STEP;
}

void dpt_config_resolve_model(struct dpt_config_load *load)
{
    struct dpt_config *c = &load->config;
    const struct preset *preset = find_preset(c);
    if (preset)
        fill_preset(load, preset);
    if (is_resnet(c)) {
        dpt_config_resolve_resnet(load);
        return;
    }
    const bool is_hf = dpt_config_reads_text(c) && c->data.tokenizer == DPT_TOKENIZER_HF;
    if (c->model.vocab == DPT_AUTO && !is_hf) /* with hf the check refuses auto */
        c->model.vocab = is_byte_text(c) && !preset ? DPT_VOCAB_BYTES : DPT_VOCAB_GPT2;
    if (!is_llama(c))
        return;
    if (c->model.n_kv_head == DPT_AUTO)
        c->model.n_kv_head = c->model.n_head;
    if (c->model.head_size == DPT_AUTO && c->model.n_embd % c->model.n_head == 0)
        c->model.head_size = c->model.n_embd / c->model.n_head;
    if (c->model.n_inner == DPT_AUTO)
        c->model.n_inner = usual_inner(c->model.n_embd);
}

/* DPT_ECONFIG: the config sets one of these keys. `whose` names the models that have them. */
static enum dpt_status check_keys(const struct dpt_config_load *load, const char *const *paths,
                                  size_t n, const char *whose, struct dpt_err *err)
{
    const char *path = dpt_config_first_changed(load, paths, n);
    if (path)
        return dpt_refuse_both(load, path, "model.name", err,
                               "%s is for model.name: %s; leave it out (here: %s)", path, whose,
                               load->config.model.name);
    return DPT_OK;
}

static enum dpt_status check_preset(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    const struct preset *preset = find_preset(c);
    if (preset && strcmp(preset->model, c->model.name) != 0)
        return dpt_refuse_both(
            load, "model.preset", "model.name", err,
            "model.preset: %s is a %s; set model.name: %s, or leave it out (here: %s)",
            preset->name, preset->model, preset->model, c->model.name);
    return DPT_OK;
}

static int64_t gcd(int64_t a, int64_t b)
{
    return b == 0 ? a : gcd(b, a % b);
}

static enum dpt_status check_heads(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    char multiples[DPT_CONFIG_NEAREST_BYTES], divisors[DPT_CONFIG_NEAREST_BYTES];
    /* This is Hugging Face's rule. It holds even if the config gives head_dim. */
    if (c->model.n_embd % c->model.n_head != 0) {
        dpt_config_nearest_multiples(c->model.n_embd, c->model.n_head, multiples);
        dpt_config_nearest_divisors(c->model.n_embd, c->model.n_head, divisors);
        return dpt_refuse_both(load, "model.n_embd", "model.n_head", err,
                               "model.n_embd (%d) is not a multiple of model.n_head (%d); nearest: "
                               "an n_embd of %s, or an n_head of %s",
                               c->model.n_embd, c->model.n_head, multiples, divisors);
    }
    if (is_llama(c) && c->model.n_head % c->model.n_kv_head != 0) {
        dpt_config_nearest_divisors(c->model.n_head, c->model.n_kv_head, divisors);
        return dpt_refuse_both(
            load, "model.n_kv_head", "model.n_head", err,
            "model.n_kv_head (%d%s) does not divide model.n_head (%d); nearest: %s",
            c->model.n_kv_head, dpt_config_given(load, "model.n_kv_head") ? "" : ", the preset's",
            c->model.n_head, divisors);
    }
    return DPT_OK;
}

/* A number of rows or columns of a matrix. */
struct row_size {
    const char *path;
    int size, step, most; /* a multiple of `step`, at most `most` */
    bool has_biases;
};

static enum dpt_status check_row_size(const struct dpt_config_load *load, struct row_size row,
                                      struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    const bool derived =
        !dpt_config_given(load, row.path) && strcmp(row.path, "model.head_size") == 0;
    const char *from = derived ? " = model.n_embd / model.n_head" : "";
    char multiples[DPT_CONFIG_NEAREST_BYTES];
    if (row.size > row.most)
        return dpt_refuse_both(load, row.path, "model.n_head", err,
                               "%s (%d%s) is more than %d; set model.n_head to at least %d, or %s",
                               row.path, row.size, from, row.most,
                               (c->model.n_embd + row.most - 1) / row.most, row.path);
    if (row.size % row.step == 0)
        return DPT_OK;
    dpt_config_nearest_multiples(row.size, row.step, multiples);
    return dpt_refuse_both(load, row.path, "model.n_embd", err,
                           "%s (%d%s) is not a multiple of %d, as %s need; nearest: %s", row.path,
                           row.size, from, row.step,
                           row.has_biases ? "biases" : "tensors that lie together", multiples);
}

/* Checks sizes of rows and columns. A product reads neighbouring matrices as one matrix, so
 * matrices and their biases must be contiguous. Rotary embeddings rotate pairs of elements. */
static enum dpt_status check_row_sizes(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config_model *m = &load->config.model;
    const int line = (int)(LINE / gcd(LINE, m->n_embd)), pairs = line % 2 == 0 ? line : 2;
    const struct row_size head = {.path = "model.head_size",
                                  .size = m->head_size,
                                  .step = m->attention_bias ? LINE : pairs,
                                  .most = HEAD_SIZE_MAX,
                                  .has_biases = m->attention_bias};
    const struct row_size inner = {.path = "model.n_inner",
                                   .size = m->n_inner,
                                   .step = m->mlp_bias ? LINE : line,
                                   .most = N_INNER_MAX,
                                   .has_biases = m->mlp_bias};
    DPT_TRY(check_row_size(load, head, err));
    return check_row_size(load, inner, err);
}

static enum dpt_status check_rope(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (c->model.rope_scaling == DPT_ROPE_SCALING_NONE)
        return DPT_OK;
    if (!(c->model.rope_low_freq_factor < c->model.rope_high_freq_factor))
        return dpt_refuse_both(
            load, "model.rope_low_freq_factor", "model.rope_high_freq_factor", err,
            "model.rope_low_freq_factor (%g) is not below model.rope_high_freq_factor (%g)",
            c->model.rope_low_freq_factor, c->model.rope_high_freq_factor);
    return DPT_OK;
}

enum dpt_status dpt_config_check_model(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    DPT_TRY(check_preset(load, err));
    if (!is_llama(c))
        DPT_TRY(check_keys(load, of_llama, COUNT(of_llama), "llama", err));
    if (is_resnet(c)) {
        DPT_TRY(check_keys(load, of_texts, COUNT(of_texts), "gpt2 or llama", err));
        return dpt_config_check_resnet(load, err);
    }
    DPT_TRY(check_keys(load, of_resnet, COUNT(of_resnet), "resnet", err));
    DPT_TRY(check_heads(load, err));
    if (is_llama(c)) {
        DPT_TRY(check_row_sizes(load, err));
        DPT_TRY(check_rope(load, err));
    }
    if (c->model.vocab == DPT_AUTO)
        return dpt_refuse_both(
            load, "model.vocab", "data.tokenizer", err,
            "model.vocab: auto is not known with data.tokenizer: hf; set it to the number of that "
            "tokenizer's tokens, which dpt-data encode prints, or more");
    if (is_byte_text(c) && c->model.vocab < DPT_VOCAB_BYTES)
        return dpt_refuse_key(load, "model.vocab", err,
                              "%d is too small for byte tokens; at least %d, or auto",
                              c->model.vocab, DPT_VOCAB_BYTES);
    if (c->train.seq_len > c->model.context)
        return dpt_refuse_both(
            load, "train.seq_len", "model.context", err,
            "train.seq_len (%d) is longer than model.context (%d); set it to at most that",
            c->train.seq_len, c->model.context);
    return DPT_OK;
}
