/* Fuzz target: a sequence of events at the agent's state machine. The bytes choose the server's
 * messages (in order, out of order, damaged byte by byte, repeated, of another epoch or
 * incarnation), the ranks' messages and deaths, signals, connections and time. The watch checks
 * every step. At the end the agent is told twice to leave, and must end in bounded time. */
#include "tests/fuzz/fuzz.h"
#include "tests/sim/agent_bench.h"

#include <stdlib.h>
#include <string.h>

enum {
    KEPT = 8, /* messages of the server that may come again */
    EVENTS_MAX = 400,
    MESSAGE_BYTES = 4096,
    WORLD_MAX = 4,
    REST_MS = 60 * 1000
};

struct process {
    bool lives, killed;
    Dpt__RankPhase phase;
    uint64_t generation;
    int64_t step;
};

struct kept {
    uint8_t data[MESSAGE_BYTES];
    size_t bytes;
};

struct world {
    struct bench *bench;
    struct process procs[RANKS];
    struct kept kept[KEPT];
    uint32_t n_kept;
    uint64_t generation; /* newest that the server has named */
};

static struct world world;

/* ---- the world round the machine ---- */

/* Carries out the actions of the last step. */
static void check_actions(void)
{
    const struct dpt_agent_output *out = &world.bench->out;
    for (size_t i = 0; i < out->n_actions; i++) {
        struct process *proc = &world.procs[out->actions[i].local_rank];
        if (out->actions[i].kind == DPT_AGENT_ACTION_SPAWN)
            *proc = (struct process){.lives = true, .step = -1};
        if (out->actions[i].kind == DPT_AGENT_ACTION_KILL)
            proc->killed = true;
    }
}

static void step_agent(struct dpt_agent_event event)
{
    bench_step(world.bench, event);
    check_actions();
}

static void tick(int64_t after_ms)
{
    world.bench->now_ms += after_ms;
    step_agent((struct dpt_agent_event){.kind = DPT_AGENT_EVENT_TICK});
}

static void exited(uint32_t local, int code)
{
    if (!world.procs[local].lives)
        return;
    world.procs[local].lives = false;
    step_agent((struct dpt_agent_event){.kind = DPT_AGENT_EVENT_RANK_EXITED,
                                        .local_rank = local,
                                        .spawn = world.bench->spawns[local],
                                        .exit_code = code});
}

/* ---- the server ---- */

static void deliver(const uint8_t *data, size_t bytes)
{
    Dpt__ServerState *message = NULL;
    struct dpt_err err;
    if (dpt_message_decode_server_state(data, bytes, &message, &err) == DPT_OK)
        step_agent((struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_MESSAGE,
                                            .server_message = message});
    dpt_message_free_server_state(&message);
}

static void server_says_anything(struct feed *feed, uint32_t n_spoilt)
{
    struct bench *b = world.bench;
    struct kept *kept = &world.kept[world.n_kept % KEPT];
    struct dpt_err err;
    b->server.counter = ++b->server_counter;
    b->server.counter_seen = b->agent_counter;
    b->stamp.incarnation = b->incarnation != 0 ? b->incarnation : 5;
    if (dpt_message_encode(&b->server.base, kept->data, sizeof kept->data, &kept->bytes, &err) !=
        DPT_OK)
        return;
    for (; n_spoilt > 0 && kept->bytes > 0; n_spoilt--) {
        const uint32_t at = feed_u8(feed) | (uint32_t)feed_u8(feed) << 8;
        kept->data[at % kept->bytes] = feed_u8(feed);
    }
    world.n_kept++;
    deliver(kept->data, kept->bytes);
}

/* A plan with this node's ranks first, of the processes that the choice says. */
static void say_with_plan(struct feed *feed, uint32_t n_spoilt)
{
    uint8_t nonce[DPT_PROTO_NONCE_BYTES] = {1};
    uint8_t outcome[] = "outcome";
    Dpt__Plan plan = DPT__PLAN__INIT;
    Dpt__PlanRank ranks[WORLD_MAX], *list[WORLD_MAX];
    const uint8_t choice = feed_u8(feed);
    plan.generation = world.bench->stamp.generation + ((choice & 0xc0) == 0xc0);
    plan.nonce = (ProtobufCBinaryData){sizeof nonce, nonce};
    plan.world_size = 1 + choice % WORLD_MAX;
    plan.n_nodes = plan.n_hosts = 1;
    plan.digest = (choice & 16) != 0 ? "plan" : "another plan";
    plan.resume_step = choice & 3;
    plan.load_checkpoint = -1;
    if ((choice & 8) != 0)
        plan.outcome = (ProtobufCBinaryData){sizeof outcome, outcome};
    plan.ranks = list;
    plan.n_ranks = plan.world_size;
    for (uint32_t i = 0; i < plan.world_size; i++) {
        dpt__plan_rank__init(&ranks[i]);
        ranks[i].rank = ranks[i].position = i;
        ranks[i].checkpoint_slot = -1;
        ranks[i].local_rank = i < RANKS ? (int32_t)i : -1;
        ranks[i].spawn = i < RANKS ? world.bench->spawns[i] + ((choice & 32) != 0) : 0;
        list[i] = &ranks[i];
    }
    world.bench->server.plan = &plan;
    server_says_anything(feed, n_spoilt);
    world.bench->server.plan = NULL;
}

