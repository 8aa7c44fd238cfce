/* The pipeline of chunks through the three stages of the canonical all-reduce (rank_transfers.h).
 */
#include "worker/strategy/reduce/host_reducer.h"

#include "worker/strategy/reduce/host_chunks.h"
#include "worker/strategy/reduce/packed_values.h"
#include "worker/strategy/reduce/tree_sum.h"
#include "worker/strategy/transport/rank_transfers.h"
#include "worker/trace/present_work.h"
#include "worker/trace/span.h"

#include <stdlib.h>
#include <string.h>

enum {
    GATHERS_MAX = 32, /* all-gathers under way at once: a communicator bounds its operations */
    LAG_MAX = 2,      /* turns from a chunk's first stage to its all-gather */
    RUNS = GATHERS_MAX + LAG_MAX + 1
};
_Static_assert(DPT_STAGE_COUNT *RUNS < DPT_COMM_OPS_MAX, "all stages of these chunks");

/* A chunk under way. */
struct chunk_run {
    struct dpt_comm_op *op[DPT_STAGE_COUNT];
    struct dpt_comm_xfer *xfers[DPT_STAGE_COUNT]; /* [n_transfers] without transfers of no bytes */
    int *xfer_of[DPT_STAGE_COUNT];                /* -1: no bytes */
};

struct host_reducer {
    struct dpt_reducer base;
    struct dpt_host_reducer_spec spec;
    struct dpt_rank_transfers transfers;
    int n_chunks;
    struct dpt_host_chunk *chunks; /* bucket by bucket */
    int *first_chunk;              /* [n_buckets + 1] */
    struct chunk_run run[RUNS];    /* chunk i uses run i mod RUNS */
    struct dpt_partial *partials;
    float **copies; /* [world size] addresses in peers' memory that also get a sum */
    float *scratch;
    struct dpt_comm_mem *staging[DPT_HOST_REDUCER_STAGINGS];
    struct dpt_comm_mem *narrow; /* sums of this rank's pieces in `wire`, for other hosts */
};

enum dpt_status dpt_host_reducer_buffer_create(struct dpt_comm_listener *listener, int index,
                                               int64_t numel, struct dpt_comm_mem **ret,
                                               struct dpt_err *err)
{
    const size_t bytes = (size_t)numel * sizeof(float);
    return dpt_comm_mem_create_for(listener, index == 0 ? DPT_MEMORY_GRADIENT : DPT_MEMORY_SUMS,
                                   index == 0, bytes, ret, err);
}

static enum dpt_status cut_chunks(struct host_reducer *r, struct dpt_err *err)
{
    int64_t n = 0;
    for (int b = 0; b < r->base.of.n_buckets; b++)
        n += dpt_host_chunks_of(&r->spec, &r->base.of.buckets[b]);
    if (n > INT32_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "all-reduce of %lld chunks", (long long)n);
    r->chunks = calloc((size_t)n + 1, sizeof *r->chunks);
    r->first_chunk = calloc((size_t)r->base.of.n_buckets + 1, sizeof *r->first_chunk);
    if (!r->chunks || !r->first_chunk)
        return dpt_fail_nomem(err, "all-reduce");
    for (int b = 0; b < r->base.of.n_buckets; b++) {
        const int64_t of_bucket = dpt_host_chunks_of(&r->spec, &r->base.of.buckets[b]);
        for (int64_t i = 0; i < of_bucket; i++)
            r->chunks[r->n_chunks++] = dpt_host_chunk(&r->spec, b, i, of_bucket);
        r->first_chunk[b + 1] = r->n_chunks;
    }
    DPT_ASSERT(r->n_chunks == n);
    return DPT_OK;
}

/* The first element of `piece` of chunk `c` in the flat gradient; its length goes to *ret_numel. */
static int64_t piece_at(const struct host_reducer *r, int c, int piece, int64_t *ret_numel)
{
    const struct dpt_interval range = dpt_host_chunk_piece(&r->spec, &r->chunks[c], piece);
    *ret_numel = range.end - range.first;
    return range.first;
}

