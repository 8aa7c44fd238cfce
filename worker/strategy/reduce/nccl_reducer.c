/* The pipeline of buckets through NCCL (nccl_reducer.h). */
#include "worker/strategy/reduce/nccl_reducer.h"

#include "checkpoint/layout/layout.h"
#include "kernels/ops.h"
#include "worker/comm/nccl_comm.h"
#include "worker/strategy/transport/buffer.h"
#include "worker/trace/present_work.h"
#include "worker/trace/span.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { STAGINGS = 2 /* contributions of one bucket arrive while those of another are added */ };

/* A subtree's sum of a piece, at the piece's owner. */
struct part {
    int rank;
    int at; /* index of the sum among the rank's sums */
};

struct bucket {
    struct dpt_nccl_piece *to_owners, *to_all; /* borrowed by operations */
    int n_to_owners, n_to_all;
    int64_t own_first, own_numel; /* this rank's piece */
    struct dpt_trace_span span_to_owners, span_to_all;
    struct dpt_event *event;
    atomic_int ready;
};

struct nccl_reducer {
    struct dpt_reducer base;
    struct dpt_nccl_reducer_spec spec;
    int n_own; /* sums of this rank */
    int n_parts;
    struct part *parts; /* [n_parts], of every sum, in lane order */
    struct bucket *buckets;
    /* Memory of the device. */
    /* Other ranks' parts of this rank's piece, one after another. */
    struct dpt_buffer staging[STAGINGS];
    /* const float *[n_buckets][n_parts] addresses of the parts */
    struct dpt_buffer lists;
    struct dpt_buffer joins; /* uint8_t [n_parts] */
};

static struct dpt_interval bucket_piece(const struct nccl_reducer *r, int bucket, int rank)
{
    const struct dpt_bucket *b = &r->base.of.buckets[bucket];
    const struct dpt_interval piece =
        dpt_layout_piece(b->end - b->first, r->base.of.block, r->base.of.world->size, rank);
    return (struct dpt_interval){b->first + piece.first, b->first + piece.end};
}

static enum dpt_status out_of_memory(struct dpt_err *err)
{
    return dpt_fail_nomem(err, "all-reduce between GPUs");
}

/* ---- allocation and plan of a generation ---- */

/* Lists the sums of all ranks in lane order, and the number of joins after each. */
static enum dpt_status list_parts(struct nccl_reducer *r, uint8_t **ret_joins, struct dpt_err *err)
{
    const struct dpt_world *world = r->base.of.world;
    const struct dpt_range all = {0, world->lanes};
    r->parts = calloc((size_t)world->size * DPT_COVER_MAX, sizeof *r->parts);
    uint8_t *joins = calloc((size_t)world->size * DPT_COVER_MAX, sizeof *joins);
    *ret_joins = joins;
    if (!r->parts || !joins)
        return out_of_memory(err);
    for (int p = 0; p < world->size; p++) {
        struct dpt_range nodes[DPT_COVER_MAX];
        const int rank = world->rank_of_position[p];
        const int n =
            dpt_tree_cover(world->lanes, dpt_position_lanes(world->lanes, world->size, p), nodes);
        for (int i = 0; i < n; i++) {
            joins[r->n_parts] = (uint8_t)dpt_tree_joins_at(world->lanes, all, nodes[i]);
            r->parts[r->n_parts++] = (struct part){rank, i};
        }
        if (rank == r->base.of.rank)
            r->n_own = n;
    }
    return DPT_OK;
}

static void add_piece(struct dpt_nccl_piece *pieces, int *n, enum dpt_nccl_kind kind, int peer,
                      float *at, int64_t numel)
{
    if (numel > 0)
        pieces[(*n)++] = (struct dpt_nccl_piece){.kind = kind,
                                                 .peer = peer,
                                                 .from = at,
                                                 .to = at,
                                                 .count = (size_t)numel * sizeof(float)};
}

