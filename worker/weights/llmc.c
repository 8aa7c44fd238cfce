/* llm.c's model file, mapped (llmc.h). */
#include "worker/weights/llmc.h"

#include "base/cursor.h"
#include "kernels/half.h"
#include "worker/weights/foreign_tensor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEADER_BYTES = 1024,
    MAGIC = 20240326,
    VERSION_FP32 = 3,
    VERSION_BF16 = 5,
    /* Far above any model, and small enough that no size below overflows. */
    ROWS_MAX = 1 << 24,
    WIDTH_MAX = 1 << 16,
    LAYERS_MAX = 4096
};

struct dpt_llmc {
    const char *path;
    const uint8_t *map;
    size_t map_bytes;
    int64_t width; /* bytes of an element */
    int64_t context, vocab, layers, c, padded;
};

/* The kinds of tensors in the file's order, with the size of one layer's tensor. */
struct kind {
    const char *name; /* after "transformer." and, for a kind with layers, "h.N." */
    bool of_layer, is_matrix;
    int64_t in, out; /* multiples of the model's width; a vector has `out` only */
};

static const struct kind kinds[] = {
    {"wte.weight", false, false, 0, 0},       {"wpe.weight", false, false, 0, 0},
    {"ln_1.weight", true, false, 1, 1},       {"ln_1.bias", true, false, 1, 1},
    {"attn.c_attn.weight", true, true, 1, 3}, {"attn.c_attn.bias", true, false, 1, 3},
    {"attn.c_proj.weight", true, true, 1, 1}, {"attn.c_proj.bias", true, false, 1, 1},
    {"ln_2.weight", true, false, 1, 1},       {"ln_2.bias", true, false, 1, 1},
    {"mlp.c_fc.weight", true, true, 1, 4},    {"mlp.c_fc.bias", true, false, 1, 4},
    {"mlp.c_proj.weight", true, true, 4, 1},  {"mlp.c_proj.bias", true, false, 1, 1},
    {"ln_f.weight", false, false, 1, 1},      {"ln_f.bias", false, false, 1, 1},
};
enum { KINDS = sizeof kinds / sizeof kinds[0], WTE = 0, WPE = 1 };

/* Elements of one layer's tensor. */
static int64_t numel_of(const struct dpt_llmc *f, int kind)
{
    if (kind == WTE)
        return f->padded * f->c;
    if (kind == WPE)
        return f->context * f->c;
    const int64_t out = kinds[kind].out * f->c;
    return kinds[kind].is_matrix ? kinds[kind].in * f->c * out : out;
}

static int64_t layers_of(const struct dpt_llmc *f, int kind)
{
    return kinds[kind].of_layer ? f->layers : 1;
}

static enum dpt_status fail_not_llmc(const struct dpt_llmc *f, struct dpt_err *err)
{
    return dpt_fail(err, DPT_ECONFIG, "'%s' is no model file of llm.c's GPT-2", f->path);
}

/* Reads the sizes that follow magic and version in the header. */
static enum dpt_status read_sizes(struct dpt_llmc *f, struct dpt_reader *header,
                                  struct dpt_config_sizes *ret, struct dpt_err *err)
{
    static const struct {
        const char *name, *key;
        int64_t max;
    } numbers[] = {{"context", "model.context", ROWS_MAX},
                   {"vocabulary", "model.vocab", ROWS_MAX},
                   {"number of layers", "model.n_layer", LAYERS_MAX},
                   {"number of heads", "model.n_head", WIDTH_MAX},
                   {"width", "model.n_embd", WIDTH_MAX},
                   {"padded vocabulary", NULL, ROWS_MAX}};
    enum { NUMBERS = sizeof numbers / sizeof numbers[0] };
    int64_t size[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) {
        size[i] = dpt_reader_u32(header);
        if (size[i] < 1 || size[i] > numbers[i].max)
            return dpt_fail(err, DPT_ECONFIG, "'%s': its %s is %lld", f->path, numbers[i].name,
                            (long long)size[i]);
        if (!numbers[i].key)
            continue;
        struct dpt_config_size *at = &ret->key[ret->n++];
        *at = (struct dpt_config_size){.key = numbers[i].key, .name = numbers[i].name};
        (void)snprintf(at->value, sizeof at->value, "%lld", (long long)size[i]);
    }
    (void)snprintf(ret->source, sizeof ret->source, "'%s'", f->path);
    ret->binding = true;
    f->context = size[0];
    f->vocab = size[1];
    f->layers = size[2];
    f->c = size[4];
    f->padded = size[5];
    if (f->padded < f->vocab)
        return dpt_fail(err, DPT_ECONFIG, "'%s': a vocabulary of %lld is padded to %lld", f->path,
                        (long long)f->vocab, (long long)f->padded);
    return DPT_OK;
}

