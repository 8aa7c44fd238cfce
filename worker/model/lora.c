/* LoRA (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models"), in the form and with
 * the names of Hugging Face's PEFT: y = x W^T + (alpha / rank) (x A^T) B^T, W frozen.
 *
 * A model of this kind wraps the base, a model of another kind that has all frozen weights. Its
 * table has the adapters and, with labels, the labels' head. It runs the base's units with a slot
 * of frozen weights (dpt_slot_grad is NULL there) and a list of adapters. The base's linear layers
 * call dpt_adapters_forward and dpt_adapters_backward after their own product. Each unit is a block
 * of the base; the first unit also runs the base's embedding, the last one its head. With labels
 * the head is a separate unit, because it is trained. */
#include "worker/model/kind.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 2 /* of an adapter: A, B */ };

struct dpt_lora {
    struct dpt_model model; /* of adapters; the first member, as in every kind */
    struct dpt_model *base; /* the model with the frozen weights; owned */
    int *first;             /* [parameters of the base] dpt_model_adapter */
    int64_t rank;
    double scale; /* alpha / rank */
};

static const struct dpt_param_rule zero = {true, DPT_INIT_ZERO, 0.0f, false};
static const struct dpt_param_rule normal = {true, DPT_INIT_NORMAL, 0.02f, false};

static const struct dpt_lora *lora_of(const struct dpt_model *model)
{
    DPT_ASSERT(model->kind == &dpt_lora_kind);
    return (const struct dpt_lora *)model;
}

/* ---- the table ---- */

static const char suffix[] = ".weight";

/* Sets the layer's name: "q_proj" for "model.layers.0.self_attn.q_proj.weight". False: the
 * parameter is not the weight of a layer. */
static bool layer_of(const struct dpt_param *param, char ret[DPT_PARAM_NAME_BYTES])
{
    const size_t n = strlen(param->name), tail = sizeof suffix - 1;
    if (n <= tail || strcmp(param->name + n - tail, suffix) != 0)
        return false;
    (void)snprintf(ret, DPT_PARAM_NAME_BYTES, "%.*s", (int)(n - tail), param->name);
    const char *dot = strrchr(ret, '.');
    if (dot != NULL)
        memmove(ret, dot + 1, strlen(dot + 1) + 1);
    return true;
}

/* Linear layers are the matrices of blocks. */
static bool is_target(const struct dpt_config *config, const struct dpt_model *base, int param)
{
    const struct dpt_param *p = &base->params[param];
    char layer[DPT_PARAM_NAME_BYTES];
    const bool in_block = p->unit > 0 && p->unit < base->n_units - 1;
    return in_block && p->ndim == 2 && layer_of(p, layer) && dpt_config_adapts(config, layer);
}

static int64_t in_of(const struct dpt_model *base, int param)
{
    return base->params[param].dim[base->kind->out_in ? 1 : 0];
}

static int64_t out_of(const struct dpt_model *base, int param)
{
    return base->params[param].dim[base->kind->out_in ? 0 : 1];
}

/* As PEFT's init_lora_weights: A has the initial values of torch.nn.Linear (Kaiming's uniform with
 * a = sqrt 5, a bound of 1 / sqrt(in)), B is zero. */
static void add_adapter(struct dpt_lora *m, int param)
{
    const int64_t in = in_of(m->base, param), out = out_of(m->base, param);
    const struct dpt_param_rule uniform = {true, DPT_INIT_UNIFORM, (float)(1.0 / sqrt((double)in)),
                                           false};
    const char *name = m->base->params[param].name;
    char prefix[DPT_PARAM_NAME_BYTES];
    (void)snprintf(prefix, sizeof prefix, "base_model.model.%.*s",
                   (int)(strlen(name) - (sizeof suffix - 1)), name);
    m->first[param] = m->model.n_params;
    dpt_table_add(&m->model, prefix, ".lora_A.weight", (struct dpt_shape){{m->rank, in}}, uniform);
    dpt_table_add(&m->model, prefix, ".lora_B.weight", (struct dpt_shape){{out, m->rank}}, zero);
}

