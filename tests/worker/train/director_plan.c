/* The director's plans: the newest step whose state the members hold, ranks, handover ranks. */
#include "base/shard.h"
#include "tests/worker/train/director_internal.h"

#include <stdio.h>

/* The shards of a member that count: the pending ones if their generation got GO, else the old
 * ones. */
static int shards_of(const struct director *d, const struct member *m, struct dpt_shard *ret)
{
    const Dpt__RankState *said = m->said->state;
    const bool pending = said->pending_generation != 0 && said->pending_generation <= d->ran;
    int n = 0;
    if (said->n_shards == 0)
        ret[n++] = (struct dpt_shard){0, 1};
    for (size_t i = 0; i < said->n_shards; i++)
        if ((said->shards[i]->pending != 0) == pending)
            ret[n++] = (struct dpt_shard){(int)said->shards[i]->index, (int)said->shards[i]->of};
    return n;
}

static const Dpt__RankState *outcome_of(const struct director *d, int64_t step)
{
    for (int i = 0; i < d->n; i++) {
        const struct member *m = &d->member[i];
        if (m->alive && m->said->state->outcome_step == step && m->said->state->outcome.len > 0)
            return m->said->state;
    }
    return NULL;
}

static bool stands_at(const struct director *d, const struct member *m, int64_t step)
{
    const Dpt__RankState *said = m->said->state;
    return said->step_applied >= 0 &&
           (said->step_applied == step ||
            (said->step_applied == step - 1 && said->gradient && outcome_of(d, step)));
}

/* The step from which the generation continues: the newest whose whole state the members hold; -1:
 * none. */
static int64_t newest_whole(const struct director *d)
{
    int64_t best = -1;
    for (int i = 0; i < d->n; i++) {
        if (!plays(&d->member[i]) || d->member[i].said->state->step_applied <= best)
            continue;
        const int64_t step = d->member[i].said->state->step_applied;
        struct dpt_shard shards[DIRECTOR_RANKS_MAX * DPT_PROTO_SHARDS_MAX];
        int n = 0;
        for (int k = 0; k < d->n; k++)
            if (plays(&d->member[k]) && stands_at(d, &d->member[k], step))
                n += shards_of(d, &d->member[k], shards + n);
        if (dpt_shards_cover(shards, n))
            best = step;
    }
    return best;
}

static int64_t newest_checkpoint(const struct director *d)
{
    int64_t step = -1;
    for (int i = 0; i < d->n; i++)
        if (d->member[i].alive && d->member[i].said->state->checkpoint_step > step)
            step = d->member[i].said->state->checkpoint_step;
    return step;
}

/* The place of member `m`, as rank and position `at`. */
static void seat(const struct director *d, struct member *m, int at, int host, Dpt__PlanRank *ret)
{
    m->rank = at;
    *ret = (Dpt__PlanRank)DPT__PLAN_RANK__INIT;
    ret->rank = ret->position = (uint32_t)at;
    ret->host = ret->node = (uint32_t)host; /* each host is one node */
    ret->shm_addr = m->said->state->shm_addr;
    ret->tcp_addr = m->said->state->tcp_addr;
    ret->writes_log = at == 0;
    ret->checkpoint_slot = m->retires || (d->one_writes && at > 0) ? -1 : at;
}

void director_plan(struct director *d)
{
    const int64_t newest = newest_whole(d);
    int64_t checkpoint = newest < 0 ? newest_checkpoint(d) : -1;
    int64_t resume = newest >= 0 ? newest : checkpoint >= 0 ? checkpoint : 0;
    Dpt__PlanRank ranks[DIRECTOR_RANKS_MAX], *list[DIRECTOR_RANKS_MAX];
    uint8_t nonce[DPT_PROTO_NONCE_BYTES] = {(uint8_t)d->generation, 7, d->number};
    Dpt__Plan plan = DPT__PLAN__INIT;
    int host_of[DIRECTOR_RANKS_MAX], world = 0, hosts = 0, handover_ranks = 0;
    for (int host = 0; host < DIRECTOR_RANKS_MAX; host++) { /* positions are host by host */
        host_of[host] = hosts;
        bool any = false;
        for (int i = 0; i < d->n; i++) {
            any = any || (plays(&d->member[i]) && d->member[i].host == host);
            if (!plays(&d->member[i]) || d->member[i].retires || d->member[i].host != host)
                continue;
            seat(d, &d->member[i], world, hosts, &ranks[world]);
            list[world] = &ranks[world];
            world++;
        }
        hosts += any;
    }
    for (int i = 0; i < d->n; i++) /* handover ranks behind all others */
        if (plays(&d->member[i]) && d->member[i].retires) {
            seat(d, &d->member[i], world, host_of[d->member[i].host], &ranks[world]);
            list[world] = &ranks[world];
            world++;
            handover_ranks++;
        }
    bool handed = false;
    for (int i = 0; newest >= 0 && i < d->n; i++) {
        const struct member *m = &d->member[i];
        if (!plays(m) || m->said->state->step_applied == resume)
            continue;
        if (stands_at(d, m, resume))
            handed = true;
        else
            ranks[m->rank].takes_state = true;
    }
    if (handed)
        plan.outcome = outcome_of(d, resume)->outcome;
    d->outcomes_handed += handed;
    char digest[64];
    (void)snprintf(digest, sizeof digest, "plan-%llu", (unsigned long long)d->generation);
    plan.generation = d->generation;
    plan.nonce = (ProtobufCBinaryData){sizeof nonce, nonce};
    plan.world_size = (uint32_t)world;
    plan.n_nodes = plan.n_hosts = (uint32_t)hosts;
    plan.n_ranks = (size_t)world;
    plan.ranks = list;
    plan.digest = digest;
    plan.resume_step = resume;
    plan.load_checkpoint = checkpoint;
    plan.from_seed = newest < 0 && checkpoint < 0;
    plan.state_generation = d->ran;
    plan.handover_ranks = (uint32_t)handover_ranks;
    plan.final_save = d->leaving && handover_ranks == 0;
    plan.checkpoint_writers = d->one_writes ? 1 : (uint32_t)(world - handover_ranks);
    plan.cause = (char *)"the test says so";
    plan.cause_kind = (char *)(d->lost ? "node_lost" : "start");
    plan.steps_done_before = d->best_step > 0 ? d->best_step : 0;
    if (plan.steps_done_before - resume > d->steps_lost)
        d->steps_lost = plan.steps_done_before - resume;
    for (int i = 0; i < d->n; i++) {
        struct member *m = &d->member[i];
        if (!plays(m))
            continue;
        for (int r = 0; r < world; r++)
            ranks[r].local_rank = r == m->rank ? m->start.local_rank : -1;
        director_send(d, m, DPT__RANK_COMMAND__COMMAND_PLAN, &plan);
    }
}