/* The trace of an operation on a bucket. `input`, `output`: elements as PyTorch counts them. */
static struct dpt_trace_span bucket_span(const struct nccl_reducer *r, int bucket,
                                         enum dpt_trace_collective collective, int64_t input,
                                         int64_t output)
{
    return (struct dpt_trace_span){.kind = DPT_TRACE_DEVICE_COLLECTIVE,
                                   .collective = collective,
                                   .dtype = "Float",
                                   .key = {DPT_TRACE_COLLECTIVE_KEYS, "bucket"},
                                   .value = {input, output, r->base.of.world->size, bucket}};
}

static enum dpt_status plan_all_reduce(struct nccl_reducer *r, int index, struct dpt_err *err)
{
    const struct dpt_bucket *whole = &r->base.of.buckets[index];
    struct bucket *b = &r->buckets[index];
    float *at = r->spec.buffers[0] + whole->first;
    b->to_all = calloc(1, sizeof *b->to_all);
    if (!b->to_all)
        return out_of_memory(err);
    b->to_all[b->n_to_all++] = (struct dpt_nccl_piece){.kind = DPT_NCCL_ALL_REDUCE,
                                                       .from = at,
                                                       .to = at,
                                                       .count = (size_t)(whole->end - whole->first),
                                                       .dtype = DPT_NCCL_F32};
    b->span_to_all = bucket_span(r, index, DPT_TRACE_ALL_REDUCE, whole->end - whole->first,
                                 whole->end - whole->first);
    return dpt_event_create(r->spec.device, &b->event, err);
}

/* Ranks first send each piece to its owner and then, unless the owners keep it, the sums to all. */
static void label_bucket(struct nccl_reducer *r, int index)
{
    struct bucket *b = &r->buckets[index];
    const int64_t numel = r->base.of.buckets[index].end - r->base.of.buckets[index].first;
    b->span_to_owners =
        bucket_span(r, index, DPT_TRACE_REDUCE_SCATTER, numel * r->n_own, b->own_numel);
    b->span_to_all = bucket_span(r, index, DPT_TRACE_ALL_GATHER, b->own_numel, numel);
}

/* Plans the transfers of a bucket, and fills `list` with the addresses of the parts to add. Between
 * two ranks sums go in the order of the sender's buffers. */
static enum dpt_status plan_bucket(struct nccl_reducer *r, int index, const float **list,
                                   struct dpt_err *err)
{
    struct bucket *b = &r->buckets[index];
    const int size = r->base.of.world->size, me = r->base.of.rank;
    const struct dpt_interval own = bucket_piece(r, index, me);
    float *staged = r->staging[index % STAGINGS].data;
    b->own_first = own.first;
    b->own_numel = own.end - own.first;
    label_bucket(r, index);
    b->to_owners = calloc((size_t)(size * r->n_own + r->n_parts), sizeof *b->to_owners);
    b->to_all = calloc((size_t)size * 2, sizeof *b->to_all);
    if (!b->to_owners || !b->to_all)
        return out_of_memory(err);
    for (int q = 0; q < size; q++) {
        const struct dpt_interval piece = bucket_piece(r, index, q);
        for (int i = 0; i < r->n_own && q != me; i++)
            add_piece(b->to_owners, &b->n_to_owners, DPT_NCCL_SEND, q,
                      r->spec.buffers[i] + piece.first, piece.end - piece.first);
        if (q == me || r->base.of.shards)
            continue;
        add_piece(b->to_all, &b->n_to_all, DPT_NCCL_SEND, q, r->spec.buffers[0] + own.first,
                  b->own_numel);
        add_piece(b->to_all, &b->n_to_all, DPT_NCCL_RECV, q, r->spec.buffers[0] + piece.first,
                  piece.end - piece.first);
    }
    for (int p = 0; p < r->n_parts; p++) {
        const struct part *part = &r->parts[p];
        if (part->rank == me) {
            list[p] = r->spec.buffers[part->at] + own.first;
            continue;
        }
        list[p] = staged;
        add_piece(b->to_owners, &b->n_to_owners, DPT_NCCL_RECV, part->rank, staged, b->own_numel);
        staged += b->own_numel;
    }
    if (b->n_to_owners > DPT_NCCL_PIECES_MAX)
        return dpt_fail(err, DPT_EOVERFLOW,
                        "%d ranks reduce %d sums of lanes by NCCL, which is more than %d transfers "
                        "at once: choose train.lanes so that ranks divide it",
                        size, r->n_parts, DPT_NCCL_PIECES_MAX);
    return dpt_event_create(r->spec.device, &b->event, err);
}

