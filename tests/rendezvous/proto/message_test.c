/* Decoding of control plane messages: valid ones, and each kind of invalid one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/proto/message.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { BUF_BYTES = 1 << 20 };
static uint8_t buf[BUF_BYTES];

/* A message of each kind that is right in every field; tests spoil one. */
struct fixture {
    Dpt__Stamp stamp;
    Dpt__RunSpec spec;
    Dpt__RankState ranks[DPT_PROTO_RANKS_MAX + 1];
    Dpt__RankState *rank_list[DPT_PROTO_RANKS_MAX + 1];
    Dpt__Shard shards[DPT_PROTO_SHARDS_MAX + 1];
    Dpt__Shard *shard_list[DPT_PROTO_SHARDS_MAX + 1];
    Dpt__AgentState agent;
    Dpt__PlanRank plan_ranks[2];
    Dpt__PlanRank *plan_rank_list[2];
    Dpt__Plan plan;
    Dpt__ServerState server;
    Dpt__AgentToRank to_rank;
    Dpt__RankToAgent from_rank;
    Dpt__StepRecord steps[DPT_PROTO_STEPS_MAX + 1];
    Dpt__StepRecord *step_list[DPT_PROTO_STEPS_MAX + 1];
    Dpt__RunSummary summary;
    uint8_t nonce[DPT_PROTO_NONCE_BYTES + 1], secret[DPT_PROTO_SECRET_BYTES + 1];
};

static void fill_message(struct fixture *f)
{
    memset(f, 0, sizeof *f);
    dpt__stamp__init(&f->stamp);
    f->stamp.epoch = 7;
    f->stamp.run = "demo";
    f->stamp.node = "node-1";
    f->stamp.incarnation = 3;
    dpt__run_spec__init(&f->spec);
    f->spec.min_nodes = 1;
    f->spec.max_nodes = 4;
    f->spec.timeout_ms = 5000;
    f->spec.max_world = 16;
    f->spec.config_digest = "abc";
    f->spec.config_yaml = "run: demo\nseed: 1\n";
    dpt__agent_state__init(&f->agent);
    f->agent.version = DPT_PROTO_VERSION;
    f->agent.software = "dpt test";
    f->agent.stamp = &f->stamp;
    f->agent.spec = &f->spec;
    f->agent.secret = (ProtobufCBinaryData){DPT_PROTO_SECRET_BYTES, f->secret};
    f->agent.ranks = f->rank_list;
    f->agent.n_ranks = 2;
    for (uint32_t i = 0; i <= DPT_PROTO_RANKS_MAX; i++) {
        dpt__rank_state__init(&f->ranks[i]);
        f->ranks[i].local_rank = i;
        f->ranks[i].spawn = 1;
        f->ranks[i].step_applied = 10;
        f->ranks[i].outcome_step = 11;
        f->ranks[i].checkpoint_step = f->ranks[i].grant_step = -1;
        f->rank_list[i] = &f->ranks[i];
    }
    for (uint32_t i = 0; i <= DPT_PROTO_SHARDS_MAX; i++) {
        dpt__shard__init(&f->shards[i]);
        f->shards[i].index = i;
        f->shards[i].of = 7;
        f->shard_list[i] = &f->shards[i];
    }
    f->ranks[0].shards = f->shard_list;
    f->ranks[0].n_shards = 2;
    dpt__plan__init(&f->plan);
    f->plan.generation = 5;
    f->plan.nonce = (ProtobufCBinaryData){DPT_PROTO_NONCE_BYTES, f->nonce};
    f->plan.world_size = 2;
    f->plan.n_nodes = f->plan.n_hosts = 1;
    f->plan.digest = "digest";
    f->plan.load_checkpoint = -1;
    f->plan.checkpoint_writers = 2;
    f->plan.ranks = f->plan_rank_list;
    f->plan.n_ranks = 2;
    for (uint32_t i = 0; i < 2; i++) {
        dpt__plan_rank__init(&f->plan_ranks[i]);
        f->plan_ranks[i].rank = f->plan_ranks[i].position = i;
        f->plan_ranks[i].checkpoint_slot = (int32_t)i;
        f->plan_rank_list[i] = &f->plan_ranks[i];
    }
    dpt__server_state__init(&f->server);
    f->server.version = DPT_PROTO_VERSION;
    f->server.stamp = &f->stamp;
    f->server.plan = &f->plan;
    f->server.grant_step = -1;
    dpt__agent_to_rank__init(&f->to_rank);
    f->to_rank.command = DPT__RANK_COMMAND__COMMAND_PLAN;
    f->to_rank.generation = 5;
    f->to_rank.plan = &f->plan;
    f->to_rank.grant_step = -1;
    dpt__rank_to_agent__init(&f->from_rank);
    f->from_rank.state = &f->ranks[0];
    for (int64_t i = 0; i <= DPT_PROTO_STEPS_MAX; i++) {
        dpt__step_record__init(&f->steps[i]);
        f->steps[i].step = 2 * i + 1;
        f->steps[i].world_size = 2;
        f->step_list[i] = &f->steps[i];
    }
    f->from_rank.steps = f->step_list;
    f->from_rank.n_steps = 2;
    dpt__run_summary__init(&f->summary);
    f->summary.weights_hash = "hash";
    f->from_rank.summary = &f->summary;
}

