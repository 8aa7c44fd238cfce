/* The turns of a pattern over a communicator (pattern_run.h). */
#include "worker/strategy/transport/pattern_run.h"

#include <stdlib.h>
#include <string.h>

enum { GRID = 16 }; /* elements by which a part may be longer than wanted (dpt_pattern_part) */
_Static_assert(2 * DPT_PATTERN_RUN_PARTS < DPT_COMM_OPS_MAX, "two ops a part");

/* A move as this rank takes part in it. */
struct own_move {
    int peer, chunk;
    bool send, add;
    bool from_source; /* this rank's values of the chunk are still in `from` */
};

/* A part under way. */
struct part_slot {
    struct dpt_comm_xfer *in, *out; /* [moves of a step] */
    int *move_of;                   /* [moves of a step] the own_move of a transfer of `in` */
    int n_in;
    struct dpt_comm_op *in_op, *out_op;
};

struct dpt_pattern_run {
    struct dpt_pattern_run_spec spec;
    struct own_move *moves;
    int *first_move; /* [n_steps + 1] */
    bool *kept;      /* [n_chunks] chunks of the result that no move brings: they are copied */
    int n_slots;
    struct part_slot *slots; /* part k uses slot k mod n_slots */
    size_t slot_bytes;       /* staging of a slot */
    /* Of the collective under way. */
    struct dpt_comm *comm;
    struct dpt_interval range;
    int n_parts;
};

/* Only a ring gains by parts: the other patterns have one step. */
static int count_parts(const struct dpt_pattern *pattern, int64_t numel, int64_t part_numel)
{
    const struct dpt_interval chunk = dpt_pattern_part(numel, pattern->n_chunks, 0, 1, 0);
    if (pattern->spec.algorithm != DPT_ALGORITHM_RING || chunk.end <= part_numel)
        return 1;
    return (int)((chunk.end + part_numel - 1) / part_numel);
}

static int count_slots(const struct dpt_pattern *pattern)
{
    return pattern->n_steps < DPT_PATTERN_RUN_PARTS ? pattern->n_steps + 1 : DPT_PATTERN_RUN_PARTS;
}

/* The most sums that arrive at a rank in a step. */
static int most_sums(const struct dpt_pattern *pattern, int rank)
{
    int most = 0;
    for (int step = 0; step < pattern->n_steps; step++) {
        int n = 0;
        for (int i = pattern->first_move[step]; i < pattern->first_move[step + 1]; i++)
            n += pattern->moves[i].add && pattern->moves[i].to == rank;
        most = n > most ? n : most;
    }
    return most;
}

static size_t staging_of_slot(const struct dpt_pattern *pattern, int rank, int64_t numel_max,
                              int64_t part_numel)
{
    const struct dpt_interval chunk = dpt_pattern_part(numel_max, pattern->n_chunks, 0, 1, 0);
    const bool cut = count_parts(pattern, numel_max, part_numel) > 1;
    const int64_t longest = cut ? part_numel + GRID : chunk.end;
    return (size_t)most_sums(pattern, rank) * (size_t)longest * sizeof(float);
}

size_t dpt_pattern_run_staging(const struct dpt_pattern *pattern, int rank, int64_t numel_max,
                               int64_t part_numel)
{
    return staging_of_slot(pattern, rank, numel_max, part_numel) * (size_t)count_slots(pattern);
}

/* ---- the plan of this rank ---- */

/* Marks the chunks that a step has written. A second sum of a chunk continues the first. */
static void mark_written(struct dpt_pattern_run *run, int step, bool *written)
{
    for (int i = run->first_move[step]; i < run->first_move[step + 1]; i++) {
        struct own_move *move = &run->moves[i];
        if (move->send)
            continue;
        move->from_source = move->from_source && !written[move->chunk];
        written[move->chunk] = true;
    }
}

static void list_own_moves(struct dpt_pattern_run *run, bool *written)
{
    const struct dpt_pattern *pattern = run->spec.pattern;
    const int rank = run->spec.rank;
    int n = 0;
    for (int step = 0; step < pattern->n_steps; step++) {
        for (int i = pattern->first_move[step]; i < pattern->first_move[step + 1]; i++) {
            const struct dpt_move *move = &pattern->moves[i];
            const bool from_source = !written[move->chunk];
            if (move->from == rank)
                run->moves[n++] =
                    (struct own_move){move->to, move->chunk, true, false, from_source};
            if (move->to == rank)
                run->moves[n++] =
                    (struct own_move){move->from, move->chunk, false, move->add, from_source};
        }
        run->first_move[step + 1] = n;
        mark_written(run, step, written);
    }
    for (int chunk = 0; chunk < pattern->n_chunks; chunk++)
        run->kept[chunk] = !written[chunk] && dpt_pattern_needs(pattern, rank, chunk);
}

