/* The pipeline of buckets through the three stages of the canonical all-reduce. */
#include "worker/strategy/reducer.h"

#include "worker/strategy/tree_sum.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum stage { STAGE_LOCAL, STAGE_CROSS, STAGE_GATHER, STAGE_COUNT };

/* What other hosts send is staged; two buckets can be under way between hosts at once. */
enum { STAGING_COUNT = 2 };

/* All-gathers under way at once: a communicator bounds its operations, a model's buckets do not. */
enum { GATHERS_MAX = 32 };
_Static_assert(STAGE_COUNT *(GATHERS_MAX + 2) < DPT_COMM_OPS_MAX, "all stages of these buckets");

/* One transfer of a stage as this rank sees it, the same for every bucket but for the range. */
struct leg {
    enum dpt_comm_dir dir;
    int peer;
    int piece;
    int buffer; /* lane buffer sent from or received into; -1: lent */
    struct dpt_range node;
};

/* A piece that this rank sums in a stage: parts in lane order, each from an own buffer or from a
 * lend of that stage. */
struct gathering {
    int piece;
    int n_parts;
    struct part_source {
        struct dpt_range node;
        int buffer; /* own lane buffer; -1: lent by `leg` */
        int leg;
    } * parts;
    int n_out;
    struct dpt_range out[DPT_COVER_MAX];
};

struct stage_plan {
    int n_legs;
    struct leg *legs;
    int n_gatherings;
    struct gathering *gatherings;
};

struct bucket_run {
    struct dpt_comm_op *op[STAGE_COUNT];
    struct dpt_comm_xfer *xfers[STAGE_COUNT]; /* [n_legs], those with no bytes left out */
    int *xfer_of_leg[STAGE_COUNT];            /* -1: no bytes */
};

struct dpt_reducer {
    struct dpt_reducer_spec spec;
    struct stage_plan stage[STAGE_COUNT];
    struct bucket_run *run; /* [n_buckets] */
    struct dpt_partial *partials;
    float *scratch;
    struct dpt_comm_mem *staging[STAGING_COUNT];
    atomic_int *ready; /* [n_buckets] */
    bool posted;
};

static int host_positions(const struct dpt_world *world, int host, struct dpt_range *ret)
{
    int first = -1, end = -1;
    for (int p = 0; p < world->size; p++) {
        if (world->host_of_position[p] != host)
            continue;
        if (first < 0)
            first = p;
        end = p + 1;
    }
    *ret = (struct dpt_range){first, end};
    return end - first;
}

/* The lanes of plan positions [first, end). */
static struct dpt_range lanes_of_positions(const struct dpt_world *world,
                                           struct dpt_range positions)
{
    return (struct dpt_range){dpt_position_lanes(world->lanes, world->size, positions.first).first,
                              dpt_position_lanes(world->lanes, world->size, positions.end - 1).end};
}

static int n_hosts(const struct dpt_world *world)
{
    int n = 1;
    for (int p = 1; p < world->size; p++)
        n += world->host_of_position[p] != world->host_of_position[p - 1];
    return n;
}

int dpt_reducer_buffers(const struct dpt_world *world, int position)
{
    int own =
        dpt_tree_buffers(world->lanes, dpt_position_lanes(world->lanes, world->size, position));
    if (n_hosts(world) == 1)
        return own;
    struct dpt_range positions, cover[DPT_COVER_MAX];
    (void)host_positions(world, world->host_of_position[position], &positions);
    int host = dpt_tree_cover(world->lanes, lanes_of_positions(world, positions), cover);
    return own > host ? own : host;
}

static int node_index(const struct dpt_range *nodes, int n, struct dpt_range node)
{
    for (int i = 0; i < n; i++)
        if (nodes[i].first == node.first && nodes[i].end == node.end)
            return i;
    return -1;
}

/* Turns a stage's transfers into this rank's legs and gatherings. `own` are the nodes this rank
 * holds before the stage, in its buffers in order; `over` the lanes that the stage's gatherers sum
 * up. */