enum kind { AGENT, SERVER, TO_RANK, FROM_RANK };

/* Decodes into a message of `type`, which there is if and only if that succeeds. */
#define DECODE(type, name)                                                                         \
    do {                                                                                           \
        type *message = NULL;                                                                      \
        status = dpt_message_decode_##name(data, bytes, &message, err);                            \
        assert_true((status == DPT_OK) == (message != NULL));                                      \
        dpt_message_free_##name(&message);                                                         \
    } while (0)

static enum dpt_status decode_kind(enum kind kind, const void *data, size_t bytes,
                                   struct dpt_err *err)
{
    enum dpt_status status = DPT_EINVAL;
    switch (kind) {
    case AGENT:
        DECODE(Dpt__AgentState, agent_state);
        break;
    case SERVER:
        DECODE(Dpt__ServerState, server_state);
        break;
    case TO_RANK:
        DECODE(Dpt__AgentToRank, agent_to_rank);
        break;
    case FROM_RANK:
        DECODE(Dpt__RankToAgent, rank_to_agent);
        break;
    }
    return status;
}

static size_t encode_kind(const struct fixture *f, enum kind kind)
{
    const ProtobufCMessage *message = kind == AGENT     ? &f->agent.base
                                      : kind == SERVER  ? &f->server.base
                                      : kind == TO_RANK ? &f->to_rank.base
                                                        : &f->from_rank.base;
    size_t bytes = 0;
    struct dpt_err err;
    assert_int_equal(dpt_message_encode(message, buf, sizeof buf, &bytes, &err), DPT_OK);
    assert_int_equal(bytes, dpt_message_bytes(message));
    return bytes;
}

static void takes(const struct fixture *f, enum kind kind)
{
    struct dpt_err err = {0};
    size_t bytes = encode_kind(f, kind);
    if (decode_kind(kind, buf, bytes, &err) != DPT_OK)
        fail_msg("kind %d: %s", (int)kind, err.text);
}

/* Refused with DPT_EPROTO, and the line names `field`. */
static void refuses(const struct fixture *f, enum kind kind, const char *field)
{
    struct dpt_err err = {0};
    size_t bytes = encode_kind(f, kind);
    assert_int_equal(decode_kind(kind, buf, bytes, &err), DPT_EPROTO);
    if (strstr(err.text, field) == NULL)
        fail_msg("wanted the field '%s' in: %s", field, err.text);
}

static void test_whole_messages_are_taken(void **state)
{
    (void)state;
    struct fixture f;
    fill_message(&f);
    for (int kind = AGENT; kind <= FROM_RANK; kind++)
        takes(&f, (enum kind)kind);
    f.agent.n_ranks = DPT_PROTO_RANKS_MAX;
    takes(&f, AGENT);
    f.agent.spec = NULL;
    f.agent.n_ranks = 0;
    f.agent.secret.len = 0;
    takes(&f, AGENT);
}