/* A phase with its fields; usually the next phase. */
static void server_speaks(struct feed *feed, uint32_t n_spoilt)
{
    struct bench *b = world.bench;
    const uint8_t choice = feed_u8(feed);
    b->server.phase = (Dpt__ServerPhase)(choice % 12);
    b->server.soft = (choice & 0x40) != 0;
    b->server.grant_step = (choice & 0x80) != 0 ? (int64_t)(choice & 0x30) : -1;
    if (b->server.phase == SERVER(PREPARE) || b->server.phase == SERVER(SPARE))
        world.generation += (choice & 0x10) == 0;
    b->stamp.generation = world.generation;
    if (b->server.phase == SERVER(PLAN))
        say_with_plan(feed, n_spoilt);
    else
        server_says_anything(feed, n_spoilt);
}

static void server_changes(struct feed *feed)
{
    struct bench *b = world.bench;
    static const char *const nodes[] = {"a", "a", "b"};
    switch (feed_below(feed, 8)) {
    case 0: /* started again */
        b->stamp.epoch++;
        b->server_counter = 0;
        break;
    case 1:
        b->stamp.run = feed_below(feed, 2) ? "demo" : "other";
        break;
    case 2:
        b->stamp.node = (char *)nodes[feed_below(feed, 3)];
        break;
    case 3:
        b->server.version = DPT_PROTO_VERSION + (feed_below(feed, 8) == 0);
        break;
    case 4:
        b->server.last_holder = !b->server.last_holder;
        b->server.paused = b->server.last_holder;
        b->server.save_from = feed_u8(feed);
        b->server.drain = feed_u8(feed) >= 0xf0;
        break;
    case 5:
        b->server.n_nodes = feed_u8(feed);
        break;
    default:
        world.generation += feed_below(feed, 3);
    }
}

/* It does not count this incarnation in: hello, refusal, the end. */
static void server_greets(struct feed *feed)
{
    struct bench *b = world.bench;
    const uint64_t seen = b->agent_counter;
    Dpt__RunSpec spec = bench_spec();
    b->agent_counter = 0;
    b->server.phase = (Dpt__ServerPhase)feed_below(feed, 12);
    b->server.spec = feed_below(feed, 2) ? &spec : NULL;
    server_says_anything(feed, 0);
    b->server.spec = NULL;
    if (b->agent_counter == 0)
        b->agent_counter = seen;
}

/* ---- ranks ---- */

/* As through the link: a message that does not decode is dropped. */
static void deliver_rank(const Dpt__RankToAgent *message, uint32_t local, uint32_t spawn)
{
    uint8_t packed[MESSAGE_BYTES];
    size_t bytes;
    struct dpt_err err;
    Dpt__RankToAgent *back = NULL;
    if (dpt_message_encode(&message->base, packed, sizeof packed, &bytes, &err) == DPT_OK &&
        dpt_message_decode_rank_to_agent(packed, bytes, &back, &err) == DPT_OK)
        step_agent((struct dpt_agent_event){.kind = DPT_AGENT_EVENT_RANK_MESSAGE,
                                            .local_rank = local,
                                            .spawn = spawn,
                                            .rank_message = back});
    dpt_message_free_rank_to_agent(&back);
}

static void rank_says(uint32_t local, struct feed *feed, bool spoilt)
{
    struct bench *b = world.bench;
    const struct process *proc = &world.procs[local];
    static uint8_t outcome[] = "outcome";
    b->rank.outcome_step = -1;
    b->rank.outcome = (ProtobufCBinaryData){0, NULL};
    b->rank.text = "";
    b->rank.step_applied = proc->step;
    b->rank.busy = false;
    Dpt__RankToAgent message = DPT__RANK_TO_AGENT__INIT;
    message.state = &b->rank;
    b->rank.local_rank = local;
    b->rank.spawn = b->spawns[local] != 0 ? b->spawns[local] : 1;
    b->rank.phase = proc->phase;
    b->rank.generation = proc->generation;
    const uint8_t choice = spoilt ? feed_u8(feed) : 0;
    if ((choice & 1) != 0)
        b->rank.phase = (Dpt__RankPhase)feed_below(feed, 7);
    if ((choice & 2) != 0)
        b->rank.generation = world.generation + feed_below(feed, 3) - 1;
    if ((choice & 4) != 0 && proc->step >= 0) {
        b->rank.outcome_step = proc->step + 1;
        b->rank.outcome = (ProtobufCBinaryData){sizeof outcome, outcome};
    }
    if ((choice & 8) != 0)
        b->rank.step_applied = feed_u8(feed);
    if ((choice & 16) != 0)
        b->rank.text = "out of memory";
    if ((choice & 32) != 0)
        message.step_ms_median = feed_u8(feed);
    if ((choice & 0xc0) == 0xc0) {
        message.fatal = true;
        message.exit_code = feed_u8(feed);
    }
    deliver_rank(&message, local, b->rank.spawn - ((choice & 0xc0) == 0x40));
}