static enum dpt_status check_length(const struct dpt_llmc *f, struct dpt_err *err)
{
    int64_t elements = 0;
    for (int k = 0; k < KINDS; k++)
        elements += numel_of(f, k) * layers_of(f, k);
    const int64_t bytes = HEADER_BYTES + elements * f->width;
    if (bytes != (int64_t)f->map_bytes)
        return dpt_fail(err, DPT_ECONFIG,
                        "'%s' has %zu bytes, by the sizes in its header it has %lld: it is cut "
                        "off, or another file",
                        f->path, f->map_bytes, (long long)bytes);
    return DPT_OK;
}

static enum dpt_status read_header(struct dpt_llmc *f, struct dpt_config_sizes *ret_sizes,
                                   struct dpt_err *err)
{
    struct dpt_reader header;
    dpt_reader_init(&header, f->map, HEADER_BYTES);
    if (dpt_reader_u32(&header) != MAGIC)
        return fail_not_llmc(f, err);
    const uint32_t version = dpt_reader_u32(&header);
    if (version != VERSION_FP32 && version != VERSION_BF16)
        return dpt_fail(err, DPT_ECONFIG,
                        "'%s' is a model file of llm.c's version %u; 3 and 5 are read", f->path,
                        version);
    f->width = version == VERSION_FP32 ? 4 : 2;
    DPT_TRY(read_sizes(f, &header, ret_sizes, err));
    return check_length(f, err);
}

static enum dpt_status map_file(struct dpt_llmc *f, struct dpt_err *err)
{
    struct stat st;
    const int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", f->path);
    const bool fits = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= HEADER_BYTES;
    void *map = fits ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    const int saved_errno = errno;
    (void)close(fd); /* opened for reading */
    if (!fits)
        return fail_not_llmc(f, err);
    if (map == MAP_FAILED)
        return dpt_fail_errno(err, saved_errno, "map '%s'", f->path);
    f->map = map;
    f->map_bytes = (size_t)st.st_size;
    return DPT_OK;
}

enum dpt_status dpt_llmc_open(const char *path, struct dpt_llmc **ret,
                              struct dpt_config_sizes *ret_sizes, struct dpt_err *err)
{
    struct dpt_config_sizes sizes = {.n = 0};
    struct dpt_llmc *f = calloc(1, sizeof *f);
    if (!f)
        return dpt_fail_nomem(err, "open '%s'", path);
    f->path = path;
    enum dpt_status status = map_file(f, err);
    if (status == DPT_OK)
        status = read_header(f, &sizes, err);
    if (status != DPT_OK) {
        dpt_llmc_close(&f);
        return status;
    }
    *ret = f;
    *ret_sizes = sizes;
    return DPT_OK;
}

void dpt_llmc_close(struct dpt_llmc **llmc)
{
    struct dpt_llmc *f = *llmc;
    if (!f)
        return;
    if (f->map)
        (void)munmap((void *)(uintptr_t)f->map, f->map_bytes); /* fails only for wrong arguments */
    free(f);
    *llmc = NULL;
}

/* The kind of a tensor; *ret_at is its first element in the file. */
static int kind_of(const struct dpt_llmc *f, const char *name, int64_t *ret_at)
{
    int layer = 0, skip = 0;
    int64_t at = 0;
    const char *rest = name + strlen("transformer.");
    if (sscanf(rest, "h.%d.%n", &layer, &skip) == 1 && skip > 0)
        rest += skip;
    int kind = 0;
    while (kind < KINDS && strcmp(kinds[kind].name, rest) != 0) {
        at += numel_of(f, kind) * layers_of(f, kind);
        kind++;
    }
    DPT_ASSERT(kind < KINDS && layer < layers_of(f, kind)); /* both tables are GPT-2's */
    *ret_at = at + layer * numel_of(f, kind);
    return kind;
}

static float value_at(const struct dpt_llmc *f, int64_t element)
{
    const uint8_t *at = f->map + HEADER_BYTES + element * f->width;
    if (f->width == 4) {
        float value;
        memcpy(&value, at, sizeof value);
        return value;
    }
    return dpt_f32_of_bf16((uint16_t)(at[0] | at[1] << 8));
}

enum dpt_status dpt_llmc_read(const struct dpt_llmc *llmc, const struct dpt_model *model, int param,
                              struct dpt_span span, float *ret, struct dpt_err *err)
{
    const struct dpt_param *p = dpt_model_param(model, param);
    const int64_t first = span.first, end = span.end;
    int64_t at;
    if (kinds[kind_of(llmc, p->name, &at)].is_matrix) {
        /* The inner loop runs along the file's rows, which are our columns. */
        const int64_t in = p->dim[0], out = p->dim[1];
        for (int64_t o = 0; o < out; o++)
            for (int64_t i = first / out; i * out < end; i++)
                if (i * out + o >= first && i * out + o < end)
                    ret[i * out + o - first] = value_at(llmc, at + o * in + i);
    } else {
        for (int64_t i = first; i < end; i++)
            ret[i - first] = value_at(llmc, at + i);
    }
    return dpt_foreign_tensor_check_finite(llmc->path, p->name, first, end, ret, err);
}