static void test_values_survive(void **state)
{
    (void)state;
    struct fixture f;
    fill_message(&f);
    uint8_t outcome[3] = {1, 0, 2};
    f.ranks[1].outcome = (ProtobufCBinaryData){3, outcome};
    f.ranks[1].suspect = -1;
    f.ranks[0].n_shards = DPT_PROTO_SHARDS_MAX;
    f.shards[3].pending = f.ranks[0].gradient = true;
    f.ranks[0].pending_generation = 9;
    f.ranks[0].ran_generation = 8;
    f.ranks[0].rebuilding = true;
    const uint8_t secret[DPT_PROTO_SECRET_BYTES] = {0, 7, 255};
    memcpy(f.secret, secret, sizeof secret);
    size_t bytes = encode_kind(&f, AGENT);
    Dpt__AgentState *back = NULL;
    struct dpt_err err;
    assert_int_equal(dpt_message_decode_agent_state(buf, bytes, &back, &err), DPT_OK);
    assert_string_equal(back->stamp->node, "node-1");
    assert_string_equal(back->spec->config_yaml, "run: demo\nseed: 1\n");
    assert_int_equal(back->ranks[1]->outcome.len, 3);
    assert_memory_equal(back->ranks[1]->outcome.data, outcome, 3);
    assert_int_equal(back->ranks[1]->suspect, -1);
    assert_int_equal(back->ranks[0]->n_shards, DPT_PROTO_SHARDS_MAX);
    for (uint32_t i = 0; i < DPT_PROTO_SHARDS_MAX; i++) {
        assert_int_equal(back->ranks[0]->shards[i]->index, i);
        assert_int_equal(back->ranks[0]->shards[i]->of, 7);
        assert_int_equal(back->ranks[0]->shards[i]->pending, i == 3);
    }
    assert_true(back->ranks[0]->gradient);
    assert_int_equal(back->ranks[0]->pending_generation, 9);
    assert_int_equal(back->ranks[0]->ran_generation, 8);
    assert_true(back->ranks[0]->rebuilding);
    assert_int_equal(back->secret.len, sizeof secret);
    assert_memory_equal(back->secret.data, secret, sizeof secret);
    dpt_message_free_agent_state(&back);
    assert_null(back);
    dpt_message_free_agent_state(&back);
}

static void test_cut_messages_do_not_crash(void **state)
{
    (void)state;
    struct fixture f;
    fill_message(&f);
    struct dpt_err err;
    /* Every truncation is refused or is a smaller message that is right in itself; none crashes. */
    for (int kind = AGENT; kind <= FROM_RANK; kind++) {
        size_t bytes = encode_kind(&f, (enum kind)kind);
        for (size_t n = 0; n < bytes; n++)
            (void)decode_kind((enum kind)kind, buf, n, &err);
        for (size_t at = 0; at < bytes; at++) { /* and so with every single byte inverted */
            buf[at] ^= 0xff;
            (void)decode_kind((enum kind)kind, buf, bytes, &err);
            buf[at] ^= 0xff;
        }
    }
    assert_int_equal(decode_kind(AGENT, "", 0, &err), DPT_EPROTO);
    /* Tag 0 is invalid; protobuf-c would encode it so that it cannot be decoded. */
    const uint8_t field_zero[] = {0x85, 0x00, 0x00, 0x00, 0x00, 0x00};
    assert_int_equal(decode_kind(TO_RANK, field_zero, sizeof field_zero, &err), DPT_EPROTO);
    memset(buf, 0xff, 100);
    assert_int_equal(decode_kind(AGENT, buf, 100, &err), DPT_EPROTO);
}