/* Obeys the last command and reports it. */
static void rank_obeys(uint32_t local, struct feed *feed)
{
    struct process *proc = &world.procs[local];
    const struct bench *b = world.bench;
    if (!proc->lives || proc->killed)
        return;
    proc->generation = b->generation[local];
    switch (b->command[local]) {
    case COMMAND(PREPARE_SOFT):
    case COMMAND(PREPARE):
        proc->phase = RANK(QUIESCED);
        break;
    case COMMAND(PLAN):
        proc->phase = RANK(READY);
        break;
    case COMMAND(GO):
        proc->phase = feed_below(feed, 8) == 0 ? RANK(FINISHED) : RANK(RUNNING);
        proc->step++;
        break;
    case COMMAND(EXIT):
        exited(local, 0);
        return;
    default:
        proc->phase = RANK(STANDBY);
        proc->generation = 0;
    }
    rank_says(local, feed, false);
}

/* ---- the sequence ---- */

static void pass_time(struct feed *feed)
{
    static const int64_t jumps_ms[] = {0, 1, 10, 100, 300, 600, 1500, 3500, 5000, 9000, 61000};
    const uint32_t choice = feed_below(feed, 16);
    if (choice < sizeof jumps_ms / sizeof jumps_ms[0]) {
        tick(jumps_ms[choice]);
        return;
    }
    const int64_t until_ms = world.bench->now_ms + 100 * (int64_t)(choice - 9);
    while (world.bench->now_ms < until_ms && !world.bench->ended) {
        const int64_t next_ms = world.bench->out.deadline_ms;
        tick(next_ms > world.bench->now_ms ? next_ms - world.bench->now_ms : 1);
        for (uint32_t i = 0; i < RANKS; i++)
            if (world.procs[i].lives && !world.procs[i].killed)
                rank_says(i, feed, false);
    }
}

static void one_event(struct feed *feed)
{
    const uint8_t choice = feed_u8(feed);
    const uint32_t local = choice % RANKS;
    switch (choice / RANKS % 20) {
    case 0:
    case 1:
    case 2:
    case 3:
        rank_obeys(local, feed);
        break;
    case 4:
    case 5:
    case 6:
    case 7:
    case 8:
        server_speaks(feed, 0);
        break;
    case 9:
        server_speaks(feed, 1 + feed_below(feed, 3));
        break;
    case 10:
        server_changes(feed);
        break;
    case 11:
        server_greets(feed);
        break;
    case 12: { /* again */
        const struct kept *kept = &world.kept[feed_below(feed, KEPT)];
        if (kept->bytes > 0)
            deliver(kept->data, kept->bytes);
        break;
    }
    case 13:
    case 14:
        rank_says(local, feed, true);
        break;
    case 15:
        exited(local, (int)feed_u8(feed) - 64);
        break;
    case 16:
        step_agent((struct dpt_agent_event){.kind = DPT_AGENT_EVENT_RANK_EOF,
                                            .local_rank = feed_below(feed, 3),
                                            .spawn = world.bench->spawns[local]});
        break;
    case 17:
        if (feed_below(feed, 8) == 0)
            bench_signal(world.bench);
        else
            step_agent((struct dpt_agent_event){.kind = feed_below(feed, 2)
                                                            ? DPT_AGENT_EVENT_SERVER_UP
                                                            : DPT_AGENT_EVENT_SERVER_DOWN});
        check_actions();
        break;
    case 18:
        bench_configure(world.bench);
        check_actions();
        break;
    default:
        pass_time(feed);
    }
    for (uint32_t i = 0; i < RANKS; i++) /* a killed process is reaped, sooner or later */
        if (world.procs[i].killed && (choice & 0x80) != 0)
            exited(i, -9);
}

/* Told twice to leave, the agent kills the remaining processes and ends. */
static void come_to_rest(void)
{
    const int64_t until_ms = world.bench->now_ms + REST_MS;
    for (int i = 0; i < 2; i++)
        step_agent((struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SIGNAL});
    while (!world.bench->ended && world.bench->now_ms < until_ms) {
        for (uint32_t i = 0; i < RANKS; i++)
            if (world.procs[i].killed)
                exited(i, -9);
        if (!world.bench->ended)
            tick(world.bench->out.deadline_ms - world.bench->now_ms);
    }
    DPT_ASSERT(world.bench->ended);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct feed feed = feed_from(data, bytes);
    void *bench = NULL;
    memset(&world, 0, sizeof world);
    DPT_ASSERT(bench_open(&bench) == 0);
    world.bench = bench;
    if ((feed_u8(&feed) & 1) == 0) /* as most do; else it asks the server for its config */
        bench_configure(world.bench);
    for (int n = 0; n < EVENTS_MAX && !feed_is_over(&feed); n++)
        one_event(&feed);
    come_to_rest();
    DPT_ASSERT(bench_close(&bench) == 0);
    return 0;
}