static bool make_slots(struct dpt_pattern_run *run)
{
    size_t most = 0;
    bool made = true;
    for (int step = 0; step < run->spec.pattern->n_steps; step++) {
        const size_t n = (size_t)(run->first_move[step + 1] - run->first_move[step]);
        most = n > most ? n : most;
    }
    for (int i = 0; i < run->n_slots; i++) {
        struct part_slot *slot = &run->slots[i];
        slot->in = calloc(most + 1, sizeof *slot->in);
        slot->out = calloc(most + 1, sizeof *slot->out);
        slot->move_of = calloc(most + 1, sizeof *slot->move_of);
        made = made && slot->in && slot->out && slot->move_of;
    }
    return made;
}

static bool make_run(struct dpt_pattern_run *run, bool *written)
{
    const struct dpt_pattern *pattern = run->spec.pattern;
    /* A move of a rank to itself does not exist, so a list has each move once. */
    const size_t most = (size_t)pattern->first_move[pattern->n_steps];
    run->n_slots = count_slots(pattern);
    run->slot_bytes =
        staging_of_slot(pattern, run->spec.rank, run->spec.numel_max, run->spec.part_numel);
    run->moves = calloc(most + 1, sizeof *run->moves);
    run->first_move = calloc((size_t)pattern->n_steps + 1, sizeof *run->first_move);
    run->kept = calloc((size_t)pattern->n_chunks, sizeof *run->kept);
    run->slots = calloc((size_t)run->n_slots, sizeof *run->slots);
    if (!run->moves || !run->first_move || !run->kept || !run->slots)
        return false;
    list_own_moves(run, written);
    return make_slots(run);
}

enum dpt_status dpt_pattern_run_create(const struct dpt_pattern_run_spec *spec,
                                       struct dpt_pattern_run **ret, struct dpt_err *err)
{
    struct dpt_pattern_run *run = calloc(1, sizeof *run);
    bool *written = calloc((size_t)spec->pattern->n_chunks, sizeof *written);
    bool made = false;
    if (run && written) {
        run->spec = *spec;
        made = make_run(run, written);
    }
    free(written);
    if (!made) {
        dpt_pattern_run_destroy(&run);
        return dpt_fail_nomem(err, "a pattern of %d ranks", spec->pattern->n_ranks);
    }
    *ret = run;
    return DPT_OK;
}

void dpt_pattern_run_destroy(struct dpt_pattern_run **run_p)
{
    struct dpt_pattern_run *run = *run_p;
    *run_p = NULL;
    if (!run)
        return;
    for (int i = 0; run->slots && i < run->n_slots; i++) {
        free(run->slots[i].in);
        free(run->slots[i].out);
        free(run->slots[i].move_of);
    }
    free(run->slots);
    free(run->moves);
    free(run->first_move);
    free(run->kept);
    free(run);
}

int64_t dpt_pattern_run_sent(const struct dpt_pattern_run *run, int64_t numel)
{
    const struct dpt_pattern *pattern = run->spec.pattern;
    int64_t sent = 0;
    for (int i = 0; i < run->first_move[pattern->n_steps]; i++) {
        const struct dpt_interval x =
            dpt_pattern_part(numel, pattern->n_chunks, run->moves[i].chunk, 1, 0);
        sent += run->moves[i].send ? x.end - x.first : 0;
    }
    return sent * (int64_t)sizeof(float);
}

/* ---- a step of a part ---- */

/* The elements of the memory that a part of a chunk has. */
static struct dpt_interval part_range(const struct dpt_pattern_run *run, int chunk, int part)
{
    const struct dpt_interval x = dpt_pattern_part(
        run->range.end - run->range.first, run->spec.pattern->n_chunks, chunk, run->n_parts, part);
    return (struct dpt_interval){run->range.first + x.first, run->range.first + x.end};
}

static struct dpt_comm_xfer xfer_of(const struct dpt_pattern_run *run, const struct own_move *move,
                                    int part, size_t staging_at)
{
    const struct dpt_interval x = part_range(run, move->chunk, part);
    struct dpt_comm_xfer xfer = {.dir = move->send ? DPT_COMM_SEND : DPT_COMM_RECV,
                                 .peer = move->peer,
                                 .mem = move->send && move->from_source ? run->spec.from
                                                                        : run->spec.to,
                                 .offset = (size_t)x.first * sizeof(float),
                                 .bytes = (size_t)(x.end - x.first) * sizeof(float)};
    if (move->send && xfer.bytes <= DPT_COMM_BUF_BYTES_MAX) {
        /* A small message is copied when it is posted, which needs no second message. */
        xfer.buf = (char *)dpt_comm_mem_data(xfer.mem) + xfer.offset;
        xfer.mem = NULL;
        xfer.offset = 0;
    }
    if (move->add) {
        xfer.dir = DPT_COMM_LEND;
        xfer.mem = run->spec.staging;
        xfer.offset = staging_at;
    }
    return xfer;
}