static void test_oversized_message_is_refused(void **state)
{
    (void)state;
    struct dpt_err err;
    uint8_t *big = calloc(1, DPT_MESSAGE_BYTES_MAX + 1);
    assert_non_null(big);
    assert_int_equal(decode_kind(AGENT, big, DPT_MESSAGE_BYTES_MAX + 1, &err), DPT_EOVERFLOW);
    /* Two bytes a rank: field 10 (ranks), length 0. Each would become a struct of some hundred. */
    for (size_t i = 0; i + 1 < DPT_MESSAGE_BYTES_MAX; i += 2)
        big[i] = 10 << 3 | 2;
    assert_int_equal(decode_kind(AGENT, big, DPT_MESSAGE_BYTES_MAX, &err), DPT_EOVERFLOW);
    free(big);
    struct fixture f;
    fill_message(&f);
    size_t bytes = 0;
    assert_int_equal(dpt_message_encode(&f.agent.base, buf, 10, &bytes, &err), DPT_EOVERFLOW);
    assert_int_equal(bytes, 0);
}

#define SPOIL(kind, field, statement)                                                              \
    do {                                                                                           \
        struct fixture f;                                                                          \
        fill_message(&f);                                                                          \
        statement;                                                                                 \
        refuses(&f, kind, field);                                                                  \
    } while (0)

/* Each of two values is refused. */
#define SPOIL_EACH(kind, field, member, one, other)                                                \
    do {                                                                                           \
        SPOIL(kind, field, member = (one));                                                        \
        SPOIL(kind, field, member = (other));                                                      \
    } while (0)

static char long_text[DPT_PROTO_YAML_BYTES_MAX + 2];

static const char *text_of(size_t characters)
{
    memset(long_text, 'x', characters);
    long_text[characters] = '\0';
    return long_text;
}

static void test_spoilt_stamp_is_refused(void **state)
{
    (void)state;
    SPOIL(AGENT, "stamp", f.agent.stamp = NULL);
    SPOIL(SERVER, "stamp", f.server.stamp = NULL);
    SPOIL_EACH(AGENT, "run", f.stamp.run, "", "../etc");
    SPOIL_EACH(AGENT, "run", f.stamp.run, ".hidden", (char *)text_of(DPT_PROTO_NAME_BYTES));
    SPOIL_EACH(AGENT, "node", f.stamp.node, "a b", "a\nb");
    SPOIL(AGENT, "incarnation", f.stamp.incarnation = 0);
    SPOIL(AGENT, "generation", f.stamp.generation = UINT64_MAX);
    SPOIL(SERVER, "generation", f.stamp.generation = DPT_PROTO_GENERATION_MAX + 1);
    SPOIL(SERVER, "epoch", f.stamp.epoch = 0);
}

static void test_agent_fields(void **state)
{
    (void)state;
    SPOIL_EACH(AGENT, "min_nodes", f.spec.min_nodes, 0, DPT_PROTO_NODES_MAX + 1);
    SPOIL_EACH(AGENT, "max_nodes", f.spec.max_nodes, 0, DPT_PROTO_NODES_MAX + 1);
    SPOIL_EACH(AGENT, "timeout_ms", f.spec.timeout_ms, DPT_PROTO_TIMEOUT_MS_MIN - 1,
               DPT_PROTO_TIMEOUT_MS_MAX + 1);
    SPOIL_EACH(AGENT, "drain_ms", f.spec.drain_ms, DPT_PROTO_DRAIN_MS_MIN - 1,
               DPT_PROTO_DRAIN_MS_MAX + 1);
    SPOIL(AGENT, "max_world", f.spec.max_world = 0);
    SPOIL(AGENT, "config_digest", f.spec.config_digest = "");
    SPOIL_EACH(AGENT, "config_yaml", f.spec.config_yaml, "a\tb",
               (char *)text_of(DPT_PROTO_YAML_BYTES_MAX));
    SPOIL(AGENT, "ranks", f.agent.n_ranks = DPT_PROTO_RANKS_MAX + 1);
    SPOIL(AGENT, "ranks", f.ranks[1].local_rank = 0);
    SPOIL(AGENT, "user", f.spec.user = (char *)text_of(DPT_PROTO_NAME_BYTES));
    SPOIL(AGENT, "software", f.agent.software = (char *)text_of(DPT_PROTO_NAME_BYTES));
    SPOIL(AGENT, "host", f.agent.host = (char *)text_of(DPT_PROTO_DIGEST_BYTES));
    SPOIL_EACH(AGENT, "first_error", f.agent.first_error, (char *)text_of(DPT_PROTO_TEXT_BYTES),
               "\033[31m");
    SPOIL(AGENT, "plan_world", f.agent.plan_world = DPT_PROTO_WORLD_MAX + 1);
    SPOIL(AGENT, "secret", f.agent.secret.len--);
    SPOIL(AGENT, "secret", f.agent.secret.len++);
    SPOIL_EACH(AGENT, "host_name", f.agent.host_name, "\033[31m",
               (char *)text_of(DPT_PROTO_NAME_BYTES));
    SPOIL_EACH(AGENT, "rack", f.agent.rack, "\033[31m", (char *)text_of(DPT_PROTO_NAME_BYTES));
}