static enum dpt_status plan_stage(struct dpt_reducer *r, struct stage_plan *plan,
                                  const struct dpt_transfer *transfers, int n,
                                  const struct dpt_range *own, int n_own, struct dpt_range over,
                                  struct dpt_err *err)
{
    int rank = r->spec.rank;
    plan->legs = calloc((size_t)n + 1, sizeof *plan->legs);
    plan->gatherings = calloc((size_t)r->spec.world->size, sizeof *plan->gatherings);
    if (!plan->legs || !plan->gatherings)
        return dpt_fail(err, DPT_ENOMEM, "plan of the all-reduce: out of memory");
    for (int i = 0; i < n; i++) {
        const struct dpt_transfer *t = &transfers[i];
        if (t->from == rank && t->to != rank) {
            int buffer = node_index(own, n_own, t->node);
            DPT_ASSERT(buffer >= 0);
            plan->legs[plan->n_legs++] =
                (struct leg){DPT_COMM_SEND, t->to, t->piece, buffer, t->node};
        }
        if (t->to != rank)
            continue;
        struct gathering *g =
            plan->n_gatherings > 0 ? &plan->gatherings[plan->n_gatherings - 1] : NULL;
        if (!g || g->piece != t->piece) {
            g = &plan->gatherings[plan->n_gatherings++];
            g->piece = t->piece;
            g->n_out = dpt_tree_cover(r->spec.world->lanes, over, g->out);
            g->parts = calloc(DPT_TREE_SUM_PARTS_MAX, sizeof *g->parts);
            if (!g->parts)
                return dpt_fail(err, DPT_ENOMEM, "plan of the all-reduce: out of memory");
        }
        DPT_ASSERT(g->n_parts < DPT_TREE_SUM_PARTS_MAX);
        struct part_source *part = &g->parts[g->n_parts++];
        *part = (struct part_source){t->node, -1, -1};
        if (t->from == rank) {
            part->buffer = node_index(own, n_own, t->node);
            DPT_ASSERT(part->buffer >= 0);
        } else {
            part->leg = plan->n_legs;
            plan->legs[plan->n_legs++] =
                (struct leg){DPT_COMM_LEND, t->from, t->piece, -1, t->node};
        }
    }
    return DPT_OK;
}

static enum dpt_status plan_gather(struct dpt_reducer *r, struct dpt_err *err)
{
    struct stage_plan *plan = &r->stage[STAGE_GATHER];
    int size = r->spec.world->size, rank = r->spec.rank;
    plan->legs = calloc((size_t)(2 * size), sizeof *plan->legs);
    if (!plan->legs)
        return dpt_fail(err, DPT_ENOMEM, "plan of the all-reduce: out of memory");
    const struct dpt_range none = {0, 0};
    for (int peer = 0; peer < size; peer++) {
        if (peer == rank)
            continue;
        plan->legs[plan->n_legs++] = (struct leg){DPT_COMM_SEND, peer, rank, 0, none};
        plan->legs[plan->n_legs++] = (struct leg){DPT_COMM_RECV, peer, peer, 0, none};
    }
    return DPT_OK;
}

static enum dpt_status plan_reduction(struct dpt_reducer *r, struct dpt_err *err)
{
    const struct dpt_world *world = r->spec.world;
    int position = 0;
    while (world->rank_of_position[position] != r->spec.rank)
        position++;
    struct dpt_range own[DPT_COVER_MAX], host[DPT_COVER_MAX], positions;
    int n_own =
        dpt_tree_cover(world->lanes, dpt_position_lanes(world->lanes, world->size, position), own);
    (void)host_positions(world, r->spec.host, &positions);
    struct dpt_range host_lanes = lanes_of_positions(world, positions);
    int n_host = dpt_tree_cover(world->lanes, host_lanes, host);