static void lora_add_units(struct dpt_lora *m, const struct dpt_config *config)
{
    const struct dpt_model *base = m->base;
    struct dpt_model *model = &m->model;
    for (int i = 0; i < base->n_params; i++)
        m->first[i] = -1;
    for (int u = 1; u < base->n_units - 1; u++) {
        const struct dpt_unit *unit = &base->units[u];
        dpt_table_begin_unit(model, unit->name);
        for (int i = unit->first_param; i < unit->first_param + unit->n_params; i++)
            if (is_target(config, base, i))
                add_adapter(m, i);
        DPT_ASSERT(model->units[model->n_units - 1].n_params > 0); /* base/config_lora.c */
        dpt_table_end_unit(model);
    }
    const int score = dpt_model_score(base);
    if (score < 0)
        return;
    dpt_table_begin_unit(model, "head");
    dpt_table_add(model, "base_model.model.", base->params[score].name,
                  (struct dpt_shape){{base->params[score].dim[0], base->params[score].dim[1]}},
                  normal);
    dpt_table_end_unit(model);
}

static void lora_fini(struct dpt_model *model)
{
    struct dpt_lora *m = (struct dpt_lora *)model;
    dpt_model_destroy(&m->base);
    free(m->first);
}

enum dpt_status dpt_lora_create(const struct dpt_config *config, struct dpt_model *base,
                                struct dpt_model **ret, struct dpt_err *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_lora *m = calloc(1, sizeof *m);
    int *first = calloc((size_t)base->n_params, sizeof *first);
    int n_params = base->labels > 0 ? 1 : 0;
    if (m == NULL || first == NULL) {
        status = dpt_fail_nomem(err, "adapters of %d tensors", base->n_params);
        goto out;
    }
    for (int i = 0; i < base->n_params; i++)
        n_params += is_target(config, base, i) ? TENSORS : 0;
    m->model.kind = &dpt_lora_kind;
    m->model.vocab = base->vocab;
    m->model.labels = base->labels;
    m->model.context = base->context;
    m->model.dtype = base->dtype;
    m->rank = config->train.lora.rank;
    m->scale = config->train.lora.alpha / config->train.lora.rank;
    status = dpt_table_init(&m->model, base->n_units, n_params, err);
    if (status != DPT_OK)
        goto out;
    m->base = base;
    m->first = first;
    lora_add_units(m, config);
    DPT_ASSERT(m->model.n_params == n_params);
    *ret = &m->model;
    return DPT_OK;
out:
    free(m);
    free(first);
    dpt_model_destroy(&base);
    return status;
}

const struct dpt_model *dpt_model_base(const struct dpt_model *model)
{
    return model->kind == &dpt_lora_kind ? lora_of(model)->base : NULL;
}

int dpt_model_adapter(const struct dpt_model *model, int param)
{
    const struct dpt_lora *m = lora_of(model);
    DPT_ASSERT(param >= 0 && param < m->base->n_params);
    return m->first[param];
}

void dpt_model_merge(const struct dpt_model *model, int param, struct dpt_span span, const float *a,
                     const float *b, float *w)
{
    const struct dpt_lora *m = lora_of(model);
    DPT_ASSERT(param >= 0 && param < m->base->n_params);
    const int64_t in = in_of(m->base, param), out = out_of(m->base, param);
    const bool out_in = m->base->kind->out_in;
    for (int64_t e = span.first; e < span.end; e++) {
        const int64_t o = out_in ? e / in : e % out, i = out_in ? e % in : e / out;
        double sum = 0.0;
        for (int64_t r = 0; r < m->rank; r++)
            sum += (double)b[o * m->rank + r] * (double)a[r * in + i];
        w[e - span.first] = (float)((double)w[e - span.first] + m->scale * sum);
    }
}

/* ---- products ---- */