/* Results of a rank for the log: printed, and read as numbers. */
static void test_story_fields(void **state)
{
    (void)state;
    SPOIL(FROM_RANK, "steps", f.from_rank.n_steps = DPT_PROTO_STEPS_MAX + 1);
    SPOIL(FROM_RANK, "step", f.steps[0].step = 0);
    SPOIL_EACH(FROM_RANK, "step", f.steps[1].step, f.steps[0].step, INT64_MAX);
    SPOIL_EACH(FROM_RANK, "world_size", f.steps[1].world_size, 0, DPT_PROTO_WORLD_MAX + 1);
    SPOIL_EACH(FROM_RANK, "epoch", f.steps[1].epoch, -1, f.steps[1].step + 1);
    SPOIL(FROM_RANK, "epoch_first_step", f.steps[1].epoch = 1);
    SPOIL(FROM_RANK, "epoch_first_step", f.steps[1].epoch = 1;
          f.steps[1].epoch_first_step = f.steps[1].step + 1);
    SPOIL(FROM_RANK, "saved_step", f.from_rank.saved_step = -1);
    SPOIL(FROM_RANK, "start_step", f.summary.start_step = -1);
    SPOIL(FROM_RANK, "steps", f.summary.steps = INT64_MAX);
    SPOIL(FROM_RANK, "total_ms", f.summary.total_ms = -1);
    SPOIL(FROM_RANK, "steps_lost", f.summary.steps_lost = -1);
    SPOIL(FROM_RANK, "node_ms", f.summary.node_ms = -1);
    SPOIL(FROM_RANK, "node_ms", f.summary.node_ms = DPT_PROTO_MS_MAX + 1);
    SPOIL(FROM_RANK, "weights_hash", f.summary.weights_hash = "\033[31m");
    struct fixture f;
    fill_message(&f);
    f.from_rank.n_steps = DPT_PROTO_STEPS_MAX;
    takes(&f, FROM_RANK);
}

