/* The agents of fake_agent.h: they send messages, keep the answers, and act as ranks would. */
#include "tests/rendezvous/core/fake_agent.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 32 };

void stage_open(struct stage *stage)
{
    memset(stage, 0, sizeof *stage);
    stage_restart(stage, 77);
    stage_tick(stage, 1);
    stage_pass(stage, 100000);
}

static struct dpt_rdzv *new_server(const struct stage *stage, uint64_t epoch)
{
    struct dpt_rdzv_options options = {.epoch = epoch,
                                       .now_ms = stage->now_ms,
                                       .fresh = stage->fresh,
                                       .nodes_max = stage->nodes_max,
                                       .world_max = stage->world_max};
    struct dpt_rdzv *core = NULL;
    struct dpt_err err;
    assert_int_equal(dpt_rdzv_create(&options, &core, &err), DPT_OK);
    return core;
}

void stage_restart(struct stage *stage, uint64_t epoch)
{
    kept_records_destroy(&stage->journal);
    dpt_rdzv_destroy(&stage->replica);
    stage->journal = kept_records_create();
    stage->replica = new_server(stage, 1);
    stage_restart_with_journal(stage, epoch);
}

void stage_restart_with_journal(struct stage *stage, uint64_t epoch)
{
    dpt_rdzv_destroy(&stage->core);
    watch_destroy(&stage->watch);
    stage->core = new_server(stage, epoch);
    stage->watch = watch_create(true);
    const char *refused = kept_records_restore(stage->journal, stage->core);
    if (refused == NULL)
        refused = kept_difference(stage->core, stage->replica);
    if (refused != NULL)
        fail_msg("%s", refused);
    for (size_t i = 0; i < kept_records_count(stage->journal); i++)
        if (kept_record_counts(stage->journal, i))
            watch_restore(stage->watch, kept_record_at(stage->journal, i));
}

void stage_restart_with_older_journal(struct stage *stage, uint64_t epoch, size_t n_records)
{
    kept_records_cut(stage->journal, n_records);
    dpt_rdzv_destroy(&stage->replica);
    stage->replica = new_server(stage, 1);
    const char *refused = kept_records_restore(stage->journal, stage->replica);
    if (refused != NULL)
        fail_msg("%s", refused);
    stage_restart_with_journal(stage, epoch);
}

/* Every record gives the replica the durable state of the server. */
static void keep_records(struct stage *stage, const struct dpt_rdzv_output *output)
{
    struct dpt_err err;
    for (size_t i = 0; i < output->n_records; i++) {
        stage->records[output->records[i].kind]++;
        kept_records_add(stage->journal, &output->records[i]);
        if (dpt_rdzv_restore(stage->replica, &output->records[i], &err) != DPT_OK)
            fail_msg("%s", err.text);
    }
    const char *differs = kept_difference(stage->core, stage->replica);
    if (differs != NULL)
        fail_msg("durable state changed without a record: %s", differs);
}

void stage_close(struct stage *stage)
{
    for (size_t i = 0; i < stage->n_fakes; i++)
        fake_fini(stage->fakes[i]);
    dpt_rdzv_destroy(&stage->core);
    assert_null(stage->core);
    dpt_rdzv_destroy(&stage->replica);
    kept_records_destroy(&stage->journal);
    watch_destroy(&stage->watch);
}

static void keep_plan(struct fake *fake, const Dpt__Plan *plan)
{
    size_t bytes = dpt__plan__get_packed_size(plan);
    uint8_t *packed = malloc(bytes);
    assert_non_null(packed);
    (void)dpt__plan__pack(plan, packed);
    if (fake->plan != NULL)
        dpt__plan__free_unpacked(fake->plan, NULL);
    fake->plan = dpt__plan__unpack(NULL, bytes, packed);
    free(packed);
}

