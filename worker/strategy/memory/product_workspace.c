/* The memory of products (memory_formula.h): packed forms, and the workspace of ops, which fits the
 * op that needs most. The formulas follow kernels/cpu/gemm.c, head.c, conv.c, conv_weights.c and
 * batchnorm.c, which cut work by the same sizes (kernels/cpu_sizes.h). */
#include "worker/strategy/memory/memory_formula.h"

#include "base/extremes.h"
#include "base/sample.h"
#include "kernels/cpu_sizes.h"

enum {
    F32 = 4,
    PACK_COLUMNS = 64,     /* oneDNN rounds a tile's columns up to this */
    PACK_ROW_BYTES = 64,   /* oneDNN rounds a tile's rows up to this many bytes */
    TILE_BYTES = 128 << 10 /* about: a tile and a thread's other memory for it */
};

static int64_t ceil_div(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

static int64_t workspace_round_up(int64_t n, int64_t to)
{
    return ceil_div(n, to) * to;
}

/* Bytes of a product's right-hand operand of k rows and n columns. */
static int64_t packed_operand(int64_t k, int64_t n, int64_t bytes)
{
    const int64_t columns = workspace_round_up(dpt_min_i64(n, DPT_TILE_N), PACK_COLUMNS);
    return ceil_div(n, DPT_TILE_N) * columns * workspace_round_up(k, PACK_ROW_BYTES / bytes) *
           bytes;
}

/* Along one side of a kernel, the taps that pixels of class `class` meet (kernels/cpu/conv.c). */
static int64_t taps_met(const struct dpt_pack *pack, int64_t class)
{
    const int64_t first = (class + (pack->kernel - 1) / 2) % pack->stride;
    return first < pack->kernel ? ceil_div(pack->kernel - first, pack->stride) : 0;
}

/* Bytes of the operand of y, and of one operand for each class of dx: the taps that the class
 * meets, of all output channels. */
static int64_t packed_convolution(const struct dpt_pack *pack, int64_t bytes)
{
    const int64_t in = pack->cols / (pack->kernel * pack->kernel), out = pack->rows;
    int64_t all = packed_operand(pack->cols, out, bytes);
    for (int64_t y = 0; y < pack->stride; y++)
        for (int64_t x = 0; x < pack->stride; x++)
            all += packed_operand(taps_met(pack, y) * taps_met(pack, x) * out, in, bytes);
    return all;
}

/* The model whose matrices the products read. With adapters it is the base model: the adapters'
 * matrices are small beside it. */
static const struct dpt_model *multiplied_model(const struct dpt_model *model)
{
    const struct dpt_model *base = dpt_model_base(model);
    return base ? base : model;
}

int64_t dpt_memory_packed(const struct dpt_model *model, int operand_bytes)
{
    const struct dpt_model *of = multiplied_model(model);
    /* The base's trained parameter; -1: none. */
    const int trained = of == model ? -1 : dpt_model_score(of);
    struct dpt_pack pack;
    int64_t bytes = 0;
    for (int i = 0; i < dpt_model_n_params(of); i++) {
        if (i == trained || !dpt_model_packing(of, i, &pack))
            continue;
        if (pack.kind == DPT_PACK_CONV) {
            bytes += packed_convolution(&pack, operand_bytes);
            continue;
        }
        const int64_t block = pack.kind == DPT_PACK_HEAD ? DPT_HEAD_COLUMNS : pack.rows;
        for (int64_t at = 0; at < pack.rows; at += block) {
            const int64_t rows = dpt_min_i64(block, pack.rows - at);
            bytes += packed_operand(rows, pack.cols, operand_bytes) +
                     packed_operand(pack.cols, rows, operand_bytes);
        }
    }
    return bytes;
}

/* The largest product of each kind of a model. */
struct products {
    int64_t weights;     /* elements of a matrix of a linear layer */
    int64_t sides;       /* rows and columns of that matrix together */
    int64_t depth;       /* the longer of them */
    int64_t head, width; /* elements of a head's matrix that are multiplied at once; its columns */
};

static struct products products_of(const struct dpt_model *model)
{
    struct products p = {0};
    struct dpt_pack pack;
    for (int i = 0; i < dpt_model_n_params(model); i++) {
        if (!dpt_model_packing(model, i, &pack) || pack.kind == DPT_PACK_CONV)
            continue;
        if (pack.kind == DPT_PACK_HEAD) {
            p.width = pack.cols;
            p.head = pack.cols * dpt_min_i64(pack.rows, DPT_HEAD_COLUMNS);
            p.depth =
                dpt_max_i64(p.depth, pack.rows < DPT_HEAD_COLUMNS ? pack.cols : DPT_HEAD_COLUMNS);
            continue;
        }
        p.weights = dpt_max_i64(p.weights, pack.rows * pack.cols);
        p.sides = dpt_max_i64(p.sides, pack.rows + pack.cols);
        p.depth = dpt_max_i64(p.depth, dpt_max_i64(pack.rows, pack.cols));
    }
    return p;
}

/* Bytes of an op's own memory, and of the memory of the products that the op runs. */
struct working {
    int64_t op, product;
};

static struct working working_of_heads(const struct dpt_memory_spec *spec, bool head_meets)
{
    const struct dpt_config *config = spec->config;
    const struct dpt_model *model = spec->model;
    const struct products p = products_of(multiplied_model(model));
    const struct dpt_sample_form form = dpt_sample_form(config);
    const int64_t w = (int64_t)dpt_dtype_bytes(dpt_model_dtype(model));
    const int64_t labels = dpt_model_labels(model), v = labels ? labels : dpt_model_vocab(model),
                  bt = config->train.micro_batch * form.positions,
                  losses = config->train.micro_batch * form.losses;
    const int64_t most_rows = w == F32 ? DPT_HEAD_ROWS_F32 : DPT_HEAD_ROWS_HALF,
                  rows = dpt_min_i64(losses, most_rows);
    const int64_t logits = rows * v * F32 + (w == F32 ? 0 : rows * (v * w + p.width * F32));
    /* If the head's gradient is added to an existing gradient, it is first summed in separate
     * memory. A tied head's gradient has a separate buffer, unless the order is open. A frozen head
     * has no gradient. */
    const bool meets = head_meets && !dpt_model_base(model);
    const int64_t apart = meets && losses > most_rows ? v * p.width * F32 : 0;
    const int64_t operands = dpt_max_i64(dpt_max_i64(p.weights, p.sides * bt), p.head),
                  of_thread = DPT_TILE_N * p.depth * w + TILE_BYTES;
    return (struct working){logits + apart, operands * w + (int64_t)spec->threads * of_thread};
}

/* The op memory of a convolution with a window of k elements is the largest of three needs.
 * Forward: the weight in the dtype of the product. Gradient of the weight: dy, the sums of groups
 * of chunks, and for each thread a tile of windows in rows and packed. Batch norm after the
 * convolution: two sums for each channel and chunk. */
static int64_t op_of_convolution(const struct dpt_pack *pack, int64_t pixels, int64_t o,
                                 int64_t threads)
{
    const int64_t k = pack->cols, out = pack->rows, chunks = ceil_div(pixels, DPT_CONV_PIXELS),
                  items = ceil_div(DPT_CONV_ITEMS, ceil_div(k, DPT_TILE_N)),
                  groups = ceil_div(chunks, ceil_div(chunks, items));
    const int64_t gradient =
        workspace_round_up(pixels * out * o, PACK_ROW_BYTES) + groups * out * k * F32;
    const int64_t of_thread = TILE_BYTES + DPT_CONV_PIXELS * DPT_TILE_N * (F32 + o);
    const int64_t norm = (ceil_div(pixels, DPT_BATCHNORM_ROWS) + 1) * 2 * out * F32;
    return dpt_max_i64(dpt_max_i64(k * out * o, gradient + threads * of_thread), norm);
}

/* The right-hand operand, and for each thread a tile of windows and a tile of the operand in rows.
 * With a 1 x 1 kernel windows are pixels, which are widened in tiles that all threads share. */
static int64_t product_of_convolution(const struct dpt_pack *pack, int64_t pixels, int64_t o,
                                      int64_t threads)
{
    const int64_t in = pack->cols / (pack->kernel * pack->kernel), out = pack->rows;
    int64_t k = pack->cols, operand = packed_operand(k, out, o);
    for (int64_t y = 0; y < pack->stride; y++)
        for (int64_t x = 0; x < pack->stride; x++) {
            const int64_t depth = taps_met(pack, y) * taps_met(pack, x) * out;
            k = dpt_max_i64(k, depth);
            operand = dpt_max_i64(operand, packed_operand(depth, in, o));
        }
    const int64_t shared =
        pack->kernel == 1
            ? dpt_min_i64(pixels, DPT_PACK_AHEAD_TILES * DPT_TILE_M) * dpt_max_i64(in, out) * o
            : 0;
    return operand + shared + threads * (TILE_BYTES + (DPT_TILE_M + DPT_TILE_N) * k * o);
}

static struct working working_of_convolutions(const struct dpt_memory_spec *spec)
{
    const struct dpt_model *model = spec->model;
    /* Without packed weights the dtype of the products is not known; f32 is the largest. */
    const int64_t o = spec->packed_operand > 0 ? spec->packed_operand : F32;
    struct working w = {0};
    for (int i = 0; i < dpt_model_n_params(model); i++) {
        struct dpt_windows of;
        struct dpt_pack pack;
        if (!dpt_model_packing(model, i, &pack) ||
            !dpt_model_windows(model, i, spec->config->train.micro_batch, &of))
            continue;
        const int64_t pixels =
            of.b * dpt_windows_along(of.h, of.stride) * dpt_windows_along(of.w, of.stride);
        w.op = dpt_max_i64(w.op, op_of_convolution(&pack, pixels, o, spec->threads));
        w.product = dpt_max_i64(w.product, product_of_convolution(&pack, pixels, o, spec->threads));
    }
    return w;
}

int64_t dpt_memory_workspace(const struct dpt_memory_spec *spec, bool head_meets)
{
    const struct working heads = working_of_heads(spec, head_meets),
                         convolutions = working_of_convolutions(spec);
    return dpt_max_i64(heads.op, convolutions.op) +
           dpt_max_i64(heads.product, convolutions.product);
}
