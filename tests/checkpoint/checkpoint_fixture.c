/* The toy model (checkpoint_fixture.h). */
#include "tests/checkpoint/checkpoint_fixture.h"

#include "base/fs.h"
#include "tests/tmp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char root[128];

static void model_add(struct model *model, const char *name, int64_t rows, int64_t columns)
{
    struct dpt_checkpoint_tensor *tensor = &model->tensors[model->n++];
    *tensor = (struct dpt_checkpoint_tensor){.name = name, .ndim = columns ? 2 : 1};
    tensor->dim[0] = rows;
    tensor->dim[1] = columns;
    size_t bytes = (size_t)(rows * (columns ? columns : 1)) * sizeof(float);
    tensor->param = malloc(bytes);
    tensor->m = malloc(bytes);
    tensor->v = malloc(bytes);
}

static int64_t numel(const struct dpt_checkpoint_tensor *tensor)
{
    return tensor->dim[0] * (tensor->ndim == 2 ? tensor->dim[1] : 1);
}

static void fill_values(float *to, int64_t n, uint32_t key)
{
    uint32_t x = key * 2654435761u + 1;
    for (int64_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        to[i] = (float)(int32_t)x * 0x1p-31f;
    }
}

void model_init(struct model *model, int64_t step, int wide)
{
    *model = (struct model){.n = 0};
    model_add(model, "transformer.wte.weight", 100 * wide, 33);
    model_add(model, "transformer.wpe.weight", 16, 33);
    model_add(model, "transformer.h.0.ln_1.weight", 33, 0);
    model_add(model, "transformer.h.0.attn.c_attn.weight", 33, 99);
    model_add(model, "transformer.h.0.attn.c_attn.bias", 99, 0);
    model_add(model, "transformer.h.1.ln_1.weight", 33, 0);
    model_add(model, "transformer.h.1.attn.c_attn.weight", 33, 99);
    model_add(model, "transformer.ln_f.weight", 33, 0);
    model_add(model, "transformer.ln_f.bias", 33, 0);
    for (int i = 0; i < model->n; i++) {
        const uint32_t key = (uint32_t)(step * 1000 + i * 3);
        fill_values(model->tensors[i].param, numel(&model->tensors[i]), key);
        fill_values(model->tensors[i].m, numel(&model->tensors[i]), key + 1);
        fill_values(model->tensors[i].v, numel(&model->tensors[i]), key + 2);
    }
    dpt_hash128_hex(dpt_weights_hash(model->tensors, model->n), model->hash);
}

void model_zero(struct model *model)
{
    for (int i = 0; i < model->n; i++) {
        const size_t bytes = (size_t)numel(&model->tensors[i]) * sizeof(float);
        memset(model->tensors[i].param, 0, bytes);
        memset(model->tensors[i].m, 0, bytes);
        memset(model->tensors[i].v, 0, bytes);
    }
}

void model_fini(struct model *model)
{
    for (int i = 0; i < model->n; i++) {
        free(model->tensors[i].param);
        free(model->tensors[i].m);
        free(model->tensors[i].v);
    }
    *model = (struct model){.n = 0};
}

bool model_equal(const struct model *a, const struct model *b)
{
    for (int i = 0; i < a->n; i++) {
        const size_t bytes = (size_t)numel(&a->tensors[i]) * sizeof(float);
        if (memcmp(a->tensors[i].param, b->tensors[i].param, bytes) != 0 ||
            memcmp(a->tensors[i].m, b->tensors[i].m, bytes) != 0 ||
            memcmp(a->tensors[i].v, b->tensors[i].v, bytes) != 0)
            return false;
    }
    return a->n == b->n;
}