static void deliver(struct stage *stage, const struct dpt_rdzv_send *send)
{
    for (size_t i = 0; i < stage->n_fakes; i++) {
        struct fake *fake = stage->fakes[i];
        const Dpt__ServerState *message = send->message;
        if (fake->conn != send->conn || strcmp(message->stamp->node, fake->id) != 0)
            continue;
        fake->told = true;
        fake->phase = message->phase;
        fake->soft = message->soft;
        fake->has_spec = message->spec != NULL;
        fake->unknown_fields = message->spec != NULL ? message->spec->base.n_unknown_fields : 0;
        fake->generation = message->stamp->generation;
        fake->counter_seen = message->counter_seen;
        fake->grant_step = message->grant_step;
        fake->last_call_ms = message->last_call_ms;
        fake->last_holder = message->last_holder;
        fake->drain = message->drain;
        fake->save_from = message->save_from;
        fake->saved_step = message->saved_step;
        fake->n_nodes = message->n_nodes;
        fake->n_runs = message->n_runs;
        fake->heartbeat_ms = message->heartbeat_ms;
        fake->world_step = message->world_step;
        (void)snprintf(fake->only_run, sizeof fake->only_run, "%s", message->only_run);
        if (message->counter_seen > 0)
            fake->epoch = message->stamp->epoch;
        (void)snprintf(fake->text, sizeof fake->text, "%s", message->text);
        if (message->plan != NULL)
            keep_plan(fake, message->plan);
    }
}

void stage_step(struct stage *stage, struct dpt_rdzv_event event)
{
    struct dpt_rdzv_output output;
    struct dpt_err err;
    event.now_ms = stage->now_ms;
    stage->n_steps++;
    memcpy(event.random, &stage->n_steps, sizeof stage->n_steps);
    for (size_t i = 0; i < stage->n_fakes; i++)
        stage->fakes[i]->told = false;
    assert_int_equal(dpt_rdzv_step(stage->core, &event, &output, &err), DPT_OK);
    const char *broken = watch_step(stage->watch, stage->core, &event, &output);
    if (broken != NULL)
        fail_msg("%s", broken);
    for (size_t i = 0; i < output.n_sends; i++)
        if (output.sends[i].message->reply != NULL && stage->on_reply != NULL)
            stage->on_reply(output.sends[i].message);
        else
            deliver(stage, &output.sends[i]);
    keep_records(stage, &output);
    stage->n_sends = output.n_sends;
    stage->n_logs += output.n_logs;
    if (output.n_logs > 0)
        (void)snprintf(stage->log, sizeof stage->log, "%s", output.logs[output.n_logs - 1].text);
    for (size_t i = 0; i < output.n_logs; i++)
        if (output.logs[i].level == DPT_LOG_WARN)
            (void)snprintf(stage->warning, sizeof stage->warning, "%s", output.logs[i].text);
    stage->deadline_ms = output.deadline_ms;
    assert_true(stage->deadline_ms > stage->now_ms);
    stage->view = (struct dpt_rdzv_run_view){0};
    if (dpt_rdzv_runs(stage->core) > 0)
        dpt_rdzv_run_view(stage->core, 0, &stage->view);
}

void stage_tick(struct stage *stage, int64_t after_ms)
{
    stage->now_ms += after_ms;
    stage_step(stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_TICK});
}

void stage_backlog(struct stage *stage, int64_t after_ms)
{
    stage->now_ms += after_ms;
    stage_step(stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_TICK, .backlog = true});
}

void stage_pass(struct stage *stage, int64_t ms)
{
    stage_pass_speaking(stage, NULL, 0, ms);
}

void stage_pass_speaking(struct stage *stage, struct fake *const *fakes, size_t n, int64_t ms)
{
    int64_t until_ms = stage->now_ms + ms;
    while (stage->now_ms < until_ms) {
        int64_t left_ms = until_ms - stage->now_ms, next_ms = stage->deadline_ms - stage->now_ms;
        stage_tick(stage, next_ms < left_ms ? next_ms : left_ms);
        for (size_t i = 0; i < n; i++)
            fake_say(fakes[i], stage);
    }
}

