/* The weights hash over shards (state_hash.h). */
#include "worker/train/save/state_hash.h"

#include <stdlib.h>
#include <string.h>

enum { HASH_BYTES = sizeof(struct dpt_hash128), ROUND_BYTES = 16 << 10 };

/* A block of the hash: a range of the flat vector within one unit. */
struct block {
    int unit;
    /* Shards of its first and its last element. The holder of the first one hashes the block. */
    int first, last;
    struct dpt_interval range;
};

struct work {
    const struct dpt_state_hash *spec;
    struct dpt_comm *comm;
    int of;      /* number of shards of the chosen partition */
    int *holder; /* [of] lowest rank that holds the shard */
    int me;      /* shard whose blocks this rank hashes; -1: none */
    struct block *blocks;
    int64_t n_blocks;
    int64_t *count; /* [of] blocks of each shard */
    int64_t count_max;
    struct dpt_hash128 *mine; /* [count_max] */
    int64_t n_mine;
    float *values; /* values of a block that lies in several shards */
    struct dpt_comm_xfer *xfers;
};

/* Chooses a partition of the state: the first number of shards `of`, in the order of ranks, with
 * which all shards are held. */
static enum dpt_status choose_partition(struct work *w, struct dpt_err *err)
{
    const struct dpt_shard *shards = w->spec->shards;
    const int world = w->spec->world;
    for (int i = 0; i < world; i++) {
        int n = 0;
        w->of = shards[i].of <= world ? shards[i].of : 0;
        for (int index = 0; index < w->of; index++)
            w->holder[index] = -1;
        for (int k = world - 1; k >= 0; k--)
            if (shards[k].of == w->of && w->of > 0) {
                n += w->holder[shards[k].index] < 0;
                w->holder[shards[k].index] = k;
            }
        if (w->of == 0 || n < w->of)
            continue;
        w->me = -1;
        for (int index = 0; index < w->of; index++)
            w->me = w->holder[index] == w->spec->rank ? index : w->me;
        return DPT_OK;
    }
    return dpt_fail(err, DPT_ECORRUPT, "the ranks' shards are not the whole state");
}

static int owner_of(const struct work *w, int unit, int64_t x)
{
    const struct dpt_grid *grid = w->spec->tensors->grid;
    const int64_t first = grid->offset[unit];
    return dpt_layout_owner(grid->offset[unit + 1] - first, grid->block, w->of, x - first);
}

static int64_t tensor_numel(const struct dpt_checkpoint_tensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->ndim; d++)
        n *= t->dim[d];
    return n;
}

static enum dpt_status list_blocks(struct work *w, struct dpt_err *err)
{
    const struct dpt_state_tensors *tensors = w->spec->tensors;
    int64_t n = 0;
    int unit = 0;
    for (int i = 0; i < tensors->n; i++)
        n += (tensor_numel(&tensors->tensor[i]) + DPT_WEIGHTS_HASH_BLOCK - 1) /
             DPT_WEIGHTS_HASH_BLOCK;
    w->blocks = calloc((size_t)n + 1, sizeof *w->blocks);
    if (!w->blocks)
        return dpt_fail_nomem(err, "weights hash");
    for (int i = 0; i < tensors->n; i++) {
        const int64_t end = tensors->offset[i] + tensor_numel(&tensors->tensor[i]);
        for (int64_t x = tensors->offset[i]; x < end; x += DPT_WEIGHTS_HASH_BLOCK) {
            while (x >= tensors->grid->offset[unit + 1])
                unit++;
            const int64_t stop =
                x + DPT_WEIGHTS_HASH_BLOCK < end ? x + DPT_WEIGHTS_HASH_BLOCK : end;
            const struct block block = {.unit = unit,
                                        .first = owner_of(w, unit, x),
                                        .last = owner_of(w, unit, stop - 1),
                                        .range = {x, stop}};
            w->blocks[w->n_blocks++] = block;
            if (++w->count[block.first] > w->count_max)
                w->count_max = w->count[block.first];
        }
    }
    return DPT_OK;
}

/* The part of the block that lies in shard `index`. */
static struct dpt_interval part_in_shard(const struct work *w, const struct block *block, int index)
{
    return dpt_interval_intersect(
        dpt_shard_piece(w->spec->tensors->grid, (struct dpt_shard){index, w->of}, block->unit),
        block->range);
}