static enum dpt_status make_on_device(struct nccl_reducer *r, size_t bytes,
                                      struct dpt_buffer *buffer, struct dpt_err *err)
{
    return dpt_buffer_make(NULL, r->spec.device, DPT_MEMORY_COMM, bytes, buffer, err);
}

static size_t lists_bytes(const struct nccl_reducer *r)
{
    return (size_t)r->base.of.n_buckets * (size_t)r->n_parts * sizeof(float *);
}

static enum dpt_status make_staging(struct nccl_reducer *r, struct dpt_err *err)
{
    int64_t most = 0;
    for (int b = 0; b < r->base.of.n_buckets; b++) {
        const struct dpt_interval own = bucket_piece(r, b, r->base.of.rank);
        most = own.end - own.first > most ? own.end - own.first : most;
    }
    const size_t bytes = (size_t)most * (size_t)(r->n_parts - r->n_own) * sizeof(float);
    for (int i = 0; i < STAGINGS; i++)
        DPT_TRY(make_on_device(r, bytes, &r->staging[i], err));
    return DPT_OK;
}

static enum dpt_status plan_buckets(struct nccl_reducer *r, const uint8_t *joins,
                                    const float **lists, struct dpt_err *err)
{
    const struct dpt_ops *ops = dpt_device_ops(r->spec.device);
    for (int b = 0; b < r->base.of.n_buckets; b++)
        DPT_TRY(plan_bucket(r, b, lists + (size_t)b * (size_t)r->n_parts, err));
    DPT_TRY(make_on_device(r, lists_bytes(r), &r->lists, err));
    DPT_TRY(make_on_device(r, (size_t)r->n_parts, &r->joins, err));
    ops->copy(r->base.of.stream, lists_bytes(r), lists, r->lists.data);
    ops->copy(r->base.of.stream, (size_t)r->n_parts, joins, r->joins.data);
    return dpt_stream_sync(r->base.of.stream, err);
}

static enum dpt_status make_nccl_reducer(struct nccl_reducer *r, uint8_t **joins,
                                         const float ***lists, struct dpt_err *err)
{
    r->buckets = calloc((size_t)r->base.of.n_buckets, sizeof *r->buckets);
    if (!r->buckets)
        return out_of_memory(err);
    DPT_TRY(list_parts(r, joins, err));
    if (r->spec.any_order) {
        DPT_ASSERT(r->n_own == 1 && r->base.of.wire == DPT_F32 && !r->base.of.shards);
        for (int b = 0; b < r->base.of.n_buckets; b++)
            DPT_TRY(plan_all_reduce(r, b, err));
        return DPT_OK;
    }
    DPT_TRY(make_staging(r, err));
    *lists = malloc(lists_bytes(r));
    if (!*lists)
        return out_of_memory(err);
    return plan_buckets(r, *joins, *lists, err);
}

static size_t bytes_sent(const struct dpt_nccl_piece *pieces, int n, int size)
{
    size_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += dpt_nccl_piece_bytes_sent(&pieces[i], size);
    return bytes;
}

/* ---- on the communication thread ---- */

static enum dpt_status await_ticket(struct dpt_nccl_comm *nccl, uint64_t ticket,
                                    struct dpt_err *err)
{
    enum dpt_status status;
    do
        status = dpt_nccl_comm_poll(nccl, 0, ticket, -1, err);
    while (status == DPT_INPROGRESS);
    return status;
}

