/* The verdict on a run that may hang (hang.h). */
#include "worker/doctor/hang.h"

#include <string.h>

enum {
    SILENT_MS_MIN = 1000, /* a process that is starved for less is not taken for stopped */
    HEARTBEATS_MISSED = 4,
    STEPS_PATIENCE = 3, /* a step may take this many times the median */
    STILL_MS_MIN = 1000
};

/* ---- what a rank does ---- */

static bool is_member(const struct dpt_hang_rank *rank)
{
    return rank->rank >= 0 && rank->phase != DPT__RANK_PHASE__RANK_DEAD;
}

bool dpt_hang_waits_for_transfer(const struct dpt_hang_rank *rank)
{
    const bool awaits = rank->main == DPT__RANK_WORK__WORK_AWAIT_WEIGHTS ||
                        rank->main == DPT__RANK_WORK__WORK_AWAIT_BUFFER ||
                        rank->main == DPT__RANK_WORK__WORK_AWAIT_GRADIENT;
    return awaits && rank->comm >= DPT__RANK_WORK__WORK_GATHER &&
           rank->comm != DPT__RANK_WORK__WORK_AWAIT_OWN;
}

/* Whether the main thread waits for other ranks. */
static bool waits_for_others(const struct dpt_hang_rank *rank)
{
    return rank->main == DPT__RANK_WORK__WORK_COMMIT || rank->main == DPT__RANK_WORK__WORK_VERIFY ||
           dpt_hang_waits_for_transfer(rank);
}

/* ---- the verdict ---- */

static int64_t newest_step(const struct dpt_hang_view *view)
{
    int64_t step = -1;
    for (int i = 0; i < view->n; i++)
        if (is_member(&view->rank[i]) && view->rank[i].step > step)
            step = view->rank[i].step;
    return step;
}

static void note_guilty_rank(struct dpt_hang *hang, const struct dpt_hang_rank *rank)
{
    if (hang->n_blamed < DPT_HANG_BLAMED_MAX)
        hang->blamed[hang->n_blamed++] = rank;
}

/* Longer silence is no delay: a rank and its agent send every heartbeat, whatever the rank
 * computes, and the two pauses may add up. */
static int64_t silent_limit(const struct dpt_hang_view *view)
{
    const int64_t limit_ms = HEARTBEATS_MISSED * view->heartbeat_ms;
    return limit_ms > SILENT_MS_MIN ? limit_ms : SILENT_MS_MIN;
}

/* Notes the ranks that wait, and what most of them wait in. */
static void note_waiting(struct dpt_hang *hang)
{
    const struct dpt_hang_view *view = hang->view;
    int most = 0;
    for (int i = 0; i < view->n; i++) {
        const struct dpt_hang_rank *rank = &view->rank[i];
        int same = 0;
        if (!is_member(rank) || !waits_for_others(rank) || rank->heard_ms > hang->silent_limit_ms)
            continue;
        hang->n_waiting++;
        for (int k = 0; k < view->n; k++) {
            const struct dpt_hang_rank *other = &view->rank[k];
            same += is_member(other) && waits_for_others(other) && other->main == rank->main &&
                    other->comm == rank->comm && other->comm_unit == rank->comm_unit;
        }
        if (same > most) {
            most = same;
            hang->waiting = rank;
        }
    }
}

/* Blames ranks for which `is_guilty`. True: there is one. */
static bool blame_all(struct dpt_hang *hang, bool (*is_guilty)(const struct dpt_hang *hang,
                                                               const struct dpt_hang_rank *rank))
{
    for (int i = 0; i < hang->view->n; i++)
        if (is_member(&hang->view->rank[i]) && is_guilty(hang, &hang->view->rank[i]))
            note_guilty_rank(hang, &hang->view->rank[i]);
    return hang->n_blamed > 0;
}

static bool is_node_silent(const struct dpt_hang *hang, const struct dpt_hang_rank *rank)
{
    return rank->node_ms > hang->silent_limit_ms || !rank->connected;
}

static bool is_process_silent(const struct dpt_hang *hang, const struct dpt_hang_rank *rank)
{
    return rank->heard_ms > hang->silent_limit_ms;
}

/* A rank that completed fewer steps than the others. */
static bool is_behind(const struct dpt_hang *hang, const struct dpt_hang_rank *rank)
{
    return rank->step < newest_step(hang->view) && !waits_for_others(rank);
}

static bool is_at_work(const struct dpt_hang *hang, const struct dpt_hang_rank *rank)
{
    (void)hang;
    return rank->known && !waits_for_others(rank);
}

static bool knows_nothing(const struct dpt_hang_view *view)
{
    for (int i = 0; i < view->n; i++)
        if (is_member(&view->rank[i]) && view->rank[i].known)
            return false;
    return true;
}

/* The time without a step that is no sign of a hang. */
static int64_t patience_ms(const struct dpt_hang_view *view)
{
    const int64_t steps_ms = STEPS_PATIENCE * view->step_ms_median;
    return steps_ms > STILL_MS_MIN ? steps_ms : STILL_MS_MIN;
}

static enum dpt_hang_kind find_guilty(struct dpt_hang *hang)
{
    if (blame_all(hang, is_node_silent))
        return DPT_HANG_NODE;
    if (blame_all(hang, is_process_silent))
        return DPT_HANG_PROCESS;
    if (knows_nothing(hang->view))
        return DPT_HANG_UNKNOWN;
    if (blame_all(hang, is_behind) || blame_all(hang, is_at_work))
        return DPT_HANG_BEHIND;
    return DPT_HANG_CIRCLE;
}

void dpt_hang_judge(const struct dpt_hang_view *earlier, const struct dpt_hang_view *later,
                    struct dpt_hang *ret)
{
    *ret = (struct dpt_hang){.view = later, .silent_limit_ms = silent_limit(later)};
    const bool runs = later->phase == DPT__SERVER_PHASE__SERVER_RUNNING ||
                      later->phase == DPT__SERVER_PHASE__SERVER_DRAINING ||
                      (later->phase == DPT__SERVER_PHASE__SERVER_PREPARE && later->world_size > 0);
    ret->steps = newest_step(later) - newest_step(earlier);
    note_waiting(ret);
    if (later->phase == DPT__SERVER_PHASE__SERVER_DONE ||
        later->phase == DPT__SERVER_PHASE__SERVER_FAILED)
        ret->kind = DPT_HANG_ENDED;
    else if (later->unheard) /* still_ms does not grow while the server hears no node */
        ret->kind = DPT_HANG_UNHEARD;
    else if (!runs)
        ret->kind = DPT_HANG_FORMING;
    else if (later->still_ms >= patience_ms(later)) /* whatever was made before */
        ret->kind = find_guilty(ret);
    else if (earlier->generation == later->generation && ret->steps > 0)
        ret->kind = DPT_HANG_ADVANCES;
    else
        ret->kind = DPT_HANG_NOT_YET;
}

bool dpt_hang_is_bad(const struct dpt_hang *hang)
{
    return hang->kind >= DPT_HANG_NODE;
}

const char *dpt_hang_kind_word(enum dpt_hang_kind kind)
{
    static const char *const words[] = {
        "advances",      "not yet",        "forming",     "ended",    "node silent",
        "no node heard", "process silent", "rank behind", "all wait", "not known"};
    return words[kind];
}