void fake_init(struct fake *fake, struct stage *stage, const char *id)
{
    fake_reset(fake, id);
    fake->conn = 1000 + stage->n_fakes;
    stage->fakes[stage->n_fakes++] = fake;
}

void fake_reset(struct fake *fake, const char *id)
{
    memset(fake, 0, sizeof *fake);
    (void)snprintf(fake->id, sizeof fake->id, "%s", id);
    dpt__stamp__init(&fake->stamp);
    fake->stamp.run = "demo";
    fake->stamp.node = fake->id;
    fake->stamp.incarnation = 1;
    dpt__run_spec__init(&fake->spec);
    fake->spec.min_nodes = 1;
    fake->spec.max_nodes = 4;
    fake->spec.timeout_ms = 5000;
    fake->spec.max_restarts = 100;
    fake->spec.max_world = 16;
    fake->spec.config_digest = "digest";
    fake->spec.config_yaml = "run: demo\n";
    fake->spec.user = "alice";
    dpt__agent_state__init(&fake->state);
    fake->state.version = DPT_PROTO_VERSION;
    fake->state.software = "dpt test";
    fake->state.stamp = &fake->stamp;
    fake->state.spec = &fake->spec;
    fake->state.fingerprint = "cpu";
    fake->state.host = fake->id; /* another host for each fake */
    fake->state.log_dir_id = "logs";
    fake->state.checkpoint_dir_id = "checkpoints";
    fake->state.data_digest = "data";
    static uint8_t secret[DPT_PROTO_SECRET_BYTES] = {7};
    fake->state.secret = (ProtobufCBinaryData){sizeof secret, secret};
    fake->state.ranks = fake->rank_list;
    fake->state.n_ranks = 1;
    for (uint32_t i = 0; i < FAKE_RANKS; i++) {
        Dpt__RankState *rank = &fake->ranks[i];
        dpt__rank_state__init(rank);
        fake->rank_list[i] = rank;
        rank->local_rank = i;
        rank->spawn = 1;
        rank->phase = DPT__RANK_PHASE__RANK_STANDBY;
        rank->shm_addr = "shm";
        rank->tcp_addr = "10.0.0.1:1";
        rank->step_applied = rank->outcome_step = rank->checkpoint_step = rank->grant_step = -1;
        rank->suspect = -1;
        rank->shards = fake->shard_list[i];
    }
}

void fake_part(struct fake *fake, uint32_t index, uint32_t of, bool pending)
{
    Dpt__RankState *rank = &fake->ranks[0];
    Dpt__Shard *shard = &fake->shards[0][rank->n_shards];
    dpt__shard__init(shard);
    shard->index = index;
    shard->of = of;
    shard->pending = pending;
    fake->shard_list[0][rank->n_shards++] = shard;
}

void fake_no_parts(struct fake *fake)
{
    fake->ranks[0].n_shards = 0;
}

void fake_fini(struct fake *fake)
{
    if (fake->plan != NULL)
        dpt__plan__free_unpacked(fake->plan, NULL);
    fake->plan = NULL;
}

void fake_prepare(struct fake *fake)
{
    fake->state.counter = ++fake->counter;
    fake->stamp.epoch = fake->epoch;
    fake->stamp.generation = fake->epoch != 0 ? fake->generation : 0;
    if (fake->plan != NULL && fake->plan->generation == fake->generation) {
        (void)snprintf(fake->plan_digest, sizeof fake->plan_digest, "%s", fake->plan->digest);
        fake->state.plan_digest = fake->plan_digest; /* outlives the plan */
        fake->state.plan_world = fake->plan->world_size;
    }
}

void fake_say(struct fake *fake, struct stage *stage)
{
    fake_prepare(fake);
    struct dpt_rdzv_event event = {.kind = DPT_RDZV_EVENT_MESSAGE,
                                   .conn = fake->conn,
                                   .message = &fake->state,
                                   .join_only = fake->join_only,
                                   .only_run = fake->limited_to};
    memcpy(event.key, fake->key, sizeof event.key);
    stage_step(stage, event);
}