static enum dpt_status begin_step(struct dpt_pattern_run *run, int part, int step,
                                  struct dpt_err *err)
{
    const int index = part % run->n_slots;
    struct part_slot *slot = &run->slots[index];
    size_t staging_at = (size_t)index * run->slot_bytes;
    int n_out = 0;
    slot->n_in = 0;
    for (int i = run->first_move[step]; i < run->first_move[step + 1]; i++) {
        const struct own_move *move = &run->moves[i];
        const struct dpt_comm_xfer xfer = xfer_of(run, move, part, staging_at);
        if (xfer.bytes == 0)
            continue;
        if (move->send) {
            slot->out[n_out++] = xfer;
            continue;
        }
        staging_at += move->add ? xfer.bytes : 0;
        slot->move_of[slot->n_in] = i;
        slot->in[slot->n_in++] = xfer;
    }
    slot->in_op = slot->out_op = NULL;
    if (slot->n_in > 0)
        DPT_TRY(dpt_comm_exchange(run->comm, slot->in, slot->n_in, &slot->in_op, err));
    if (n_out > 0)
        DPT_TRY(dpt_comm_exchange(run->comm, slot->out, n_out, &slot->out_op, err));
    return DPT_OK;
}

/* Waits until an op is done. dpt_comm_wake ends a wait, not the work. The communicator traces the
 * waits for late peers within it. */
static enum dpt_status await_op(const struct dpt_pattern_run *run, struct dpt_comm_op *op,
                                struct dpt_err *err)
{
    enum dpt_status status;
    do
        status = dpt_comm_poll(run->comm, op, -1, err);
    while (status == DPT_INPROGRESS);
    return status;
}

/* Adds what has arrived for sums. */
static enum dpt_status add_arrived(struct dpt_pattern_run *run, const struct part_slot *slot,
                                   int part, struct dpt_err *err)
{
    float *to = dpt_comm_mem_data(run->spec.to);
    const float *from = dpt_comm_mem_data(run->spec.from);
    for (int i = 0; i < slot->n_in; i++) {
        const struct own_move *move = &run->moves[slot->move_of[i]];
        const struct dpt_interval x = part_range(run, move->chunk, part);
        if (move->add)
            run->spec.ops->add(run->spec.stream, x.end - x.first,
                               (move->from_source ? from : to) + x.first, slot->in[i].lent,
                               to + x.first);
    }
    return dpt_stream_sync(run->spec.stream, err);
}

/* The end of a step waits also for what the rank sent, because a later step may write there. */
static enum dpt_status end_step(struct dpt_pattern_run *run, int part, struct dpt_err *err)
{
    struct part_slot *slot = &run->slots[part % run->n_slots];
    if (slot->in_op) {
        DPT_TRY(await_op(run, slot->in_op, err));
        DPT_TRY(add_arrived(run, slot, part, err));
        dpt_comm_op_free(run->comm, &slot->in_op);
    }
    if (slot->out_op) {
        DPT_TRY(await_op(run, slot->out_op, err));
        dpt_comm_op_free(run->comm, &slot->out_op);
    }
    return DPT_OK;
}

/* ---- all parts ---- */

/* What the rank has from the start and no move brings. */
static void copy_kept(const struct dpt_pattern_run *run)
{
    float *to = dpt_comm_mem_data(run->spec.to);
    const float *from = dpt_comm_mem_data(run->spec.from);
    if (from == to)
        return;
    for (int chunk = 0; chunk < run->spec.pattern->n_chunks; chunk++)
        for (int part = 0; run->kept[chunk] && part < run->n_parts; part++) {
            const struct dpt_interval x = part_range(run, chunk, part);
            if (x.end > x.first)
                memcpy(to + x.first, from + x.first, (size_t)(x.end - x.first) * sizeof *to);
        }
}

/* Parts [first, end), each one turn behind the one before. */
static enum dpt_status run_group(struct dpt_pattern_run *run, int first, int end,
                                 struct dpt_err *err)
{
    const int n_steps = run->spec.pattern->n_steps;
    for (int turn = 0; turn < end - first + n_steps; turn++) {
        const int newest = first + turn < end ? first + turn : end - 1;
        const int oldest = turn > n_steps ? first + turn - n_steps : first;
        for (int part = newest; part >= oldest; part--) {
            const int step = turn - (part - first);
            if (step > 0)
                DPT_TRY(end_step(run, part, err));
            if (step < n_steps)
                DPT_TRY(begin_step(run, part, step, err));
        }
    }
    return DPT_OK;
}

enum dpt_status dpt_pattern_run_once(struct dpt_pattern_run *run, struct dpt_comm *comm,
                                     struct dpt_interval range, struct dpt_err *err)
{
    const struct dpt_pattern *pattern = run->spec.pattern;
    const int64_t numel = range.end - range.first;
    DPT_ASSERT(numel <= run->spec.numel_max);
    run->comm = comm;
    run->range = range;
    run->n_parts = count_parts(pattern, numel, run->spec.part_numel);
    copy_kept(run);
    const int group = run->n_slots > pattern->n_steps ? run->n_parts : run->n_slots;
    for (int first = 0; first < run->n_parts && pattern->n_steps > 0; first += group) {
        const int end = first + group < run->n_parts ? first + group : run->n_parts;
        DPT_TRY(run_group(run, first, end, err));
    }
    return DPT_OK;
}
