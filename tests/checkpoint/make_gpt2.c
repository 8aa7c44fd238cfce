/* Writes a checkpoint of a small GPT-2 with all of its tensors, for test_pretrained.py:
 * make_gpt2 DIR STEP WRITERS [TENSOR|flat]. Element i of tensor t is t + i / 4096 (weights), its
 * negative (first moments), its square (second moments): exact in 32 bits. Element 5 of tensor
 * TENSOR is 0.5 more; flat: the positions are one dimension, and the last norm has no bias. */
#include "checkpoint/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    LAYERS = 2,
    EMBED = 24,
    VOCAB = 300,
    CONTEXT = 16,
    POSITIONS = 1,
    TENSORS_MAX = 64,
    NAME_BYTES = 64
};

static const char config_json[] =
    "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\", \"n_layer\": 2, "
    "\"n_head\": 3, \"n_embd\": 24, \"n_positions\": 16, \"vocab_size\": 300, "
    "\"activation_function\": \"gelu_new\", \"tie_word_embeddings\": true, "
    "\"torch_dtype\": \"float32\", \"bos_token_id\": 0, \"eos_token_id\": 0}\n";

static char names[TENSORS_MAX][NAME_BYTES];
static struct dpt_checkpoint_tensor tensors[TENSORS_MAX];
static int n_tensors;

static int add_tensor(const char *prefix, const char *name, int64_t rows, int64_t columns)
{
    struct dpt_checkpoint_tensor *tensor = &tensors[n_tensors];
    const size_t numel = (size_t)(rows * (columns ? columns : 1));
    (void)snprintf(names[n_tensors], NAME_BYTES, "%s%s", prefix, name);
    *tensor = (struct dpt_checkpoint_tensor){.name = names[n_tensors],
                                             .ndim = columns ? 2 : 1,
                                             .dim = {rows, columns},
                                             .param = malloc(numel * sizeof(float)),
                                             .m = malloc(numel * sizeof(float)),
                                             .v = malloc(numel * sizeof(float))};
    if (!tensor->param || !tensor->m || !tensor->v)
        return 1;
    for (size_t i = 0; i < numel; i++) {
        const float value = (float)n_tensors + (float)i / 4096;
        tensor->param[i] = value;
        tensor->m[i] = -value;
        tensor->v[i] = value * value;
    }
    n_tensors++;
    return 0;
}

static int add_layer(int layer)
{
    char prefix[NAME_BYTES / 2];
    (void)snprintf(prefix, sizeof prefix, "transformer.h.%d.", layer);
    return add_tensor(prefix, "ln_1.weight", EMBED, 0) | add_tensor(prefix, "ln_1.bias", EMBED, 0) |
           add_tensor(prefix, "attn.c_attn.weight", EMBED, 3 * EMBED) |
           add_tensor(prefix, "attn.c_attn.bias", 3 * EMBED, 0) |
           add_tensor(prefix, "attn.c_proj.weight", EMBED, EMBED) |
           add_tensor(prefix, "attn.c_proj.bias", EMBED, 0) |
           add_tensor(prefix, "ln_2.weight", EMBED, 0) | add_tensor(prefix, "ln_2.bias", EMBED, 0) |
           add_tensor(prefix, "mlp.c_fc.weight", EMBED, 4 * EMBED) |
           add_tensor(prefix, "mlp.c_fc.bias", 4 * EMBED, 0) |
           add_tensor(prefix, "mlp.c_proj.weight", 4 * EMBED, EMBED) |
           add_tensor(prefix, "mlp.c_proj.bias", EMBED, 0);
}

/* A small number without sign; -1 for anything else. */
static int parse_number(const char *text)
{
    char *end;
    const long value = strtol(text, &end, 10);
    return *text && !*end && value >= 0 && value < 100000 ? (int)value : -1;
}

static enum dpt_status write_all(struct dpt_checkpoint_spec *spec, struct dpt_err *err)
{
    struct dpt_checkpoint_piece pieces[TENSORS_MAX];
    for (int writer = spec->n_writers - 1; writer >= 0; writer--) {
        spec->writer = writer;
        dpt_checkpoint_whole_tensors(spec->tensors, spec->n_tensors, pieces);
        spec->pieces = pieces;
        spec->n_pieces =
            dpt_checkpoint_divide(pieces, spec->n_tensors, writer, spec->n_writers, pieces);
        DPT_TRY(dpt_checkpoint_write_part(spec, err));
    }
    DPT_TRY(dpt_checkpoint_collect(spec, 1000, err));
    return dpt_checkpoint_commit(spec, err);
}

int main(int argc, char **argv)
{
    if (argc != 4 && argc != 5)
        return 2;
    int failed = add_tensor("transformer.", "wte.weight", VOCAB, EMBED) |
                 add_tensor("transformer.", "wpe.weight", CONTEXT, EMBED);
    for (int layer = 0; layer < LAYERS; layer++)
        failed |= add_layer(layer);
    failed |= add_tensor("transformer.", "ln_f.weight", EMBED, 0);
    failed |= add_tensor("transformer.", "ln_f.bias", EMBED, 0);
    int n_made = n_tensors;
    const int changed = argc == 5 ? parse_number(argv[4]) : -1;
    if (failed || changed >= n_tensors)
        return 1;
    if (changed >= 0) {
        tensors[changed].param[5] += 0.5f;
    } else if (argc == 5) {
        tensors[POSITIONS].ndim = 1;
        tensors[POSITIONS].dim[0] *= tensors[POSITIONS].dim[1];
        n_made = n_tensors - 1;
    }
    char hex[DPT_HASH_HEX_BYTES];
    dpt_hash128_hex(dpt_weights_hash(tensors, n_made), hex);
    struct dpt_checkpoint_spec spec = {.dir = argv[1],
                                       .n_writers = parse_number(argv[3]),
                                       .generation = 1,
                                       .attempt = "test",
                                       .tensors = tensors,
                                       .n_tensors = n_made,
                                       .moments = true,
                                       .hf_config_json = config_json,
                                       .state = {.step = parse_number(argv[2]),
                                                 .samples = 77,
                                                 .seed = 42,
                                                 .config_yaml = "run: demo\n",
                                                 .history_json = "[]"},
                                       .keep = 3};
    struct dpt_err err;
    if (write_all(&spec, &err) != DPT_OK) {
        (void)fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    (void)printf("%s\n", hex);
    for (int i = 0; i < n_tensors; i++) {
        free(tensors[i].param);
        free(tensors[i].m);
        free(tensors[i].v);
    }
    return 0;
}