void fake_refused(struct fake *fake, struct stage *stage, const char *why)
{
    fake_say(fake, stage);
    assert_true(fake->told);
    assert_int_equal(fake->phase, DPT__SERVER_PHASE__SERVER_REFUSED);
    assert_int_equal(fake->counter_seen, 0);
    if (strstr(fake->text, why) == NULL)
        fail_msg("wanted '%s' in: %s", why, fake->text);
}

void fake_phase(struct fake *fake, Dpt__RankPhase phase, uint64_t generation)
{
    for (size_t i = 0; i < fake->state.n_ranks; i++) {
        if (fake->ranks[i].phase == DPT__RANK_PHASE__RANK_DEAD)
            continue;
        fake->ranks[i].phase = phase;
        fake->ranks[i].generation = generation;
    }
}

void fake_dies(struct fake *fake, struct fake *seen_by, struct stage *stage)
{
    stage_step(stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = fake->conn});
    fake_loses(seen_by, fake);
    fake_say(seen_by, stage);
}

void fake_loses(struct fake *fake, const struct fake *peer)
{
    const Dpt__PlanRank *place = fake_place(peer);
    fake->ranks[0].failed_generation = fake->generation;
    fake->ranks[0].suspect = place != NULL ? (int32_t)place->rank : -1;
}

const Dpt__PlanRank *fake_place(const struct fake *fake)
{
    for (size_t i = 0; fake->plan != NULL && i < fake->plan->n_ranks; i++)
        if (fake->plan->ranks[i]->local_rank == 0)
            return fake->plan->ranks[i];
    return NULL;
}

void fake_obey(struct fake *fake)
{
    if (fake->phase == DPT__SERVER_PHASE__SERVER_PREPARE && fake->plan != NULL &&
        fake->plan->final_save && fake->ranks[0].generation == fake->plan->generation &&
        fake->ranks[0].phase == DPT__RANK_PHASE__RANK_RUNNING && !fake->cannot_save)
        fake->ranks[0].checkpoint_step = fake->plan->resume_step;
    if (fake->phase == DPT__SERVER_PHASE__SERVER_PREPARE)
        fake_phase(fake, DPT__RANK_PHASE__RANK_QUIESCED, fake->generation);
    if (fake->phase == DPT__SERVER_PHASE__SERVER_PLAN && fake->plan != NULL) {
        fake_phase(fake, DPT__RANK_PHASE__RANK_READY, fake->generation);
        for (size_t i = 0; i < fake->state.n_ranks; i++) {
            fake->ranks[i].step_applied = fake->plan->resume_step;
            fake->ranks[i].outcome_step = -1;
            fake->ranks[i].outcome.len = 0;
        }
    }
    if (fake->phase == DPT__SERVER_PHASE__SERVER_RUNNING &&
        fake->ranks[0].phase == DPT__RANK_PHASE__RANK_READY)
        fake_phase(fake, DPT__RANK_PHASE__RANK_RUNNING, fake->generation);
}

void fakes_settle(struct stage *stage, struct fake *const *fakes, size_t n)
{
    for (int round = 0; round < ROUNDS_MAX; round++)
        for (size_t i = 0; i < n; i++) {
            fake_obey(fakes[i]);
            fake_say(fakes[i], stage);
        }
}

void fakes_start(struct stage *stage, struct fake *const *fakes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        fake_say(fakes[i], stage);
    stage_pass_speaking(stage, fakes, n, 1100);
    fakes_settle(stage, fakes, n);
    assert_int_equal(stage->view.phase, DPT_RDZV_RUNNING);
}

void fake_breaks_off(struct fake *fake, struct stage *stage)
{
    fake->ranks[0].failed_generation = fake->generation;
    fake_say(fake, stage);
}

void fakes_report(struct stage *stage, struct fake *const *fakes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(fakes[i]->phase, DPT__SERVER_PHASE__SERVER_PREPARE);
        fake_phase(fakes[i], DPT__RANK_PHASE__RANK_QUIESCED, fakes[i]->generation);
        fake_say(fakes[i], stage);
    }
}