/* Waits until the main thread has marked the bucket as ready. Operations in flight go on meanwhile;
 * `last` is the last of them, 0: none is in flight. */
static enum dpt_status await_ready(struct dpt_comm_thread *thread, struct bucket *b, uint64_t last,
                                   struct dpt_err *err)
{
    while (!atomic_load_explicit(&b->ready, memory_order_acquire)) {
        const enum dpt_status status =
            last > 0 ? dpt_nccl_comm_poll(dpt_comm_thread_nccl(thread), 0, last, -1, err)
                     : dpt_comm_poll_woken(dpt_comm_thread_comm(thread), -1, err);
        if (status == DPT_OK)
            last = 0; /* and look again: a wake may have come at the same time */
        else if (status != DPT_INPROGRESS)
            return status;
    }
    return DPT_OK;
}

/* Adds the contributions to this rank's piece. */
static enum dpt_status add_parts(struct nccl_reducer *r, int index, struct dpt_err *err)
{
    const struct bucket *b = &r->buckets[index];
    const float *const *lists = r->lists.data;
    const struct dpt_ordered_sum sum = {.n = b->own_numel,
                                        .n_parts = r->n_parts,
                                        .parts = lists + (size_t)index * (size_t)r->n_parts,
                                        .joins = r->joins.data,
                                        .dtype = r->base.of.wire,
                                        .dst = r->spec.buffers[0] + b->own_first};
    if (b->own_numel > 0)
        dpt_device_ops(r->spec.device)->ordered_sum(r->base.of.stream, &sum);
    return dpt_stream_sync(r->base.of.stream, err);
}

static void note_bucket(const struct nccl_reducer *r, int bucket)
{
    dpt_present_work_note(r->base.of.shards ? DPT_WORK_REDUCE_SCATTER : DPT_WORK_ALL_REDUCE, bucket,
                          -1);
}

/* Reduces buckets by NCCL's own all-reduce. */
static enum dpt_status all_reduce_buckets(struct nccl_reducer *r, struct dpt_comm_thread *thread,
                                          int first, int end, struct dpt_err *err)
{
    struct dpt_nccl_comm *nccl = dpt_comm_thread_nccl(thread);
    uint64_t last = 0;
    for (int i = first; i < end; i++) {
        struct bucket *b = &r->buckets[i];
        dpt_present_work_note(DPT_WORK_AWAIT_OWN, i, -1);
        DPT_TRY(await_ready(thread, b, last, err));
        DPT_TRY(dpt_nccl_comm_post_traced(
            nccl, 0, &(struct dpt_nccl_op){b->to_all, b->n_to_all, dpt_event_native(b->event)},
            &b->span_to_all, &last, err));
    }
    note_bucket(r, end - 1);
    return last > 0 ? await_ticket(nccl, last, err) : DPT_OK;
}

static struct nccl_reducer *nccl_of(struct dpt_reducer *reducer)
{
    return (struct nccl_reducer *)reducer;
}

static enum dpt_status nccl_run_buckets(struct dpt_reducer *reducer, struct dpt_comm_thread *thread,
                                        int first, int end, struct dpt_err *err)
{
    struct nccl_reducer *r = nccl_of(reducer);
    struct dpt_nccl_comm *nccl = dpt_comm_thread_nccl(thread);
    uint64_t last = 0, contributed = 0;
    if (r->spec.any_order)
        return all_reduce_buckets(r, thread, first, end, err);
    for (int turn = first; turn <= end; turn++) {
        const uint64_t before = contributed;
        if (turn < end) {
            struct bucket *b = &r->buckets[turn];
            dpt_present_work_note(DPT_WORK_AWAIT_OWN, turn, -1);
            DPT_TRY(await_ready(thread, b, last, err));
            if (b->n_to_owners > 0)
                DPT_TRY(dpt_nccl_comm_post_traced(
                    nccl, 0,
                    &(struct dpt_nccl_op){b->to_owners, b->n_to_owners, dpt_event_native(b->event)},
                    &b->span_to_owners, &contributed, err));
            else
                dpt_event_await(b->event, r->base.of.stream);
        }
        if (turn > first) {
            const struct bucket *b = &r->buckets[turn - 1];
            note_bucket(r, turn - 1);
            if (before > 0)
                DPT_TRY(await_ticket(nccl, before, err));
            DPT_TRY(add_parts(r, turn - 1, err));
            if (b->n_to_all > 0)
                DPT_TRY(dpt_nccl_comm_post_traced(
                    nccl, 0, &(struct dpt_nccl_op){b->to_all, b->n_to_all, NULL}, &b->span_to_all,
                    &last, err));
        }
        last = contributed > last ? contributed : last;
    }
    return last > 0 ? await_ticket(nccl, last, err) : DPT_OK;
}