static bool make_run(struct host_reducer *r, struct chunk_run *run)
{
    bool made = true;
    for (int s = 0; s < DPT_STAGE_COUNT; s++) {
        const size_t n = (size_t)r->transfers.stage[s].n_transfers + 1;
        run->xfers[s] = calloc(n, sizeof *run->xfers[s]);
        run->xfer_of[s] = calloc(n, sizeof *run->xfer_of[s]);
        made = made && run->xfers[s] && run->xfer_of[s];
    }
    return made;
}

/* Bytes of an element between hosts. */
static size_t far_bytes(const struct host_reducer *r)
{
    return dpt_dtype_bytes(r->base.of.wire);
}

static bool is_narrow(const struct host_reducer *r, const struct dpt_rank_transfer *transfer)
{
    return transfer->far && r->base.of.wire != DPT_F32;
}

static enum dpt_status make_registered(struct host_reducer *r, struct dpt_err *err)
{
    const struct dpt_host_reducer_memory bytes = dpt_host_reducer_memory(&r->spec);
    int64_t numel, at = 0;
    for (int i = 0; bytes.staging > 0 && i < DPT_HOST_REDUCER_STAGINGS; i++)
        DPT_TRY(dpt_comm_mem_create(r->spec.listener, bytes.staging, &r->staging[i], err));
    if (bytes.narrow == 0)
        return DPT_OK;
    for (int c = 0; c < r->n_chunks; c++) {
        r->chunks[c].narrow_at = at;
        (void)piece_at(r, c, r->base.of.rank, &numel);
        at += numel;
    }
    return dpt_comm_mem_create(r->spec.listener, bytes.narrow, &r->narrow, err);
}

static enum dpt_status make_host_reducer(struct host_reducer *r, struct dpt_err *err)
{
    r->partials = calloc(DPT_TREE_SUM_PARTS_MAX, sizeof *r->partials);
    r->scratch = aligned_alloc(64, dpt_tree_sum_scratch_numel() * sizeof *r->scratch);
    r->copies = calloc((size_t)r->base.of.world->size, sizeof *r->copies);
    if (!r->partials || !r->copies || !r->scratch)
        return dpt_fail_nomem(err, "all-reduce");
    DPT_TRY(dpt_reducer_alloc_ready(&r->base, err));
    DPT_TRY(dpt_rank_transfers_init(&r->transfers, r->base.of.world, r->base.of.rank,
                                    !r->base.of.shards, err));
    DPT_TRY(cut_chunks(r, err));
    for (int i = 0; i < RUNS; i++)
        if (!make_run(r, &r->run[i]))
            return dpt_fail_nomem(err, "plan of the all-reduce");
    return make_registered(r, err);
}

/* Changes a transfer to or from another host to 16 bits. Sums that another rank will add are packed
 * in place: this rank no longer needs them. */
static void narrow_xfer(struct host_reducer *r, int c, enum dpt_stage s,
                        const struct dpt_rank_transfer *transfer, struct dpt_comm_xfer *x)
{
    const int64_t numel = (int64_t)(x->bytes / sizeof(float));
    float *values = x->mem ? (float *)dpt_comm_mem_data(x->mem) + x->offset / sizeof(float) : NULL;
    x->bytes = (size_t)numel * far_bytes(r);
    if (transfer->dir == DPT_COMM_RECV) {
        x->offset =
            (size_t)((char *)dpt_wire_inbox(numel, values) - (char *)dpt_comm_mem_data(x->mem));
    } else if (transfer->dir == DPT_COMM_SEND && s == DPT_STAGE_CROSS) {
        dpt_wire_pack(r->spec.ops, r->base.of.stream, r->base.of.wire, numel, values);
    } else if (transfer->dir == DPT_COMM_SEND) {
        x->mem = r->narrow;
        x->offset = (size_t)r->chunks[c].narrow_at * far_bytes(r);
    }
}

/* Packs the sum of this rank's piece of a chunk for other hosts. */
static void narrow_own(struct host_reducer *r, int c)
{
    int64_t numel;
    const int64_t at = piece_at(r, c, r->base.of.rank, &numel);
    const float *sum = (float *)dpt_comm_mem_data(r->spec.buffers[0]) + at;
    if (r->narrow && numel > 0)
        r->spec.ops->cast(r->base.of.stream, numel, sum, r->base.of.wire,
                          (char *)dpt_comm_mem_data(r->narrow) +
                              (size_t)r->chunks[c].narrow_at * far_bytes(r));
}