static void test_rank_fields(void **state)
{
    (void)state;
    static uint8_t large[DPT_PROTO_OUTCOME_BYTES_MAX + 1];
    const int64_t most_ms = DPT_PROTO_TOLD_MS, most_step = DPT_PROTO_TOLD_STEPS;
    SPOIL(AGENT, "phase", f.ranks[0].phase = (Dpt__RankPhase)99);
    SPOIL(AGENT, "local_rank", f.ranks[1].local_rank = DPT_PROTO_RANKS_MAX);
    SPOIL(AGENT, "spawn", f.ranks[0].spawn = 0);
    SPOIL(AGENT, "generation", f.ranks[0].generation = UINT64_MAX);
    SPOIL(AGENT, "failed_generation", f.ranks[0].failed_generation = UINT64_MAX);
    SPOIL_EACH(AGENT, "step_applied", f.ranks[0].step_applied, -2, most_step + 1);
    SPOIL_EACH(AGENT, "outcome_step", f.ranks[0].outcome_step, -2, 12);
    SPOIL(AGENT, "outcome_step", f.ranks[0].outcome_step = 9);
    SPOIL(AGENT, "outcome", f.ranks[0].outcome = ((ProtobufCBinaryData){sizeof large, large}));
    SPOIL_EACH(AGENT, "checkpoint_step", f.ranks[0].checkpoint_step, -2, most_step + 1);
    SPOIL_EACH(AGENT, "rescued_step", f.ranks[0].rescued_step, -1, most_step + 1);
    SPOIL_EACH(AGENT, "unsaved_step", f.ranks[0].unsaved_step, -1, most_step + 1);
    SPOIL(AGENT, "unsaved_generation", f.ranks[0].unsaved_generation = UINT64_MAX);
    SPOIL(AGENT, "unsaved_why", f.ranks[0].unsaved_why = (char *)text_of(DPT_PROTO_TEXT_BYTES));
    SPOIL_EACH(AGENT, "grant_step", f.ranks[0].grant_step, -2, most_step + 1);
    SPOIL_EACH(AGENT, "step_high", f.agent.step_high, -1, most_step + 1);
    SPOIL(AGENT, "shards", f.ranks[0].n_shards = DPT_PROTO_SHARDS_MAX + 1);
    SPOIL_EACH(AGENT, "of", f.shards[1].of, 0, DPT_PROTO_WORLD_MAX + 1);
    SPOIL(AGENT, "index", f.shards[1].index = 7);
    SPOIL(AGENT, "pending_generation", f.shards[1].pending = true);
    SPOIL(AGENT, "pending_generation", f.ranks[0].pending_generation = UINT64_MAX);
    SPOIL(AGENT, "ran_generation", f.ranks[0].ran_generation = UINT64_MAX);
    SPOIL_EACH(AGENT, "silent_ms", f.ranks[0].silent_ms, -1, most_ms + 1);
    SPOIL_EACH(AGENT, "step_ms_median", f.ranks[0].step_ms_median, -1, most_ms + 1);
    SPOIL(FROM_RANK, "step_ms_median", f.from_rank.step_ms_median = INT64_MAX);
    SPOIL_EACH(FROM_RANK, "val_step", f.from_rank.val_step, -1, INT64_MAX);
    SPOIL(FROM_RANK, "val_samples", f.from_rank.val_samples = -1);
    SPOIL_EACH(FROM_RANK, "val_right", f.from_rank.val_right, 1, -1);
    SPOIL(AGENT, "shm_addr", f.ranks[0].shm_addr = (char *)text_of(DPT_PROTO_ADDR_BYTES));
    SPOIL(AGENT, "tcp_addr", f.ranks[0].tcp_addr = (char *)text_of(DPT_PROTO_ADDR_BYTES));
    SPOIL_EACH(AGENT, "stacks", f.ranks[0].stacks, "a\n\tb",
               (char *)text_of(DPT_PROTO_STACKS_BYTES));
    SPOIL(FROM_RANK, "state", f.from_rank.state = NULL);
    SPOIL(FROM_RANK, "exit_code", f.from_rank.exit_code = 256);
    SPOIL(FROM_RANK, "spawn", f.ranks[0].spawn = 0);
}