/* Index of element `x` in this rank's memory. */
static int64_t place_of(const struct work *w, const struct block *block, int64_t x)
{
    const struct dpt_grid *grid = w->spec->tensors->grid;
    const struct dpt_state_part *own = w->spec->own;
    return dpt_strategy_state_offset(own, grid, DPT_VECTOR_PARAM, block->unit) +
           (x - dpt_shard_piece(grid, own->shard, block->unit).first);
}

static enum dpt_status exchange_parts(struct work *w, int n, struct dpt_err *err)
{
    struct dpt_comm_op *op = NULL;
    DPT_TRY(dpt_comm_exchange(w->comm, w->xfers, n, &op, err));
    enum dpt_status status;
    do
        status = dpt_comm_poll(w->comm, op, -1, err);
    while (status == DPT_INPROGRESS);
    dpt_comm_op_free(w->comm, &op);
    return status;
}

/* Collects a block that lies in several shards: the holders send their parts to the holder of the
 * first shard. */
static enum dpt_status gather_block(struct work *w, const struct block *block, struct dpt_err *err)
{
    struct dpt_comm_mem *mem = w->spec->own->vector[DPT_VECTOR_PARAM].mem;
    if (w->me > block->first) {
        const struct dpt_interval part = part_in_shard(w, block, w->me);
        w->xfers[0] =
            (struct dpt_comm_xfer){.dir = DPT_COMM_SEND,
                                   .peer = w->holder[block->first],
                                   .mem = mem,
                                   .offset = (size_t)place_of(w, block, part.first) * sizeof(float),
                                   .bytes = (size_t)(part.end - part.first) * sizeof(float)};
        return exchange_parts(w, 1, err);
    }
    const struct dpt_interval own = part_in_shard(w, block, w->me);
    const float *values = dpt_comm_mem_data(mem);
    int n = 0;
    memcpy(w->values, values + place_of(w, block, own.first),
           (size_t)(own.end - own.first) * sizeof(float));
    for (int index = block->first + 1; index <= block->last; index++) {
        const struct dpt_interval part = part_in_shard(w, block, index);
        if (part.first < part.end)
            w->xfers[n++] =
                (struct dpt_comm_xfer){.dir = DPT_COMM_RECV,
                                       .peer = w->holder[index],
                                       .buf = w->values + (part.first - block->range.first),
                                       .bytes = (size_t)(part.end - part.first) * sizeof(float)};
    }
    return exchange_parts(w, n, err);
}

static enum dpt_status hash_block(struct work *w, const struct block *block, struct dpt_err *err)
{
    if (w->me < block->first || w->me > block->last)
        return DPT_OK;
    const size_t bytes = (size_t)(block->range.end - block->range.first) * sizeof(float);
    const float *values = w->values;
    if (block->first < block->last)
        DPT_TRY(gather_block(w, block, err));
    else
        values = (const float *)dpt_comm_mem_data(w->spec->own->vector[DPT_VECTOR_PARAM].mem) +
                 place_of(w, block, block->range.first);
    if (w->me == block->first)
        w->mine[w->n_mine++] = dpt_hash128(values, bytes);
    return DPT_OK;
}

/* Gathers the hashes of all ranks round by round, then joins them in the order of the blocks. */
static enum dpt_status join_hashes(struct work *w, struct dpt_hash128 *ret, struct dpt_err *err)
{
    const int64_t round = ROUND_BYTES / HASH_BYTES, world = w->spec->world;
    const int64_t n = w->count_max < round ? w->count_max : round;
    enum dpt_status status = DPT_OK;
    struct dpt_hash128 *got = calloc((size_t)(world * n) + 1, HASH_BYTES);
    struct dpt_hash128 *all = calloc((size_t)(w->of * w->count_max) + 1, HASH_BYTES);
    int64_t *next = calloc((size_t)w->of, sizeof *next);
    struct dpt_hash128 h = {0, 0};
    if (!got || !all || !next)
        status = dpt_fail_nomem(err, "weights hash");
    for (int64_t at = 0; status == DPT_OK && at < w->count_max; at += n) {
        const int64_t now = w->count_max - at < n ? w->count_max - at : n;
        status =
            dpt_comm_small_all_gather(w->comm, w->mine + at, (size_t)now * HASH_BYTES, got, err);
        for (int index = 0; status == DPT_OK && index < w->of; index++)
            memcpy(all + index * w->count_max + at, got + w->holder[index] * now,
                   (size_t)now * HASH_BYTES);
    }
    for (int64_t i = 0; status == DPT_OK && i < w->n_blocks; i++) {
        const int owner = w->blocks[i].first;
        h = dpt_hash128_join(h, all[owner * w->count_max + next[owner]++]);
    }
    free(got);
    free(all);
    free(next);
    if (status == DPT_OK)
        *ret = h;
    return status;
}