/* Posts the transfers of one stage of a chunk; a stage without transfers has no op. */
static enum dpt_status post_stage(struct host_reducer *r, struct dpt_comm *comm, int c,
                                  enum dpt_stage s, struct dpt_err *err)
{
    struct chunk_run *run = &r->run[c % RUNS];
    const struct dpt_stage_transfers *plan = &r->transfers.stage[s];
    int n = 0;
    size_t staged = 0;
    for (int i = 0; i < plan->n_transfers; i++) {
        const struct dpt_rank_transfer *transfer = &plan->transfers[i];
        int64_t numel, at = piece_at(r, c, transfer->piece, &numel);
        run->xfer_of[s][i] = -1;
        if (numel == 0)
            continue;
        run->xfer_of[s][i] = n;
        run->xfers[s][n++] = (struct dpt_comm_xfer){
            .dir = transfer->dir,
            .peer = transfer->peer,
            .mem = transfer->buffer >= 0 ? r->spec.buffers[transfer->buffer] : NULL,
            .offset = transfer->buffer >= 0 ? (size_t)at * sizeof(float) : 0,
            .bytes = (size_t)numel * sizeof(float),
            .write = transfer->write};
        if (is_narrow(r, transfer))
            narrow_xfer(r, c, s, transfer, &run->xfers[s][n - 1]);
        if (s == DPT_STAGE_CROSS && transfer->dir == DPT_COMM_LEND) {
            run->xfers[s][n - 1].mem = r->staging[c % DPT_HOST_REDUCER_STAGINGS];
            run->xfers[s][n - 1].offset = staged;
            staged += run->xfers[s][n - 1].bytes;
            DPT_ASSERT(staged <= dpt_comm_mem_bytes(run->xfers[s][n - 1].mem));
        }
    }
    if (n == 0)
        return DPT_OK;
    DPT_TRY(dpt_stream_sync(r->base.of.stream, err));
    return dpt_comm_exchange(comm, run->xfers[s], n, &run->op[s], err);
}

static void sum_piece(struct host_reducer *r, int c, enum dpt_stage s,
                      const struct dpt_piece_sum *g)
{
    const struct chunk_run *run = &r->run[c % RUNS];
    int n_copies = 0;
    int64_t numel, at = piece_at(r, c, g->piece, &numel);
    if (numel == 0)
        return;
    for (int p = 0; p < g->n_parts; p++) {
        const struct dpt_part_source *source = &g->parts[p];
        const struct dpt_comm_xfer *lent =
            source->buffer >= 0 ? NULL : &run->xfers[s][run->xfer_of[s][source->transfer]];
        const bool narrow =
            lent && is_narrow(r, &r->transfers.stage[s].transfers[source->transfer]);
        const void *data =
            lent ? lent->lent : (float *)dpt_comm_mem_data(r->spec.buffers[source->buffer]) + at;
        r->partials[p] =
            (struct dpt_partial){source->node, narrow ? NULL : data, narrow ? data : NULL};
        if (lent && lent->lent_write)
            r->copies[n_copies++] = lent->lent_write;
    }
    float *out[DPT_COVER_MAX];
    for (int o = 0; o < g->n_out; o++)
        out[o] = (float *)dpt_comm_mem_data(r->spec.buffers[o]) + at;
    const struct dpt_tree_sum sum = {.parts = r->partials,
                                     .n_parts = g->n_parts,
                                     .out_nodes = g->out,
                                     .out_data = out,
                                     .n_out = g->n_out,
                                     .copies = r->copies,
                                     .n_copies = n_copies,
                                     .dtype = r->base.of.wire,
                                     .numel = numel,
                                     .scratch = r->scratch};
    dpt_tree_sum_add(r->spec.ops, r->base.of.stream, &sum);
}

static void note_bucket(const struct host_reducer *r, int c)
{
    dpt_present_work_note(r->base.of.shards ? DPT_WORK_REDUCE_SCATTER : DPT_WORK_ALL_REDUCE,
                          r->chunks[c].bucket, -1);
}