    int n1 = dpt_reduce_stage1(world, NULL, 0), n2 = dpt_reduce_stage2(world, NULL, 0);
    int max = n1 > n2 ? n1 : n2;
    struct dpt_transfer *transfers = calloc((size_t)max + 1, sizeof *transfers);
    if (!transfers)
        return dpt_fail(err, DPT_ENOMEM, "plan of the all-reduce: out of memory");
    n1 = dpt_reduce_stage1(world, transfers, max);
    enum dpt_status status =
        plan_stage(r, &r->stage[STAGE_LOCAL], transfers, n1, own, n_own, host_lanes, err);
    if (status == DPT_OK && n_hosts(world) > 1) {
        n2 = dpt_reduce_stage2(world, transfers, max);
        status = plan_stage(r, &r->stage[STAGE_CROSS], transfers, n2, host, n_host,
                            (struct dpt_range){0, world->lanes}, err);
    }
    free(transfers);
    return status == DPT_OK ? plan_gather(r, err) : status;
}

/* The flat element range of `piece` of `bucket`. */
static int64_t piece_at(const struct dpt_reducer *r, int bucket, int piece, int64_t *ret_numel)
{
    const struct dpt_bucket *b = &r->spec.buckets[bucket];
    int64_t first, end;
    dpt_piece_range(b->end - b->first, r->spec.block, r->spec.world->size, piece, &first, &end);
    *ret_numel = end - first;
    return b->first + first;
}

static enum dpt_status plan_bucket(struct dpt_reducer *r, int bucket, struct dpt_err *err)
{
    struct bucket_run *run = &r->run[bucket];
    for (int s = 0; s < STAGE_COUNT; s++) {
        int n = r->stage[s].n_legs;
        run->xfers[s] = calloc((size_t)n + 1, sizeof *run->xfers[s]);
        run->xfer_of_leg[s] = calloc((size_t)n + 1, sizeof *run->xfer_of_leg[s]);
        if (!run->xfers[s] || !run->xfer_of_leg[s])
            return dpt_fail(err, DPT_ENOMEM, "plan of the all-reduce: out of memory");
    }
    return DPT_OK;
}

static enum dpt_status make_staging(struct dpt_reducer *r, struct dpt_err *err)
{
    size_t bytes_max = 0;
    for (int b = 0; b < r->spec.n_buckets; b++) {
        size_t bytes = 0;
        for (int i = 0; i < r->stage[STAGE_CROSS].n_legs; i++) {
            int64_t numel;
            (void)piece_at(r, b, r->stage[STAGE_CROSS].legs[i].piece, &numel);
            if (r->stage[STAGE_CROSS].legs[i].dir == DPT_COMM_LEND)
                bytes += (size_t)numel * sizeof(float);
        }
        bytes_max = bytes > bytes_max ? bytes : bytes_max;
    }
    for (int i = 0; bytes_max > 0 && i < STAGING_COUNT; i++)
        DPT_TRY(dpt_comm_mem_create(r->spec.listener, bytes_max, &r->staging[i], err));
    return DPT_OK;
}

enum dpt_status dpt_reducer_create(const struct dpt_reducer_spec *spec, struct dpt_reducer **ret,
                                   struct dpt_err *err)
{
    struct dpt_reducer *r = calloc(1, sizeof *r);
    if (!r)
        return dpt_fail(err, DPT_ENOMEM, "all-reduce: out of memory");
    r->spec = *spec;
    enum dpt_status status = DPT_OK;
    r->run = calloc((size_t)spec->n_buckets, sizeof *r->run);
    r->ready = calloc((size_t)spec->n_buckets, sizeof *r->ready);
    r->partials = calloc(DPT_TREE_SUM_PARTS_MAX, sizeof *r->partials);
    r->scratch = calloc(dpt_tree_sum_scratch_numel(), sizeof *r->scratch);
    if (!r->run || !r->ready || !r->partials || !r->scratch)
        status = dpt_fail(err, DPT_ENOMEM, "all-reduce: out of memory");
    if (status == DPT_OK && spec->world->size > 1)
        status = plan_reduction(r, err);
    for (int b = 0; status == DPT_OK && b < spec->n_buckets; b++)
        status = plan_bucket(r, b, err);
    if (status == DPT_OK)
        status = make_staging(r, err);
    if (status != DPT_OK)
        dpt_reducer_destroy(&r);
    else
        *ret = r;
    return status;
}