bool dpt_slot_adapts(const struct dpt_slot *slot, int weight, int n_weights)
{
    for (int i = weight; slot->adapters != NULL && i < weight + n_weights; i++)
        if (slot->adapters->first[i] >= 0)
            return true;
    return false;
}

bool dpt_slot_needs_dx(const struct dpt_slot *slot, int layer)
{
    return layer > 0 || slot->adapters == NULL;
}

/* The address of column `column` of a matrix. */
static const void *matrix_columns(const void *matrix, enum dpt_dtype dtype, int64_t column)
{
    return (const char *)matrix + (size_t)column * dpt_dtype_bytes(dtype);
}

/* u = (alpha / rank) x A^T, where A is parameter `a` of the adapters. */
static void make_u(const struct dpt_adapters *adapters, int a, const void *x)
{
    const struct dpt_unit_call *own = &adapters->own;
    own->ops->linear_forward(own->stream, &(struct dpt_linear_forward){
                                              .n = own->n,
                                              .in = own->model->params[a].dim[1],
                                              .out = adapters->rank,
                                              .out_in = true,
                                              .dtype = own->model->dtype,
                                              .x = x,
                                              .w = dpt_slot_weight(own, a),
                                              .y = adapters->u,
                                          });
    own->ops->scale(own->stream, own->n * adapters->rank, own->model->dtype, adapters->scale,
                    adapters->u);
}

void dpt_adapters_forward(const struct dpt_unit_call *call, const struct dpt_adapted *product)
{
    const struct dpt_adapters *adapters = call->slot->adapters;
    const enum dpt_dtype dtype = call->model->dtype;
    int64_t column = 0;
    for (int i = product->weight; adapters != NULL && i < product->weight + product->n_weights;
         column += out_of(call->model, i++)) {
        const int a = adapters->first[i];
        if (a < 0)
            continue;
        make_u(adapters, a, product->x);
        call->ops->linear_forward(
            call->stream, &(struct dpt_linear_forward){
                              .n = call->n,
                              .in = adapters->rank,
                              .out = out_of(call->model, i),
                              .out_in = true,
                              .dtype = dtype,
                              .x = adapters->u,
                              .w = dpt_slot_weight(&adapters->own, a + 1),
                              .y = (void *)(uintptr_t)matrix_columns(product->y, dtype, column),
                              .y_stride = product->out,
                              .add_y = true,
                          });
    }
}

/* Backward of the adapter whose A is parameter `a`. Its results are the columns of y from `column`
 * on. */
static void adapter_backward(const struct dpt_adapters *adapters, const struct dpt_adapted *product,
                             int a, int64_t column)
{
    const struct dpt_unit_call *own = &adapters->own;
    const struct dpt_param *params = own->model->params;
    const enum dpt_dtype dtype = own->model->dtype;
    const int64_t rank = adapters->rank;
    make_u(adapters, a, product->x);
    own->ops->linear_backward(own->stream, &(struct dpt_linear_backward){
                                               .n = own->n,
                                               .in = rank,
                                               .out = params[a + 1].dim[0],
                                               .out_in = true,
                                               .dtype = dtype,
                                               .x = adapters->u,
                                               .w = dpt_slot_weight(own, a + 1),
                                               .dy = matrix_columns(product->dy, dtype, column),
                                               .dy_stride = product->out,
                                               .dx = adapters->du,
                                               .dw = dpt_slot_grad(own, a + 1),
                                               .accumulate = own->slot->accumulate,
                                           });
    own->ops->scale(own->stream, own->n * rank, dtype, adapters->scale, adapters->du);
    own->ops->linear_backward(own->stream, &(struct dpt_linear_backward){
                                               .n = own->n,
                                               .in = params[a].dim[1],
                                               .out = rank,
                                               .out_in = true,
                                               .dtype = dtype,
                                               .x = product->x,
                                               .w = dpt_slot_weight(own, a),
                                               .dy = adapters->du,
                                               .dx = product->dx,
                                               .add_dx = true,
                                               .dw = dpt_slot_grad(own, a),
                                               .accumulate = own->slot->accumulate,
                                           });
    dpt_slot_announce(own->slot, a, TENSORS);
}