/* Waits for the parts of one stage of a chunk, and adds them. */
static enum dpt_status finish_stage(struct host_reducer *r, struct dpt_comm *comm, int c,
                                    enum dpt_stage s, struct dpt_err *err)
{
    struct dpt_comm_op **op = &r->run[c % RUNS].op[s];
    const int64_t began_ns = *op && s == DPT_STAGE_CROSS ? dpt_trace_begin() : 0;
    enum dpt_status status;
    note_bucket(r, c);
    do
        status = *op ? dpt_comm_poll_received(comm, *op, -1, err) : DPT_OK;
    while (status == DPT_INPROGRESS);
    /* The communicator traces the waits for peers within it. Ranks of one host lend their memory:
     * the sum below moves the bytes. */
    dpt_trace_end_named(began_ns, "receive from other hosts");
    if (status == DPT_OK && *op)
        status = dpt_comm_write_begin(comm, *op, err);
    DPT_TRY(status);
    for (int i = 0; i < r->transfers.stage[s].n_sums; i++)
        sum_piece(r, c, s, &r->transfers.stage[s].sums[i]);
    status = dpt_stream_sync(r->base.of.stream, err);
    dpt_comm_write_end(comm);
    if (status == DPT_OK && *op)
        dpt_comm_op_free(comm, op);
    return status;
}

/* Unpacks the sums of a chunk that other hosts have sent. */
static enum dpt_status widen_arrived(struct host_reducer *r, int c, struct dpt_err *err)
{
    const struct dpt_stage_transfers *plan = &r->transfers.stage[DPT_STAGE_GATHER];
    for (int i = 0; i < plan->n_transfers; i++) {
        const struct dpt_rank_transfer *transfer = &plan->transfers[i];
        int64_t numel, at = piece_at(r, c, transfer->piece, &numel);
        if (transfer->dir == DPT_COMM_RECV && numel > 0 && is_narrow(r, transfer))
            dpt_wire_unpack(r->spec.ops, r->base.of.stream, r->base.of.wire, numel,
                            (float *)dpt_comm_mem_data(r->spec.buffers[transfer->buffer]) + at);
    }
    return dpt_stream_sync(r->base.of.stream, err);
}

/* Waits until the all-gather of chunk `c` has ended: everything has arrived, and the sent memory
 * may be written again. Then unpacks the sums of other hosts. */
static enum dpt_status end_gather(struct host_reducer *r, struct dpt_comm *comm, int c,
                                  struct dpt_err *err)
{
    struct dpt_comm_op **op = &r->run[c % RUNS].op[DPT_STAGE_GATHER];
    if (!*op)
        return DPT_OK;
    enum dpt_status status;
    note_bucket(r, c);
    do
        status = dpt_comm_poll(comm, *op, -1, err);
    while (status == DPT_INPROGRESS);
    if (status != DPT_OK)
        return status;
    dpt_comm_op_free(comm, op);
    return widen_arrived(r, c, err);
}

/* Posts the all-gather of chunk `c`. Before that it ends the all-gather of chunk c - GATHERS_MAX,
 * so that at most GATHERS_MAX are under way; `first` is the first chunk of this run. */
static enum dpt_status post_gather(struct host_reducer *r, struct dpt_comm *comm, int first, int c,
                                   struct dpt_err *err)
{
    if (c - first >= GATHERS_MAX)
        DPT_TRY(end_gather(r, comm, c - GATHERS_MAX, err));
    narrow_own(r, c);
    return post_stage(r, comm, c, DPT_STAGE_GATHER, err);
}

/* Waits until the bucket of chunk `c` is complete. A bucket is traced from here until the wait for
 * the next one, so that waits for the own computation count for none. */
static enum dpt_status enter_bucket(struct host_reducer *r, struct dpt_comm *comm, int first, int c,
                                    int64_t *began_ns, struct dpt_err *err)
{
    if (c > first && r->chunks[c].bucket == r->chunks[c - 1].bucket)
        return DPT_OK;
    if (c > first)
        dpt_reducer_trace_bucket(&r->base, *began_ns, r->chunks[c - 1].bucket);
    DPT_TRY(dpt_reducer_await_ready(&r->base, comm, r->chunks[c].bucket, err));
    *began_ns = dpt_trace_begin();
    return DPT_OK;
}

