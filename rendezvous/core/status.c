/* The status of a run, for a process that asks for it and is no worker (dpt-doctor hang). */
#include "rendezvous/core/reply.h"

#include "rendezvous/core/queries.h"
#include "rendezvous/core/rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* An answer has up to DPT_PROTO_STATUS_RANKS_MAX ranks, each a few hundred bytes. Every machine may
 * ask, and a flood of questions must delay neither the runs nor the questions of others: the server
 * is silent to further ones, and the sender asks again. Machines that may define any run have a
 * share of their own, so that no other machine keeps the owner of the server from a command. */
enum { ANSWERS_OF_KEY = ANSWERED_MAX / 2, ANSWERS_MS = 1000, UNANSWERED_LINE_MS = 10000 };

/* ---- one rank ---- */

/* The work that has not changed since the last report goes on. */
static Dpt__RankActivity *new_activity(struct dpt_rdzv *core, const struct rank *rank)
{
    const struct rank_work *work = &rank->work;
    Dpt__RankActivity *to =
        work->known ? dpt_outbox_alloc(&core->out, sizeof(Dpt__RankActivity)) : NULL;
    if (to == NULL)
        return NULL;
    const int64_t since_ms = core->now_ms - rank->heard_ms;
    dpt__rank_activity__init(to);
    to->main = work->main;
    to->main_unit = work->main_unit;
    to->main_slot = work->main_slot;
    to->main_ms = work->main_ms + since_ms;
    to->comm = work->comm;
    to->comm_unit = work->comm_unit;
    to->comm_ms = work->comm_ms + since_ms;
    return to;
}

/* dump: the DUMP whose stacks are added; 0: none are. */
static Dpt__RankStatus *new_rank_status(struct dpt_rdzv *core, const struct rank *rank,
                                        uint64_t dump)
{
    const struct node *node = rank->node;
    Dpt__RankStatus *to = dpt_outbox_alloc(&core->out, sizeof *to);
    if (to == NULL)
        return NULL;
    dpt__rank_status__init(to);
    to->node = (char *)node->id; /* the node stays until the next step */
    to->host_name = (char *)node->host_name;
    to->local_rank = (uint32_t)(rank - node->ranks);
    to->plan_rank = dpt_rdzv_rank_is_member(rank) ? rank->plan_rank : -1;
    to->phase = rank->phase;
    to->generation = rank->generation;
    to->step_applied = rank->step_applied;
    to->busy = rank->busy;
    to->heard_ms_ago = core->now_ms - rank->heard_ms;
    to->node_ms_ago = core->now_ms - node->link.heard_ms;
    to->connected = node->link.conn != 0;
    to->activity = new_activity(core, rank);
    if (dump != 0 && rank->work.stacks.of == dump)
        to->stacks = dpt_outbox_text(&core->out, rank->work.stacks.text);
    return to;
}

/* ---- the run ---- */

static void add_rank(Dpt__RunStatus *status, const struct rank *rank, uint64_t dump)
{
    const bool has_room = status->n_ranks < DUMP_RANKS_MAX;
    Dpt__RankStatus *to = new_rank_status(rank->node->run->core, rank, has_room ? dump : 0);
    status->ranks[status->n_ranks++] = to;
}

/* Adds the members of the plan by rank, then all other processes. */
static void list_ranks(const struct run *run, Dpt__RunStatus *status, uint64_t dump)
{
    const size_t all = dpt_rdzv_count_ranks(run);
    const size_t max = all < DPT_PROTO_STATUS_RANKS_MAX ? all : DPT_PROTO_STATUS_RANKS_MAX;
    status->ranks = dpt_outbox_alloc(&run->core->out, (max + 1) * sizeof(Dpt__RankStatus *));
    if (status->ranks == NULL)
        return;
    for (uint32_t i = 0; i < run->plan.world_size && status->n_ranks < max; i++) {
        const struct rank *rank = dpt_rdzv_rank_at(&run->plan.places[i]);
        if (rank != NULL && dpt_rdzv_rank_is_member(rank))
            add_rank(status, rank, dump);
    }
    struct rank_cursor at = {0};
    for (const struct rank *rank; (rank = dpt_rdzv_next_rank(run, &at)) != NULL;)
        if (!dpt_rdzv_rank_is_member(rank) && rank->spawn > 0 && status->n_ranks < max)
            add_rank(status, rank, dump);
    status->ranks_left_out = (uint32_t)(all - status->n_ranks);
}