static void test_plan_fields(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        enum kind kind = i == 0 ? SERVER : TO_RANK;
        SPOIL(kind, "nonce", f.plan.nonce.len--);
        SPOIL(kind, "nonce", f.plan.nonce.len++);
        SPOIL_EACH(kind, "world_size", f.plan.world_size, 0, DPT_PROTO_WORLD_MAX + 1);
        SPOIL_EACH(kind, "n_hosts", f.plan.n_hosts, 0, 3);
        SPOIL(kind, "n_nodes", f.plan.n_nodes = 3);
        SPOIL(kind, "checkpoint_writers", f.plan.checkpoint_writers = 3);
        SPOIL_EACH(kind, "resume_step", f.plan.resume_step, -1, INT64_MAX);
        SPOIL(kind, "load_checkpoint", f.plan.load_checkpoint = -2);
        SPOIL_EACH(kind, "steps_done_before", f.plan.steps_done_before, -1, INT64_MAX);
        SPOIL(kind, "digest", f.plan.digest = "");
        SPOIL(kind, "rank", f.plan_ranks[1].rank = 2);
        SPOIL(kind, "out of order", f.plan_ranks[1].rank = 0);
        SPOIL(kind, "position", f.plan_ranks[1].position = 2);
        SPOIL(kind, "host", f.plan_ranks[1].host = 1);
        SPOIL(kind, "rack", f.plan_ranks[1].rack = 1);
        SPOIL(kind, "local_rank", f.plan_ranks[0].local_rank = DPT_PROTO_RANKS_MAX);
        SPOIL(kind, "node", f.plan_ranks[0].node = 1);
        SPOIL(kind, "handover_ranks", f.plan.handover_ranks = 2);
        SPOIL(kind, "final_save", f.plan.final_save = (f.plan.handover_ranks = 1) > 0);
        SPOIL(kind, "from_seed", f.plan.resume_step = f.plan.from_seed = 1);
        SPOIL(kind, "from_seed", f.plan.load_checkpoint = !(f.plan.from_seed = 1));
        SPOIL(kind, "state_generation", f.plan.state_generation = UINT64_MAX);
        SPOIL(kind, "checkpoint_slot", f.plan_ranks[0].checkpoint_slot = 2);
    }
    SPOIL(SERVER, "generation", f.plan.generation = 0);
    SPOIL(SERVER, "phase", f.server.phase = (Dpt__ServerPhase)77);
    SPOIL_EACH(SERVER, "only_run", f.server.only_run, "../etc",
               (char *)text_of(DPT_PROTO_NAME_BYTES));
    SPOIL(SERVER, "grant_step", f.server.grant_step = -2);
    SPOIL(SERVER, "heartbeat_ms", f.server.heartbeat_ms = DPT_PROTO_TIMEOUT_MS_MAX + 1);
    SPOIL(TO_RANK, "generation", f.to_rank.generation = 6);
    SPOIL(TO_RANK, "plan", f.to_rank.plan = NULL);
    SPOIL(TO_RANK, "command", f.to_rank.command = (Dpt__RankCommand)9);
    SPOIL(TO_RANK, "grant_step", f.to_rank.grant_step = -2);
}

/* Another version, older or newer, is let through as far as it takes to answer it. */
static void test_message_of_other_version(void **state)
{
    (void)state;
    struct fixture f;
    fill_message(&f);
    f.ranks[0].phase = (Dpt__RankPhase)99;
    f.spec.min_nodes = 0;
    f.server.phase = (Dpt__ServerPhase)99;
    for (int other = -1; other <= 1; other += 2) {
        f.agent.version = f.server.version = (uint32_t)(DPT_PROTO_VERSION + other);
        takes(&f, AGENT);
        takes(&f, SERVER);
    }
}

static void test_other_version_refused(void **state)
{
    (void)state;
    SPOIL(AGENT, "software",
          (f.agent.version = 1, f.agent.software = (char *)text_of(DPT_PROTO_NAME_BYTES)));
    SPOIL(AGENT, "node", (f.agent.version = 1, f.stamp.node = "a/b"));
    SPOIL(SERVER, "text", (f.server.version = 1, f.server.text = "\001"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_messages_are_taken),
        cmocka_unit_test(test_values_survive),
        cmocka_unit_test(test_cut_messages_do_not_crash),
        cmocka_unit_test(test_oversized_message_is_refused),
        cmocka_unit_test(test_spoilt_stamp_is_refused),
        cmocka_unit_test(test_agent_fields),
        cmocka_unit_test(test_rank_fields),
        cmocka_unit_test(test_plan_fields),
        cmocka_unit_test(test_story_fields),
        cmocka_unit_test(test_message_of_other_version),
        cmocka_unit_test(test_other_version_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