/* ---- on the main thread ---- */

static bool nccl_begin(struct dpt_reducer *reducer, int64_t step)
{
    struct nccl_reducer *r = nccl_of(reducer);
    (void)step;
    for (int b = 0; b < r->base.of.n_buckets; b++)
        atomic_store_explicit(&r->buckets[b].ready, 0, memory_order_relaxed);
    return true;
}

static enum dpt_status nccl_ready(struct dpt_reducer *reducer, int bucket, struct dpt_err *err)
{
    struct nccl_reducer *r = nccl_of(reducer);
    (void)err;
    dpt_event_record(r->buckets[bucket].event, r->spec.main_stream);
    atomic_store_explicit(&r->buckets[bucket].ready, 1, memory_order_release);
    dpt_comm_thread_wake(r->base.of.thread);
    return DPT_OK;
}

static void nccl_cost(const struct dpt_reducer *reducer, struct dpt_strategy_cost *cost)
{
    const struct nccl_reducer *r = (const struct nccl_reducer *)reducer;
    const int size = r->base.of.world->size;
    size_t bytes = 0;
    for (int b = 0; b < r->base.of.n_buckets; b++)
        bytes += bytes_sent(r->buckets[b].to_owners, r->buckets[b].n_to_owners, size) +
                 bytes_sent(r->buckets[b].to_all, r->buckets[b].n_to_all, size);
    cost->sent_bytes += (int64_t)bytes;
}

static void nccl_release(struct dpt_reducer *reducer)
{
    struct nccl_reducer *r = nccl_of(reducer);
    for (int b = 0; r->buckets && b < r->base.of.n_buckets; b++) {
        free(r->buckets[b].to_owners);
        free(r->buckets[b].to_all);
        dpt_event_destroy(&r->buckets[b].event);
    }
    for (int i = 0; i < STAGINGS; i++)
        dpt_buffer_free(&r->staging[i]);
    dpt_buffer_free(&r->lists);
    dpt_buffer_free(&r->joins);
    free(r->buckets);
    free(r->parts);
}

static const struct dpt_reducer_ops nccl_reducer = {.release = nccl_release,
                                                    .begin = nccl_begin,
                                                    .ready = nccl_ready,
                                                    .run_buckets = nccl_run_buckets,
                                                    .cost = nccl_cost};

enum dpt_status dpt_nccl_reducer_create(const struct dpt_nccl_reducer_spec *spec,
                                        struct dpt_reducer **ret, struct dpt_err *err)
{
    struct nccl_reducer *r = calloc(1, sizeof *r);
    uint8_t *joins = NULL;
    const float **lists = NULL;
    if (!r)
        return out_of_memory(err);
    r->base = (struct dpt_reducer){.ops = &nccl_reducer, .of = spec->of};
    r->spec = *spec;
    struct dpt_reducer *base = &r->base;
    const enum dpt_status status = make_nccl_reducer(r, &joins, &lists, err);
    free(joins);
    free(lists);
    if (status != DPT_OK)
        dpt_reducer_destroy(&base);
    else
        *ret = base;
    return status;
}
