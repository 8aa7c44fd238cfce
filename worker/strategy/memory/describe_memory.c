/* The tensors in an allocation (describe_memory.h). The allocation's address says which buffer of
 * the strategy it is, and the buffer's kind says where the tensors are. */
#include "worker/strategy/memory/describe_memory.h"

#include "worker/strategy/strategy_internal.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- the places of tensors ---- */

/* Content that is filled from its begin to its end. */
struct filler {
    struct dpt_snapshot_content *content;
    size_t end; /* of the last block */
};

/* Adds a tensor of `bytes` bytes at byte `at`. The gap before it belongs to the block before. */
static void add_block(struct filler *f, size_t at, size_t bytes, const char *name)
{
    struct dpt_snapshot_content *c = f->content;
    if (c->n + 2 > c->n_max || bytes == 0 || at < f->end)
        return;
    if (c->n > 0)
        c->block[c->n - 1].bytes += at - f->end;
    else if (at > 0)
        c->block[c->n++] = (struct dpt_snapshot_block){.name = "padding", .bytes = at};
    c->block[c->n] = (struct dpt_snapshot_block){.bytes = bytes, .used = bytes};
    (void)snprintf(c->block[c->n++].name, DPT_SNAPSHOT_NAME_BYTES, "%s", name);
    f->end = at + bytes;
}

/* Adds the elements of `param` that `part` of the flat vector has; the part's first element is at
 * byte `at`. */
static void add_part(struct filler *f, const struct dpt_param *param, struct dpt_span part,
                     size_t at, size_t width)
{
    const struct dpt_span has = dpt_span_overlap(part, dpt_param_span(param));
    char name[DPT_SNAPSHOT_NAME_BYTES];
    if (has.end <= has.first)
        return;
    const bool whole = has.end - has.first == param->numel;
    if (whole)
        (void)snprintf(name, sizeof name, "%s", param->name);
    else
        (void)snprintf(name, sizeof name, "%s [%" PRId64 ":%" PRId64 "]", param->name,
                       has.first - param->offset, has.end - param->offset);
    add_block(f, at + (size_t)(has.first - part.first) * width,
              (size_t)(has.end - has.first) * width, name);
}

void dpt_describe_flat(const struct dpt_model *model, size_t width,
                       struct dpt_snapshot_content *content)
{
    struct filler f = {content, 0};
    const struct dpt_span all = {0, dpt_model_flat_numel(model)};
    for (int i = 0; i < dpt_model_n_params(model); i++)
        add_part(&f, dpt_model_param(model, i), all, 0, width);
}

/* The pieces of a shard, without gaps. */
static void describe_shard(const struct dpt_strategy *s, struct dpt_shard shard, size_t width,
                           struct dpt_snapshot_content *content)
{
    struct filler f = {content, 0};
    for (int u = 0; u < s->n_units; u++) {
        const struct dpt_unit *unit = dpt_model_unit(s->env.model, u);
        const struct dpt_interval piece = dpt_shard_piece(s->env.grid, shard, u);
        const struct dpt_span part = {piece.first, piece.end};
        const size_t at = (size_t)dpt_shard_offset(s->env.grid, shard, u) * width;
        for (int i = 0; i < unit->n_params; i++)
            add_part(&f, dpt_model_param(s->env.model, unit->first_param + i), part, at, width);
    }
}

/* The forms of weights in the layout of products. */
static void describe_packed(const struct dpt_strategy *s, const void *memory,
                            struct dpt_snapshot_content *content)
{
    struct filler f = {content, 0};
    for (int i = 0; s->packed && i < dpt_model_n_params(s->env.model); i++) {
        size_t at, bytes;
        if (dpt_packed_weights_form(s->packed, i, memory, &at, &bytes))
            add_block(&f, at, bytes, dpt_model_param(s->env.model, i)->name);
    }
}

/* ---- the buffers ---- */

/* A flat vector of f32, or a shard of one, by its size. Buffers of single units and of pieces of
 * buckets have other sizes, and no fixed tensors. */