void dpt_reducer_destroy(struct dpt_reducer **reducer)
{
    struct dpt_reducer *r = *reducer;
    if (!r)
        return;
    for (int b = 0; r->run && b < r->spec.n_buckets; b++)
        for (int s = 0; s < STAGE_COUNT; s++) {
            free(r->run[b].xfers[s]);
            free(r->run[b].xfer_of_leg[s]);
        }
    for (int i = 0; i < STAGING_COUNT; i++)
        dpt_comm_mem_destroy(&r->staging[i]);
    for (int s = 0; s < STAGE_COUNT; s++) {
        for (int g = 0; g < r->stage[s].n_gatherings; g++)
            free(r->stage[s].gatherings[g].parts);
        free(r->stage[s].gatherings);
        free(r->stage[s].legs);
    }
    free(r->run);
    free(r->ready);
    free(r->partials);
    free(r->scratch);
    free(r);
    *reducer = NULL;
}

/* Posts the transfers of one stage of a bucket; a stage without legs has no op. */
static enum dpt_status post_stage(struct dpt_reducer *r, struct dpt_comm *comm, int bucket,
                                  enum stage s, struct dpt_err *err)
{
    struct bucket_run *run = &r->run[bucket];
    struct stage_plan *plan = &r->stage[s];
    int n = 0;
    size_t staged = 0;
    for (int i = 0; i < plan->n_legs; i++) {
        const struct leg *leg = &plan->legs[i];
        int64_t numel, at = piece_at(r, bucket, leg->piece, &numel);
        run->xfer_of_leg[s][i] = -1;
        if (numel == 0)
            continue;
        run->xfer_of_leg[s][i] = n;
        run->xfers[s][n++] =
            (struct dpt_comm_xfer){.dir = leg->dir,
                                   .peer = leg->peer,
                                   .mem = leg->buffer >= 0 ? r->spec.buffers[leg->buffer] : NULL,
                                   .offset = leg->buffer >= 0 ? (size_t)at * sizeof(float) : 0,
                                   .bytes = (size_t)numel * sizeof(float)};
        if (s == STAGE_CROSS && leg->dir == DPT_COMM_LEND) {
            run->xfers[s][n - 1].mem = r->staging[bucket % STAGING_COUNT];
            run->xfers[s][n - 1].offset = staged;
            staged += (size_t)numel * sizeof(float);
        }
    }
    if (n == 0)
        return DPT_OK;
    return dpt_comm_exchange(comm, run->xfers[s], n, &run->op[s], err);
}

/* Waits for the arrivals of a stage of a bucket. */
static enum dpt_status await_stage(struct dpt_reducer *r, struct dpt_comm *comm, int bucket,
                                   enum stage s, struct dpt_err *err)
{
    struct dpt_comm_op *op = r->run[bucket].op[s];
    if (!op)
        return DPT_OK;
    enum dpt_status status;
    do
        status = dpt_comm_poll_received(comm, op, -1, err);
    while (status == DPT_INPROGRESS);
    return status;
}

static void sum_stage(struct dpt_reducer *r, int bucket, enum stage s)
{
    for (int i = 0; i < r->stage[s].n_gatherings; i++) {
        const struct gathering *g = &r->stage[s].gatherings[i];
        int64_t numel, at = piece_at(r, bucket, g->piece, &numel);
        if (numel == 0)
            continue;
        for (int p = 0; p < g->n_parts; p++) {
            const struct part_source *source = &g->parts[p];
            const float *data;
            if (source->buffer >= 0)
                data = (const float *)dpt_comm_mem_data(r->spec.buffers[source->buffer]) + at;
            else
                data = r->run[bucket].xfers[s][r->run[bucket].xfer_of_leg[s][source->leg]].lent;
            r->partials[p] = (struct dpt_partial){source->node, data};
        }
        float *out[DPT_COVER_MAX];
        for (int o = 0; o < g->n_out; o++)
            out[o] = (float *)dpt_comm_mem_data(r->spec.buffers[o]) + at;
        dpt_tree_sum(r->spec.ops, r->spec.stream, r->partials, g->n_parts, g->out, out, g->n_out,
                     numel, r->scratch);
    }
}