/* Reduces chunks [first, end), each when its bucket is complete. */
static enum dpt_status run_chunks(struct host_reducer *r, struct dpt_comm *comm, int first, int end,
                                  struct dpt_err *err)
{
    const bool cross = r->transfers.cross;
    const int gather_lag = cross ? LAG_MAX : 0;
    int64_t began_ns = 0;
    for (int turn = first; turn < end + LAG_MAX; turn++) {
        const int gather = turn - gather_lag;
        if (turn < end) {
            DPT_TRY(enter_bucket(r, comm, first, turn, &began_ns, err));
            DPT_TRY(post_stage(r, comm, turn, DPT_STAGE_LOCAL, err));
        }
        if (!cross && gather < end)
            DPT_TRY(post_gather(r, comm, first, gather, err));
        if (turn - 1 >= first && turn - 1 < end) {
            DPT_TRY(finish_stage(r, comm, turn - 1, DPT_STAGE_LOCAL, err));
            if (cross)
                DPT_TRY(post_stage(r, comm, turn - 1, DPT_STAGE_CROSS, err));
        }
        if (cross && gather >= first) {
            DPT_TRY(finish_stage(r, comm, gather, DPT_STAGE_CROSS, err));
            DPT_TRY(post_gather(r, comm, first, gather, err));
        }
    }
    for (int c = end - first > GATHERS_MAX ? end - GATHERS_MAX : first; c < end; c++)
        DPT_TRY(end_gather(r, comm, c, err));
    if (end > first)
        dpt_reducer_trace_bucket(&r->base, began_ns, r->chunks[end - 1].bucket);
    return DPT_OK;
}

static struct host_reducer *host_of(struct dpt_reducer *reducer)
{
    return (struct host_reducer *)reducer;
}

static enum dpt_status host_run_buckets(struct dpt_reducer *reducer, struct dpt_comm_thread *thread,
                                        int first, int end, struct dpt_err *err)
{
    struct host_reducer *r = host_of(reducer);
    return run_chunks(r, dpt_comm_thread_comm(thread), r->first_chunk[first], r->first_chunk[end],
                      err);
}

static void host_cost(const struct dpt_reducer *reducer, struct dpt_strategy_cost *cost)
{
    const struct host_reducer *r = (const struct host_reducer *)reducer;
    for (int c = 0; c < r->n_chunks; c++) {
        const struct dpt_host_chunk *chunk = &r->chunks[c];
        if (chunk->part == 0) /* the first part counts for the whole bucket */
            cost->sent_bytes +=
                dpt_reduce_bytes_sent(r->base.of.world, chunk->end - chunk->first, r->base.of.block,
                                      r->base.of.rank, !r->base.of.shards, (int)far_bytes(r));
    }
}

static void host_release(struct dpt_reducer *reducer)
{
    struct host_reducer *r = host_of(reducer);
    for (int i = 0; i < RUNS; i++)
        for (int s = 0; s < DPT_STAGE_COUNT; s++) {
            free(r->run[i].xfers[s]);
            free(r->run[i].xfer_of[s]);
        }
    for (int i = 0; i < DPT_HOST_REDUCER_STAGINGS; i++)
        dpt_comm_mem_destroy(&r->staging[i]);
    dpt_comm_mem_destroy(&r->narrow);
    dpt_rank_transfers_fini(&r->transfers);
    free(r->chunks);
    free(r->first_chunk);
    free(r->partials);
    free(r->copies);
    free(r->scratch);
}

static const struct dpt_reducer_ops host_reducer = {.release = host_release,
                                                    .begin = dpt_reducer_clear_ready,
                                                    .ready = dpt_reducer_set_ready,
                                                    .run_buckets = host_run_buckets,
                                                    .cost = host_cost};

enum dpt_status dpt_host_reducer_create(const struct dpt_host_reducer_spec *spec,
                                        struct dpt_reducer **ret, struct dpt_err *err)
{
    struct host_reducer *r = calloc(1, sizeof *r);
    if (!r)
        return dpt_fail_nomem(err, "all-reduce");
    r->base = (struct dpt_reducer){.ops = &host_reducer, .of = spec->of};
    r->spec = *spec;
    struct dpt_reducer *base = &r->base;
    const enum dpt_status status = make_host_reducer(r, err);
    if (status != DPT_OK)
        dpt_reducer_destroy(&base);
    else
        *ret = base;
    return status;
}
