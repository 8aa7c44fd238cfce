/* Records before messages. */
#include "rendezvous/server/turn.h"

#include "base/clock.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdlib.h>

static void drop_held(struct dpt_turn *turn)
{
    turn->n_dropped += turn->n_held - turn->n_released;
    for (size_t i = turn->n_released; i < turn->n_held; i++)
        (void)zmq_msg_close(&turn->held[i].frame);
    turn->n_held = turn->n_released = turn->held_bytes = 0;
}

void dpt_turn_fini(struct dpt_turn *turn)
{
    drop_held(turn);
    free(turn->held);
    turn->held = NULL;
    turn->held_max = 0;
}

enum dpt_status dpt_turn_add(struct dpt_turn *turn, const struct dpt_rdzv_output *out,
                             struct dpt_err *err)
{
    for (size_t i = 0; turn->journal != NULL && i < out->n_records; i++) {
        DPT_TRY(turn->journal->add(turn->journal->ctx, &out->records[i], err));
        turn->n_records++;
    }
    return DPT_OK;
}

bool dpt_turn_hold(struct dpt_turn *turn, uint64_t conn, zmq_msg_t *frame)
{
    if (turn->n_records == 0)
        return false;
    if (!turn->failing && turn->n_held == turn->held_max && turn->held_max < DPT_TURN_HELD_MAX) {
        const size_t max = turn->held_max == 0 ? 64 : 2 * turn->held_max;
        struct dpt_held *bigger = realloc(turn->held, max * sizeof *bigger);
        if (bigger != NULL) {
            turn->held = bigger;
            turn->held_max = max;
        }
    }
    if (turn->failing || turn->n_held == turn->held_max) {
        turn->n_dropped++;
        (void)zmq_msg_close(frame);
        return true;
    }
    struct dpt_held *held = &turn->held[turn->n_held++];
    held->conn = conn;
    (void)zmq_msg_init(&held->frame); /* these two cannot fail on a valid message */
    (void)zmq_msg_move(&held->frame, frame);
    turn->held_bytes += zmq_msg_size(&held->frame);
    return true;
}

bool dpt_turn_is_full(const struct dpt_turn *turn)
{
    return turn->n_records >= DPT_TURN_FULL || turn->n_held >= DPT_TURN_FULL ||
           turn->held_bytes >= DPT_TURN_FULL_BYTES;
}

/* The failure may pass. */
static void note_failure(struct dpt_turn *turn, int64_t now_ms, const struct dpt_err *why)
{
    const bool first = !turn->failing;
    turn->failing = true;
    turn->retry_ms = now_ms + DPT_TURN_RETRY_MS;
    drop_held(turn);
    if (!first && now_ms - turn->reported_ms < DPT_TURN_REPORT_MS)
        return;
    turn->reported_ms = now_ms;
    dpt_log(DPT_LOG_ERROR,
            "%s; the server answers nobody until its decisions are written, and tries again every "
            "%d ms; runs that train go on",
            why->text, DPT_TURN_RETRY_MS);
}

enum dpt_status dpt_turn_end(struct dpt_turn *turn, int64_t now_ms, struct dpt_err *err)
{
    struct dpt_err why;
    if (turn->n_records == 0 || (turn->failing && now_ms < turn->retry_ms))
        return DPT_OK;
    const int64_t began_ns = dpt_now_ns();
    const enum dpt_status status = turn->journal->commit(turn->journal->ctx, &why);
    if (status == DPT_EIO || status == DPT_ENOSPC) {
        note_failure(turn, now_ms, &why);
        return DPT_OK;
    }
    if (status != DPT_OK)
        return dpt_pass(err, &why);
    if (turn->failing)
        dpt_log(DPT_LOG_INFO,
                "the journal can be written again: all decisions are in it, %" PRIu64
                " messages were dropped",
                turn->n_dropped);
    dpt_log(DPT_LOG_DEBUG, "committed in %lld us, %zu messages waited",
            (long long)(dpt_now_ns() - began_ns) / 1000, turn->n_held);
    turn->failing = false;
    turn->n_records = turn->n_dropped = 0;
    return DPT_OK;
}

bool dpt_turn_release(struct dpt_turn *turn, uint64_t *ret_conn, zmq_msg_t *ret_frame)
{
    if (turn->n_records > 0)
        return false;
    if (turn->n_released == turn->n_held) {
        turn->n_held = turn->n_released = turn->held_bytes = 0;
        return false;
    }
    struct dpt_held *held = &turn->held[turn->n_released++];
    *ret_conn = held->conn;
    (void)zmq_msg_init(ret_frame);
    (void)zmq_msg_move(ret_frame, &held->frame);
    return true;
}