/* Carries a bucket from the arrival of one stage's parts to the sums of that stage. */
static enum dpt_status finish_stage(struct dpt_reducer *r, struct dpt_comm *comm, int bucket,
                                    enum stage s, struct dpt_err *err)
{
    DPT_TRY(await_stage(r, comm, bucket, s, err));
    sum_stage(r, bucket, s);
    DPT_TRY(dpt_stream_sync(r->spec.stream, err));
    if (r->run[bucket].op[s])
        dpt_comm_op_free(comm, &r->run[bucket].op[s]);
    return DPT_OK;
}

/* Waits until the main thread has completed `bucket`, moving what is in flight meanwhile. */
static enum dpt_status await_ready(struct dpt_reducer *r, struct dpt_comm *comm, int bucket,
                                   struct dpt_err *err)
{
    while (!atomic_load_explicit(&r->ready[bucket], memory_order_acquire)) {
        enum dpt_status status = dpt_comm_poll_woken(comm, -1, err);
        if (status != DPT_INPROGRESS)
            return status;
    }
    return DPT_OK;
}

/* Waits until bucket `bucket` has gone round: everything received, everything sent taken. */
static enum dpt_status end_gather(struct dpt_reducer *r, struct dpt_comm *comm, int bucket,
                                  struct dpt_err *err)
{
    struct dpt_comm_op **op = &r->run[bucket].op[STAGE_GATHER];
    if (!*op)
        return DPT_OK;
    enum dpt_status status;
    do
        status = dpt_comm_poll(comm, *op, -1, err);
    while (status == DPT_INPROGRESS);
    if (status == DPT_OK)
        dpt_comm_op_free(comm, op);
    return status;
}

static enum dpt_status job_reduce(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct dpt_reducer *r = ctx;
    struct dpt_comm *comm = dpt_comm_thread_comm(thread);
    int n = r->spec.n_buckets;
    bool cross =
        n_hosts(r->spec.world) > 1; /* of the world, not of this rank: all must post in one order */
    int gather_lag = cross ? 2 : 1;
    for (int turn = 0; turn < n + gather_lag; turn++) {
        if (turn < n) {
            DPT_TRY(await_ready(r, comm, turn, err));
            DPT_TRY(post_stage(r, comm, turn, STAGE_LOCAL, err));
        }
        int b = turn - 1;
        if (b >= 0 && b < n) {
            DPT_TRY(finish_stage(r, comm, b, STAGE_LOCAL, err));
            if (cross)
                DPT_TRY(post_stage(r, comm, b, STAGE_CROSS, err));
        }
        b = turn - gather_lag;
        if (b >= 0 && b < n) {
            if (cross)
                DPT_TRY(finish_stage(r, comm, b, STAGE_CROSS, err));
            if (b >= GATHERS_MAX)
                DPT_TRY(end_gather(r, comm, b - GATHERS_MAX, err));
            DPT_TRY(post_stage(r, comm, b, STAGE_GATHER, err));
        }
    }
    for (int b = 0; b < n; b++) {
        DPT_TRY(await_stage(r, comm, b, STAGE_GATHER, err));
        if (r->run[b].op[STAGE_GATHER])
            dpt_comm_op_free(comm, &r->run[b].op[STAGE_GATHER]);
    }
    return DPT_OK;
}

void dpt_reducer_begin(struct dpt_reducer *r)
{
    for (int b = 0; b < r->spec.n_buckets; b++)
        atomic_store_explicit(&r->ready[b], 0, memory_order_relaxed);
    if (r->spec.world->size == 1)
        return;
    dpt_comm_thread_post(r->spec.thread, job_reduce, r);
    r->posted = true;
}

void dpt_reducer_ready(struct dpt_reducer *r, int bucket)
{
    atomic_store_explicit(&r->ready[bucket], 1, memory_order_release);
    if (r->spec.world->size > 1)
        dpt_comm_thread_wake(r->spec.thread);
}

enum dpt_status dpt_reducer_wait(struct dpt_reducer *r, struct dpt_err *err)
{
    if (!r->posted)
        return DPT_OK;
    r->posted = false;
    return dpt_comm_thread_wait(r->spec.thread, err);
}