static void describe_by_size(const struct dpt_strategy *s, size_t bytes, const char *purpose,
                             struct dpt_snapshot_content *content)
{
    const struct dpt_shard own = s->state.held.own.shard;
    content->purpose = purpose;
    if (bytes == (size_t)s->flat_numel * sizeof(float))
        dpt_describe_flat(s->env.model, sizeof(float), content);
    else if (own.of > 1 && s->buckets.n == 0 &&
             bytes == dpt_memory_list_shard_bytes(s->env.grid, own, sizeof(float)))
        describe_shard(s, own, sizeof(float), content);
}

static bool describe_part(const struct dpt_strategy *s, const struct dpt_state_part *part,
                          const char *const purposes[DPT_VECTOR_COUNT], const void *at,
                          struct dpt_snapshot_content *content)
{
    for (int v = 0; v < DPT_VECTOR_COUNT; v++) {
        const struct dpt_state_vector *vector = &part->vector[v];
        const bool registered = vector->mem && dpt_comm_mem_data(vector->mem) == at;
        if (!registered && !(vector->device && vector->device == at))
            continue;
        /* With f32 the masters are the weights. */
        content->purpose =
            v == DPT_VECTOR_PARAM && s->dtype == DPT_F32 && part == &s->state.held.own
                ? "weights"
                : purposes[v];
        if (registered ? vector->flat : vector->device_flat)
            dpt_describe_flat(s->env.model, sizeof(float), content);
        else
            describe_shard(s, part->shard, sizeof(float), content);
        return true;
    }
    return false;
}

static bool describe_state(const struct dpt_strategy *s, const void *at,
                           struct dpt_snapshot_content *content)
{
    static const char *const own[DPT_VECTOR_COUNT] = {[DPT_VECTOR_PARAM] = "masters",
                                                      [DPT_VECTOR_M] = "first moment",
                                                      [DPT_VECTOR_V] = "second moment"},
                             *const shadow[DPT_VECTOR_COUNT] = {
                                 [DPT_VECTOR_PARAM] = "shadow: masters",
                                 [DPT_VECTOR_M] = "shadow: first moment",
                                 [DPT_VECTOR_V] = "shadow: second moment"};
    const struct strategy_state *state = &s->state;
    if (state->whole.data == at) {
        content->purpose = "weights";
        dpt_describe_flat(s->env.model, s->width, content);
        return true;
    }
    if (state->copy.data == at) {
        content->purpose = "weights";
        describe_shard(s, state->held.own.shard, s->width, content);
        return true;
    }
    return describe_part(s, &state->held.own, own, at, content) ||
           describe_part(s, &state->held.shadow, shadow, at, content);
}

static bool describe_lanes(const struct dpt_strategy *s, const struct dpt_memory_piece *piece,
                           struct dpt_snapshot_content *content)
{
    const struct strategy_lanes *l = &s->lanes;
    for (int i = 0; i < l->n_registered || i < l->n_on_device; i++) {
        const bool registered =
            i < l->n_registered && dpt_comm_mem_data(l->registered[i]) == piece->at;
        if (!registered && !(i < l->n_on_device && l->on_device[i].data == piece->at))
            continue;
        describe_by_size(s, piece->bytes, i == 0 ? "gradient" : "sum of lanes", content);
        return true;
    }
    return false;
}

static void describe_waves(const struct dpt_strategy *s, const struct dpt_memory_piece *piece,
                           struct dpt_snapshot_content *content)
{
    const struct strategy_waves *w = &s->waves;
    for (int i = 0; i < w->n_gradients; i++)
        if (w->gradient[i].data == piece->at)
            describe_by_size(s, piece->bytes, "gradient of a slot", content);
    for (int i = 0; i < w->n_sums; i++)
        if (w->sums[i].data == piece->at)
            describe_by_size(s, piece->bytes, i == 0 ? "gradient" : "sum of slots", content);
    if (w->applied.data == piece->at)
        describe_by_size(s, piece->bytes, "gradient", content);
}

void dpt_describe_strategy(const struct dpt_strategy *s, const struct dpt_memory_piece *piece,
                           struct dpt_snapshot_content *content)
{
    if (!piece->at || describe_state(s, piece->at, content) || describe_lanes(s, piece, content))
        return;
    if (piece->tag == DPT_MEMORY_PACKED)
        describe_packed(s, piece->at, content);
    else
        describe_waves(s, piece, content);
}