struct dpt_checkpoint_spec model_spec(const struct model *model, const char *dir, int64_t step,
                                      int writer, int n_writers)
{
    int64_t bytes = 0;
    for (int i = 0; i < model->n; i++)
        bytes += numel(&model->tensors[i]) * (int64_t)sizeof(float);
    return (struct dpt_checkpoint_spec){
        .dir = dir,
        .writer = writer,
        .n_writers = n_writers,
        .generation = 7,
        .attempt = "a1",
        .tensors = model->tensors,
        .n_tensors = model->n,
        .moments = true,
        .file_bytes = (bytes + n_writers - 1) / n_writers,
        .hf_config_json = "{\"model_type\": \"gpt2\"}",
        .state = {.step = step,
                  .samples = step * 32,
                  .seed = UINT64_MAX - 41,
                  .config_yaml = "run: demo\nseed: 42\n",
                  .history_json = "[{\"generation\":1,\"cause\":\"start\"}]"},
        .keep = 2};
}

void model_share(struct dpt_checkpoint_spec *spec,
                 struct dpt_checkpoint_piece pieces[MODEL_TENSORS_MAX])
{
    DPT_ASSERT(spec->n_tensors <= MODEL_TENSORS_MAX);
    dpt_checkpoint_whole_tensors(spec->tensors, spec->n_tensors, pieces);
    spec->pieces = pieces;
    spec->n_pieces =
        dpt_checkpoint_divide(pieces, spec->n_tensors, spec->writer, spec->n_writers, pieces);
}

enum dpt_status model_write_part(const struct dpt_checkpoint_spec *spec, struct dpt_err *err)
{
    struct dpt_checkpoint_spec part = *spec;
    struct dpt_checkpoint_piece pieces[MODEL_TENSORS_MAX];
    if (spec->writer >= 0 && spec->writer < spec->n_writers)
        model_share(&part, pieces);
    return dpt_checkpoint_write_part(&part, err);
}

enum dpt_status model_write_files(const struct model *model, const char *dir, int64_t step,
                                  int n_writers, int n_files, struct dpt_err *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_checkpoint_spec spec = model_spec(model, dir, step, 0, n_files);
    spec.n_writers = n_writers;
    for (int writer = n_writers - 1; status == DPT_OK && writer >= 0; writer--) {
        spec.writer = writer;
        status = model_write_part(&spec, err);
    }
    spec.writer = 0;
    if (status == DPT_OK)
        status = dpt_checkpoint_collect(&spec, 1000, err);
    if (status == DPT_OK)
        status = dpt_checkpoint_commit(&spec, err);
    if (status != DPT_OK)
        dpt_checkpoint_abandon(&spec);
    return status;
}

enum dpt_status model_write(const struct model *model, const char *dir, int64_t step, int n_writers,
                            struct dpt_err *err)
{
    return model_write_files(model, dir, step, n_writers, n_writers, err);
}

enum dpt_status model_check(const char *dir, int64_t step, int wide, struct dpt_err *err)
{
    struct model expected, read;
    struct dpt_checkpoint *checkpoint = NULL;
    model_init(&expected, step, wide);
    model_init(&read, step, wide);
    model_zero(&read);
    enum dpt_status status = dpt_checkpoint_open(dir, step, &checkpoint, err);
    if (status == DPT_OK)
        status = dpt_checkpoint_read(checkpoint, read.tensors, read.n, err);
    if (status == DPT_OK && !model_equal(&expected, &read))
        status = dpt_fail(err, DPT_ECORRUPT, "the values read are not those written");
    dpt_checkpoint_close(&checkpoint);
    model_fini(&read);
    model_fini(&expected);
    return status;
}

int make_root(void **state)
{
    (void)state;
    return test_make_dir(root, sizeof root, "checkpoint-test") ? 0 : -1;
}

int make_fast_root(void **state)
{
    if (access("/dev/shm", W_OK) != 0)
        return make_root(state);
    (void)snprintf(root, sizeof root, "/dev/shm/dpt-checkpoint-test-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

int remove_root(void **state)
{
    (void)state;
    return dpt_fs_remove_tree(root, NULL) == DPT_OK ? 0 : -1;
}

const char *in_root(const char *name)
{
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    (void)snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}