void dpt_adapters_backward(const struct dpt_unit_call *call, const struct dpt_adapted *product)
{
    const struct dpt_adapters *adapters = call->slot->adapters;
    int64_t column = product->out;
    for (int i = product->weight + product->n_weights - 1; adapters != NULL && i >= product->weight;
         i--) {
        column -= out_of(call->model, i);
        if (adapters->first[i] >= 0)
            adapter_backward(adapters, product, adapters->first[i], column);
    }
}

/* ---- units ---- */

/* The units [first, end) of the base that a unit of this kind runs: its block, and in the first and
 * the last unit also units without adapters. */
struct base_run {
    int first, end;
    struct dpt_slot slot; /* for the base's units: frozen weights, no announcements */
    struct dpt_adapters adapters;
};

static void set_base_run(const struct dpt_unit_call *call, struct base_run *ret)
{
    const struct dpt_lora *m = lora_of(call->model);
    const struct dpt_slot *slot = call->slot;
    const enum dpt_dtype dtype = m->model.dtype;
    struct dpt_carver carver = {slot->scratch, dpt_model_scratch_bytes(m->base, slot->b, slot->t)};
    ret->first = call->unit == 0 ? 0 : call->unit + 1;
    ret->end = call->unit == m->model.n_units - 1 ? m->base->n_units : call->unit + 2;
    ret->adapters = (struct dpt_adapters){.own = *call,
                                          .first = m->first,
                                          .rank = m->rank,
                                          .scale = (float)m->scale,
                                          .u = dpt_carve(&carver, dtype, call->n * m->rank),
                                          .du = dpt_carve(&carver, dtype, call->n * m->rank)};
    ret->slot = *slot;
    ret->slot.weights = slot->base;
    ret->slot.packed = slot->base_packed;
    ret->slot.base = ret->slot.base_packed = NULL;
    ret->slot.grads = NULL;
    ret->slot.announce = NULL;
    ret->slot.adapters = &ret->adapters;
}

static void lora_forward(const struct dpt_unit_call *call)
{
    struct base_run run;
    set_base_run(call, &run);
    for (int u = run.first; u < run.end; u++)
        dpt_model_forward(lora_of(call->model)->base, call->ops, call->stream, u, &run.slot);
}

/* The embedding, the base's first unit, has no backward: it is frozen. */
static void lora_backward(const struct dpt_unit_call *call)
{
    const struct dpt_model *base = lora_of(call->model)->base;
    struct base_run run;
    set_base_run(call, &run);
    for (int u = run.end - 1; u >= run.first && u > 0; u--) {
        dpt_model_backward(base, call->ops, call->stream, u, &run.slot);
        if (u == base->n_units - 1 && call->model->labels > 0)
            dpt_slot_announce(call->slot, dpt_model_score(call->model), 1);
    }
}

static size_t lora_saved_bytes(const struct dpt_model *model, int64_t b, int64_t t)
{
    return dpt_model_saved_bytes(lora_of(model)->base, b, t);
}

static size_t lora_scratch_bytes(const struct dpt_model *model, int64_t b, int64_t t)
{
    const struct dpt_lora *m = lora_of(model);
    struct dpt_carver carver = {NULL, dpt_model_scratch_bytes(m->base, b, t)};
    (void)dpt_carve(&carver, model->dtype, b * t * m->rank);
    (void)dpt_carve(&carver, model->dtype, b * t * m->rank);
    return carver.at;
}

/* Adapters are small: products read them unpacked. Decoding reads merged weights (dpt_model_merge).
 */
const struct dpt_model_kind dpt_lora_kind = {
    .name = "lora",
    .fini = lora_fini,
    .saved_bytes = lora_saved_bytes,
    .scratch_bytes = lora_scratch_bytes,
    .forward = lora_forward,
    .backward = lora_backward,
};