static enum dpt_status hash_shards(struct work *w, struct dpt_hash128 *ret, struct dpt_err *err)
{
    DPT_TRY(choose_partition(w, err));
    DPT_TRY(list_blocks(w, err));
    w->mine = calloc((size_t)w->count_max + 1, sizeof *w->mine);
    if (!w->mine)
        return dpt_fail_nomem(err, "weights hash");
    for (int64_t i = 0; i < w->n_blocks; i++)
        DPT_TRY(hash_block(w, &w->blocks[i], err));
    return join_hashes(w, ret, err);
}

/* Hashes the whole state, which every rank holds. This needs no communicator. */
static enum dpt_status hash_whole(const struct dpt_state_hash *spec, struct dpt_hash128 *ret,
                                  struct dpt_err *err)
{
    const struct dpt_state_tensors *tensors = spec->tensors;
    const struct dpt_grid *grid = tensors->grid;
    struct dpt_checkpoint_tensor *whole = calloc((size_t)tensors->n, sizeof *whole);
    if (!whole)
        return dpt_fail_nomem(err, "weights hash");
    for (int i = 0; i < tensors->n; i++) {
        /* Element x of a whole shard is at offset x, in the compact and in the flat layout. */
        whole[i] = tensors->tensor[i];
        whole[i].param =
            dpt_strategy_state_at(spec->own, grid, DPT_VECTOR_PARAM, 0) + tensors->offset[i];
    }
    *ret = dpt_weights_hash(whole, tensors->n);
    free(whole);
    return DPT_OK;
}

bool dpt_state_hash_is_local(const struct dpt_state_hash *spec)
{
    for (int i = 0; i < spec->world; i++)
        if (spec->shards[i].of != 1)
            return false;
    return true;
}

enum dpt_status dpt_state_hash(struct dpt_comm *comm, const struct dpt_state_hash *spec,
                               struct dpt_hash128 *ret, struct dpt_err *err)
{
    if (dpt_state_hash_is_local(spec))
        return hash_whole(spec, ret, err);
    struct work w = {.spec = spec, .comm = comm};
    const size_t world = (size_t)spec->world;
    w.holder = calloc(world, sizeof *w.holder);
    w.count = calloc(world, sizeof *w.count);
    w.xfers = calloc(world, sizeof *w.xfers);
    w.values = malloc(DPT_WEIGHTS_HASH_BLOCK * sizeof *w.values);
    enum dpt_status status = w.holder && w.count && w.xfers && w.values
                                 ? hash_shards(&w, ret, err)
                                 : dpt_fail_nomem(err, "weights hash");
    free(w.holder);
    free(w.count);
    free(w.xfers);
    free(w.values);
    free(w.blocks);
    free(w.mine);
    return status;
}

struct dpt_hash128 dpt_state_part_hash(const struct dpt_state_part *part,
                                       const struct dpt_grid *grid, int vectors)
{
    struct dpt_hash128 chain[2] = {{0, 0}, {0, 0}};
    for (int u = 0; u < grid->n_units && !dpt_shard_is_none(part->shard); u++) {
        const struct dpt_interval piece = dpt_shard_piece(grid, part->shard, u);
        if (piece.end <= piece.first)
            continue;
        for (int v = 0; v < vectors; v++) {
            chain[1] = dpt_hash128(dpt_strategy_state_at(part, grid, (enum dpt_vector)v, u),
                                   (size_t)(piece.end - piece.first) * sizeof(float));
            chain[0] = dpt_hash128(chain, sizeof chain);
        }
    }
    return chain[0];
}