Dpt__RunStatus *dpt_rdzv_new_status(const struct run *run, uint64_t dump)
{
    struct dpt_rdzv *core = run->core;
    Dpt__RunStatus *to = dpt_outbox_alloc(&core->out, sizeof *to);
    if (to == NULL)
        return NULL;
    const int64_t limit_ms = dpt_rdzv_stall_limit_ms(run);
    const int64_t still_ms = dpt_rdzv_listened_ms(run) - run->progress.step_ms;
    dpt__run_status__init(to);
    to->run = (char *)run->name;
    to->generation = run->generation;
    to->world_size = run->plan.in_force ? run->plan.world_size : 0;
    to->still_ms = still_ms > 0 ? still_ms : 0;
    to->limit_ms = limit_ms == INT64_MAX ? 0 : limit_ms;
    to->step_ms_median = run->progress.step_ms_median;
    to->heartbeat_ms = dpt_rdzv_beat_ms(run);
    to->phase_ms = core->now_ms - run->phase_ms;
    to->heard_ms_ago = dpt_rdzv_heard_ms_ago(run);
    to->unheard = dpt_rdzv_is_unheard(run);
    to->cause = (char *)run->formation.cause.text;
    list_ranks(run, to, dump);
    return core->out.no_memory ? NULL : to;
}

void dpt_rdzv_list_runs(const struct dpt_rdzv *core, const char *name, char *text, size_t bytes)
{
    size_t used =
        (size_t)snprintf(text, bytes, "no run '%.63s' is here; %s", name,
                         core->n_runs == 0 ? "the server has no run" : "the server has the runs");
    for (size_t i = 0; i < core->n_runs && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s %s", i > 0 ? "," : "",
                                 core->runs[i]->name);
}

static bool has_share_left(const struct answered *share, const uint8_t key[DPT_RDZV_KEY_BYTES])
{
    int n = 0;
    for (int i = 0; i < share->n; i++)
        n += memcmp(share->keys[i], key, DPT_RDZV_KEY_BYTES) == 0;
    const bool has_key = !dpt_rdzv_is_no_key(key);
    return share->n < ANSWERED_MAX && (!has_key || n < ANSWERS_OF_KEY);
}

static void log_unanswered(struct dpt_rdzv *core)
{
    char text[DPT_PROTO_TEXT_BYTES];
    const uint64_t n =
        dpt_log_bound_each(&core->status_answers.unanswered, core->now_ms, UNANSWERED_LINE_MS);
    if (n == 0)
        return;
    (void)snprintf(text, sizeof text,
                   "%" PRIu64 " question(s) of dpt-ctl or dpt-doctor got no answer: in a second "
                   "the server answers %d of machines that may define any run and %d of all "
                   "others, with keys %d of one machine",
                   n, ANSWERED_MAX, ANSWERED_MAX, ANSWERS_OF_KEY);
    dpt_outbox_log(&core->out,
                   (struct dpt_rdzv_log_line){.level = DPT_LOG_WARN, .run = "", .text = text});
}

bool dpt_rdzv_may_answer(const struct inquiry *from)
{
    struct dpt_rdzv *core = from->core;
    struct status_answers *answers = &core->status_answers;
    const bool limited = from->join_only || (from->only_run != NULL && from->only_run[0] != '\0');
    struct answered *share = limited ? &answers->of_others : &answers->of_definers;
    if (core->now_ms - answers->since_ms >= ANSWERS_MS) {
        answers->since_ms = core->now_ms;
        answers->of_definers.n = answers->of_others.n = 0;
    }
    if (!has_share_left(share, from->key)) {
        log_unanswered(core);
        return false;
    }
    memcpy(share->keys[share->n++], from->key, DPT_RDZV_KEY_BYTES);
    return true;
}

void dpt_rdzv_answer_status(const struct inquiry *from)
{
    struct dpt_rdzv *core = from->core;
    if (!dpt_rdzv_may_answer(from))
        return;
    char text[DPT_PROTO_TEXT_BYTES] = "";
    const bool limited = from->only_run != NULL && from->only_run[0] != '\0';
    const struct run *run =
        dpt_rdzv_find_run(core, limited ? from->only_run : from->message->stamp->run);
    if (run == NULL && core->n_runs == 1 && dpt_rdzv_may_see(from, core->runs[0]))
        run = core->runs[0];
    if (run == NULL && limited)
        (void)snprintf(text, sizeof text, "no run '%s' is here", from->only_run);
    else if (run == NULL)
        dpt_rdzv_list_runs(core, from->message->stamp->run, text, sizeof text);
    const struct answer answer = {.phase = run == NULL ? DPT__SERVER_PHASE__SERVER_WAITING
                                                       : dpt_rdzv_phase_told(run),
                                  .run = run,
                                  .text = run == NULL ? text : run->end_text,
                                  .status = run == NULL ? NULL : dpt_rdzv_new_status(run, 0)};
    dpt_rdzv_answer_outsider(from, &answer);
}
