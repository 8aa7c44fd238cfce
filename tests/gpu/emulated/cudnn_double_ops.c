/* The operations of a cuDNN graph, one after another, in doubles; between operations values are
 * rounded to the tensor's type. */
#include "kernels/half.h"
#include "tests/gpu/emulated/cudnn_double.h"

#include <math.h>
#include <string.h>

enum { RANK = 4 };

/* ---- tensors and their values ---- */

struct values {
    const struct descriptor *tensor;
    const int64_t *dims, *strides;
    cudnnDataType_t type;
    int64_t n;
    double *v; /* dense, in the order of the dimensions */
};

struct run {
    struct values known[64];
    int n;
    const struct descriptor *pack;
};

static double round_to_type(cudnnDataType_t type, double x)
{
    switch (type) {
    case CUDNN_DATA_BFLOAT16:
        return (double)dpt_f32_of_bf16(dpt_bf16_of_f32((float)x));
    case CUDNN_DATA_HALF:
        return (double)dpt_f32_of_f16(dpt_f16_of_f32((float)x));
    default:
        return (double)(float)x;
    }
}

static void *memory_of(const struct run *run, const struct descriptor *tensor)
{
    const int64_t *ids = double_numbers(run->pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    void *const *pointers = double_get(run->pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    for (int64_t i = 0; i < run->pack->of[CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS].count; i++)
        if (ids[i] == *double_numbers(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID))
            return pointers[i];
    MUST(!"a tensor that was given");
    return NULL;
}

/* The offset of element i, counted in the order of the dimensions. */
static int64_t place_of_element(const struct values *x, int64_t i)
{
    int64_t offset = 0;
    for (int axis = RANK - 1; axis >= 0; axis--) {
        offset += i % x->dims[axis] * x->strides[axis];
        i /= x->dims[axis];
    }
    return offset;
}

static double load_element(cudnnDataType_t type, const void *p, int64_t i)
{
    return type == CUDNN_DATA_FLOAT      ? (double)((const float *)p)[i]
           : type == CUDNN_DATA_BFLOAT16 ? (double)dpt_f32_of_bf16(((const uint16_t *)p)[i])
                                         : (double)dpt_f32_of_f16(((const uint16_t *)p)[i]);
}

static void store(cudnnDataType_t type, void *p, int64_t i, double x)
{
    if (type == CUDNN_DATA_FLOAT)
        ((float *)p)[i] = (float)x;
    else
        ((uint16_t *)p)[i] =
            type == CUDNN_DATA_BFLOAT16 ? dpt_bf16_of_f32((float)x) : dpt_f16_of_f32((float)x);
}

static struct values *new_values(struct run *run, const struct descriptor *tensor)
{
    MUST(run->n < 64);
    struct values *x = &run->known[run->n++];
    *x =
        (struct values){.tensor = tensor,
                        .dims = double_numbers(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS),
                        .strides = double_numbers(tensor, CUDNN_ATTR_TENSOR_STRIDES),
                        .type = (cudnnDataType_t)double_number(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE),
                        .n = 1};
    for (int axis = 0; axis < RANK; axis++)
        x->n *= x->dims[axis];
    x->v = malloc((size_t)x->n * sizeof *x->v);
    MUST(x->v);
    return x;
}

static struct values *find_values(struct run *run, const struct descriptor *tensor)
{
    for (int i = 0; i < run->n; i++)
        if (run->known[i].tensor == tensor)
            return &run->known[i];
    return NULL;
}

/* An input of an operation: the result of an earlier one, or a tensor in memory. */
static struct values *input(struct run *run, const struct descriptor *op,
                            cudnnBackendAttributeName_t name)
{
    const struct descriptor *tensor = double_child(op, name);
    struct values *x = find_values(run, tensor);
    if (x)
        return x;
    MUST(!double_flag(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL)); /* operations are in order */
    const void *memory = memory_of(run, tensor);
    x = new_values(run, tensor);
    for (int64_t i = 0; i < x->n; i++)
        x->v[i] = load_element(x->type, memory, place_of_element(x, i));
    return x;
}

static struct values *output(struct run *run, const struct descriptor *op,
                             cudnnBackendAttributeName_t name)
{
    MUST(!find_values(run, double_child(op, name)));
    return new_values(run, double_child(op, name));
}

static void round_values(const struct run *run, struct values *y)
{
    for (int64_t i = 0; i < y->n; i++)
        y->v[i] = round_to_type(y->type, y->v[i]);
    if (double_flag(y->tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL))
        return;
    void *memory = memory_of(run, y->tensor);
    for (int64_t i = 0; i < y->n; i++)
        store(y->type, memory, place_of_element(y, i), y->v[i]);
}

/* Element of x that meets element i of y; dimensions of 1 meet all. */
static double meets(const struct values *x, const struct values *y, int64_t i)
{
    int64_t at = 0, step = 1;
    for (int axis = RANK - 1; axis >= 0; axis--) {
        const int64_t index = i % y->dims[axis];
        i /= y->dims[axis];
        MUST(x->dims[axis] == y->dims[axis] || x->dims[axis] == 1);
        at += (x->dims[axis] == 1 ? 0 : index) * step;
        step *= x->dims[axis];
    }
    return x->v[at];
}

/* ---- operations ---- */

static void matmul(struct run *run, const struct descriptor *op)
{
    const struct values *a = input(run, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC),
                        *b = input(run, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
    struct values *c = output(run, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    const int64_t m = a->dims[2], k = a->dims[3], n = b->dims[3], heads = a->dims[1];
    MUST(b->dims[2] == k && c->dims[2] == m && c->dims[3] == n && a->dims[0] == b->dims[0] &&
         heads % b->dims[1] == 0 && c->dims[0] == a->dims[0] && c->dims[1] == heads);
    const int64_t group = heads / b->dims[1]; /* of heads of a that meet one of b */
    for (int64_t i = 0; i < a->dims[0] * heads * m * n; i++) {
        const int64_t batch = i / (m * n), row = i / n % m, col = i % n;
        double sum = 0;
        for (int64_t j = 0; j < k; j++)
            sum += a->v[(batch * m + row) * k + j] * b->v[(batch / group * k + j) * n + col];
        c->v[i] = sum;
    }
    round_values(run, c);
}

static double on_element(cudnnPointwiseMode_t mode, double x, double b, double t)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_EXP:
        return exp(x);
    case CUDNN_POINTWISE_LOG:
        return log(x);
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT:
        return t != 0 ? x : b;
    case CUDNN_POINTWISE_GEN_INDEX:
        break;
    }
    return NAN;
}

static void pointwise(struct run *run, const struct descriptor *op)
{
    const struct descriptor *kind = double_child(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const cudnnPointwiseMode_t mode =
        (cudnnPointwiseMode_t)double_number(kind, CUDNN_ATTR_POINTWISE_MODE);
    const struct values *x = input(run, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC), *b = NULL,
                        *t = NULL;
    if (op->of[CUDNN_ATTR_OPERATION_POINTWISE_BDESC].count > 0)
        b = input(run, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    if (op->of[CUDNN_ATTR_OPERATION_POINTWISE_TDESC].count > 0)
        t = input(run, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    struct values *y = output(run, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    for (int64_t i = 0; i < y->n; i++) {
        if (mode == CUDNN_POINTWISE_GEN_INDEX) {
            int64_t index = i;
            const int64_t axis = *double_numbers(kind, CUDNN_ATTR_POINTWISE_AXIS);
            for (int64_t inner = RANK - 1; inner > axis; inner--)
                index /= y->dims[inner];
            y->v[i] = (double)(index % y->dims[axis]);
            continue;
        }
        y->v[i] = on_element(mode, meets(x, y, i), b ? meets(b, y, i) : 0, t ? meets(t, y, i) : 0);
    }
    round_values(run, y);
}

static void reduction(struct run *run, const struct descriptor *op)
{
    const struct descriptor *kind = double_child(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    const bool adds = double_number(kind, CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_ADD;
    const struct values *x = input(run, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
    struct values *y = output(run, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    MUST(y->dims[3] == 1 && y->n * x->dims[3] == x->n);
    for (int64_t i = 0; i < y->n; i++) {
        double all = adds ? 0 : -INFINITY;
        for (int64_t j = 0; j < x->dims[3]; j++) {
            const double one = x->v[i * x->dims[3] + j];
            all = adds ? all + one : fmax(all, one);
        }
        y->v[i] = all;
    }
    round_values(run, y);
}

/* The same places, counted otherwise. */
static void reshape(struct run *run, const struct descriptor *op)
{
    const struct values *x = input(run, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
    struct values *y = output(run, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    int64_t last = 0;
    MUST(x->n == y->n);
    for (int64_t i = 0; i < x->n; i++)
        last = place_of_element(x, i) > last ? place_of_element(x, i) : last;
    double *memory = malloc((size_t)(last + 1) * sizeof *memory);
    MUST(memory);
    for (int64_t i = 0; i < x->n; i++)
        memory[place_of_element(x, i)] = x->v[i];
    for (int64_t i = 0; i < y->n; i++) {
        MUST(place_of_element(y, i) <= last);
        y->v[i] = memory[place_of_element(y, i)];
    }
    free(memory);
    round_values(run, y);
}

/* Of x and y the one is read, the other is made. */
struct convolution {
    struct values *x, *w, *y;
    int64_t stride, padding;
};

/* Adds every product of an element of w and one of x, or of y, to its element of `to`: y, or x. */
static void convolve(const struct convolution *c, struct values *to)
{
    const int64_t *x = c->x->dims, *w = c->w->dims, *y = c->y->dims;
    MUST(x[0] == y[0] && x[1] == w[1] && y[1] == w[0]);
    for (int64_t i = 0; i < c->y->n; i++)
        for (int64_t j = 0; j < w[1] * w[2] * w[3]; j++) {
            const int64_t channel = j / w[3] / w[2], out = i / y[3] / y[2] % y[1];
            const int64_t row = i / y[3] % y[2] * c->stride - c->padding + j / w[3] % w[2];
            const int64_t column = i % y[3] * c->stride - c->padding + j % w[3];
            if (row < 0 || row >= x[2] || column < 0 || column >= x[3])
                continue;
            const int64_t image = i / y[3] / y[2] / y[1];
            const int64_t at = ((image * x[1] + channel) * x[2] + row) * x[3] + column,
                          weight = out * w[1] * w[2] * w[3] + j;
            if (to == c->y)
                to->v[i] += c->x->v[at] * c->w->v[weight];
            else
                to->v[at] += c->y->v[i] * c->w->v[weight];
        }
}

/* The attributes of a pass: as its operation's names begin. */
#define CONVOLUTION(pass, x_name, y_name, x_is, y_is, made)                                        \
    do {                                                                                           \
        const struct descriptor *kind =                                                            \
            double_child(op, CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_CONV_DESC);                 \
        MUST(double_number(kind, CUDNN_ATTR_CONVOLUTION_CONV_MODE) == CUDNN_CROSS_CORRELATION);    \
        MUST(double_factor(op, CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_ALPHA) == 1.0f);          \
        MUST(double_factor(op, CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_BETA) == 0.0f);           \
        const struct convolution c = {                                                             \
            x_is(run, op, CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_##x_name),                     \
            input(run, op, CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_W),                           \
            y_is(run, op, CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_##y_name),                     \
            double_numbers(kind, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES)[1],                        \
            double_numbers(kind, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS)[1]};                         \
        memset(c.made->v, 0, (size_t)c.made->n * sizeof *c.made->v);                               \
        convolve(&c, c.made);                                                                      \
        round_values(run, c.made);                                                                 \
    } while (0)

static void convolution_forward(struct run *run, const struct descriptor *op)
{
    CONVOLUTION(FORWARD, X, Y, input, output, y);
}

static void convolution_data(struct run *run, const struct descriptor *op)
{
    CONVOLUTION(BWD_DATA, DX, DY, output, input, x);
}

void double_execute(const struct descriptor *graph, const struct descriptor *pack)
{
    struct run run = {.pack = pack};
    for (int64_t i = 0; i < graph->of[CUDNN_ATTR_OPERATIONGRAPH_OPS].count; i++) {
        const struct descriptor *op =
            ((struct descriptor *const *)double_get(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS))[i];
        switch (op->type) {
        case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
            matmul(&run, op);
            break;
        case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
            pointwise(&run, op);
            break;
        case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
            reduction(&run, op);
            break;
        case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
            reshape(&run, op);
            break;
        case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
            convolution_forward(&run, op);
            break;
        case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
            convolution_data(&run, op);
            break;
        default:
            MUST(!"an operation");
        }
    }
    for (int i = 0; i < run.n; i++)
        free(run.known[i].v);
}
