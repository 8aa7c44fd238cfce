/* Fuzz target: a sequence of events at the server's state machine. The bytes choose the senders and
 * their messages: agents that obey, with messages that are damaged field by field or byte by byte,
 * repeated, of an earlier incarnation or of another run; connections that break, ranks and nodes
 * that die or are denied, time that jumps, a server that restarts. The watch checks every step. At
 * the end faults cease: new processes join, and the run must reach RUNNING in bounded time. */
#include "tests/fuzz/fuzz.h"
#include "tests/rendezvous/core/fake_agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NODES = 4,
    KEPT = 8,         /* messages that may be said again */
    EVENTS_MAX = 400, /* of one input */
    TIMEOUT_MS = 5000,
    /* Incarnations at rest are so far apart that no damaged message has one of them: the server
     * would take its sender for that process. */
    LATER = 123456789,
    MESSAGE_BYTES = 8192,
    REST_MS = 400 * 1000, /* in which a run without faults runs, benches and pauses included */
};

struct kept {
    uint8_t data[MESSAGE_BYTES];
    size_t bytes;
    uint64_t conn;
};

struct world {
    struct stage stage;
    struct fake nodes[NODES];
    struct kept kept[KEPT];
    uint32_t n_kept;
    uint64_t next_conn, epoch;
    uint64_t operators; /* programs that have sent commands */
};

static struct world world;

/* ---- words ---- */

/* Damaged bytes make a spec that does not match its digest: a run that waits for more nodes than
 * there are, or minutes for each, comes to rest later than this test waits. */
static void bound_spec(Dpt__RunSpec *spec)
{
    if (spec == NULL)
        return;
    if (spec->min_nodes > NODES)
        spec->min_nodes = NODES;
    if (spec->timeout_ms > TIMEOUT_MS)
        spec->timeout_ms = TIMEOUT_MS;
}

/* As on the wire: a message that does not decode is dropped by every server. */
static void deliver(const uint8_t *data, size_t bytes, uint64_t conn)
{
    Dpt__AgentState *message = NULL;
    struct dpt_err err;
    if (dpt_message_decode_agent_state(data, bytes, &message, &err) == DPT_OK) {
        bound_spec(message->spec);
        stage_step(&world.stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_MESSAGE,
                                                         .conn = conn,
                                                         .message = message});
    }
    dpt_message_free_agent_state(&message);
}

/* Sends the fake's present state, with up to three bytes overwritten. */
static void fake_says_anything(struct fake *fake, struct feed *feed, uint32_t n_spoilt)
{
    struct kept *kept = &world.kept[world.n_kept % KEPT];
    struct dpt_err err;
    fake_prepare(fake);
    if (dpt_message_encode(&fake->state.base, kept->data, sizeof kept->data, &kept->bytes, &err) !=
        DPT_OK)
        return;
    for (; n_spoilt > 0 && kept->bytes > 0; n_spoilt--) {
        const uint32_t at = feed_u8(feed) | (uint32_t)feed_u8(feed) << 8;
        kept->data[at % kept->bytes] = feed_u8(feed);
    }
    kept->conn = fake->conn;
    world.n_kept++;
    deliver(kept->data, kept->bytes, kept->conn);
}

/* An old word again, perhaps on another connection. A TICK goes before it, so that nothing but the
 * word could change anything. */
static void repeat(struct feed *feed)
{
    const struct kept *kept = &world.kept[feed_below(feed, KEPT)];
    const uint64_t conn = feed_below(feed, 4) == 0 ? ++world.next_conn : kept->conn;
    stage_tick(&world.stage, 0);
    if (kept->bytes > 0)
        deliver(kept->data, kept->bytes, conn);
}

/* ---- messages of a fake, right and wrong ---- */

static int64_t odd_number(struct feed *feed, int64_t near)
{
    static const int64_t edges[] = {-1, 0, 1, 1000, DPT_PROTO_STEP_MAX, DPT_PROTO_STEP_MAX - 1};
    const uint32_t choice = feed_below(feed, 16);
    return choice < 6 ? edges[choice] : near + (int64_t)choice - 11;
}

/* What rank 0 says that it holds. */
static void spoil_parts(struct fake *fake, struct feed *feed)
{
    Dpt__RankState *rank = &fake->ranks[0];
    switch (feed_below(feed, 4)) {
    case 0:
        fake_no_parts(fake);
        break;
    case 1:
        if (rank->n_shards < DPT_PROTO_SHARDS_MAX) {
            const uint32_t of = 1 + feed_below(feed, 4);
            fake_part(fake, feed_below(feed, of), of, rank->pending_generation != 0);
        }
        break;
    case 2:
        rank->gradient = !rank->gradient;
        rank->ran_generation = fake->generation - feed_below(feed, 3);
        break;
    default:
        rank->pending_generation = fake->generation - feed_below(feed, 3);
    }
}

static void spoil_rank(struct fake *fake, struct feed *feed)
{
    static uint8_t outcome[16] = "outcome";
    Dpt__RankState *rank = &fake->ranks[feed_below(feed, FAKE_RANKS)];
    switch (feed_below(feed, 13)) {
    case 0:
        rank->phase = (Dpt__RankPhase)feed_below(feed, 7);
        break;
    case 1:
        rank->generation = (uint64_t)odd_number(feed, (int64_t)fake->generation);
        break;
    case 2:
        rank->step_applied = odd_number(feed, rank->step_applied);
        break;
    case 3: /* it saw the commit of the next step, or of this one */
        rank->outcome_step = rank->step_applied + (int64_t)feed_below(feed, 2);
        rank->outcome = (ProtobufCBinaryData){1 + feed_below(feed, 16), outcome};
        break;
    case 4:
        rank->outcome_step = -1;
        rank->outcome.len = 0;
        break;
    case 5:
        rank->checkpoint_step = odd_number(feed, rank->step_applied);
        break;
    case 6:
        rank->grant_step = odd_number(feed, rank->step_applied);
        break;
    case 7:
        rank->failed_generation = fake->generation - feed_below(feed, 2);
        rank->suspect = (int32_t)feed_below(feed, 6) - 1;
        break;
    case 8: /* dies, and a successor starts */
        rank->phase =
            feed_below(feed, 2) ? DPT__RANK_PHASE__RANK_DEAD : DPT__RANK_PHASE__RANK_STARTING;
        rank->spawn += feed_below(feed, 3);
        rank->step_applied = rank->outcome_step = -1;
        break;
    case 9:
        rank->busy = !rank->busy;
        rank->step_ms_median = odd_number(feed, 50);
        break;
    case 10:
        rank->silent_ms = odd_number(feed, 100);
        break;
    case 11:
        rank->plan_rank = (int32_t)feed_below(feed, 10) - 1;
        break;
    default:
        switch (feed_below(feed, 4)) {
        case 0:
            rank->text = "";
            break;
        case 1:
            rank->text = rank->unsaved_why = "out of memory";
            rank->unsaved_step = rank->step_applied;
            rank->unsaved_generation = fake->generation;
            break;
        default:
            spoil_parts(fake, feed);
        }
    }
}

static void spoil_node(struct fake *fake, struct feed *feed)
{
    static const char *const words[] = {"", "a", "cpu", "logs", "demo", "digest"};
    switch (feed_below(feed, 16)) {
    case 0:
        fake->state.leaving = !fake->state.leaving;
        break;
    case 1:
        fake->state.crashes = feed_below(feed, 8) == 0 ? UINT32_MAX : fake->state.crashes + 1;
        fake->state.first_error = "rank process 0: killed";
        fake->state.first_error_ms_ago = odd_number(feed, 500);
        break;
    case 2:
        fake->state.fatal = feed_below(feed, 4) == 0;
        break;
    case 3:
        fake->state.n_ranks = feed_below(feed, FAKE_RANKS + 1);
        break;
    case 4:
        fake->state.spec = fake->state.spec == NULL ? &fake->spec : NULL;
        break;
    case 5:
        fake->spec.max_restarts = feed_below(feed, 4);
        break;
    case 6:
        fake->state.fingerprint = (char *)words[feed_below(feed, 6)];
        break;
    case 7:
        fake->state.host = fake->state.rack = (char *)words[feed_below(feed, 3)];
        break;
    case 8:
        fake->state.log_dir_id = (char *)words[feed_below(feed, 6)];
        break;
    case 9:
        fake->state.checkpoint_dir_id = (char *)words[feed_below(feed, 6)];
        break;
    case 10:
        fake->state.plan_digest = (char *)words[feed_below(feed, 6)];
        fake->state.plan_world = feed_below(feed, 6);
        break;
    case 11:
        fake->state.step_high = odd_number(feed, 10);
        break;
    case 12:
        fake->generation += feed_below(feed, 3) - 1;
        break;
    case 13:
        fake->epoch = feed_below(feed, 2) ? world.epoch : world.epoch - 1;
        break;
    case 14:
        fake->stamp.run = feed_below(feed, 4) == 0 ? "other" : "demo";
        break;
    default:
        fake->counter = feed_below(feed, 4) == 0 ? UINT64_MAX - 1 : fake->counter / 2;
    }
}

/* ---- nodes ---- */

/* The agent is started again, or was expelled: a new incarnation, new processes, no state. */
static void start_again(struct fake *fake, uint64_t later)
{
    const uint64_t incarnation = fake->stamp.incarnation + later;
    const uint64_t conn = ++world.next_conn;
    char id[DPT_PROTO_NAME_BYTES];
    (void)snprintf(id, sizeof id, "%s", fake->id);
    fake_fini(fake);
    fake_reset(fake, id);
    fake->conn = conn;
    fake->stamp.incarnation = incarnation;
    fake->state.n_ranks = FAKE_RANKS;
}

/* Another process of this node id, on a separate connection: it lacks this one's secret. */
static void meet_stranger(struct fake *fake, struct feed *feed)
{
    static uint8_t secret[DPT_PROTO_SECRET_BYTES] = {1};
    const uint64_t conn = fake->conn;
    fake->conn = ++world.next_conn;
    fake->stamp.incarnation++;
    const ProtobufCBinaryData own = fake->state.secret;
    fake->state.secret = (ProtobufCBinaryData){sizeof secret, secret};
    stage_tick(&world.stage, 0);
    fake_says_anything(fake, feed, 0);
    fake->state.secret = own;
    fake->stamp.incarnation--;
    fake->conn = conn;
}

/* A command of dpt-ctl about the run of the nodes; `is_copy`: the process of the last one asks. */
static void operator_says(Dpt__ControlVerb verb, const char *node, int64_t step, bool is_copy)
{
    char run[] = "demo", name[] = "dpt-ctl", software[] = "fuzz";
    Dpt__Stamp stamp = DPT__STAMP__INIT;
    Dpt__AgentState state = DPT__AGENT_STATE__INIT;
    Dpt__Control control = DPT__CONTROL__INIT;
    world.operators += !is_copy;
    stamp.run = run;
    stamp.node = name;
    stamp.incarnation = 1 + world.operators;
    state.version = DPT_PROTO_VERSION;
    state.software = software;
    state.stamp = &stamp;
    state.counter = 1;
    state.control = &control;
    control.verb = verb;
    control.run = run;
    control.node = (char *)node;
    control.step = step;
    stage_step(&world.stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_MESSAGE,
                                                     .conn = ++world.next_conn,
                                                     .message = &state});
}

/* Obeys the last command, as agents and ranks do. */
static void fake_obeys(struct fake *fake, struct feed *feed)
{
    if (fake->phase == DPT__SERVER_PHASE__SERVER_EXPELLED)
        start_again(fake, 1);
    fake_obey(fake);
    if (fake->ranks[0].phase == DPT__RANK_PHASE__RANK_RUNNING && feed_below(feed, 2)) {
        for (uint32_t i = 0; i < FAKE_RANKS; i++)
            fake->ranks[i].step_applied++;
        if (feed_below(feed, 16) == 0)
            fake_phase(fake, DPT__RANK_PHASE__RANK_FINISHED, fake->generation);
    }
}

/* Every second server has the journal of those before it, and every fourth one an older copy. */
static void restart_server(void)
{
    const size_t n = kept_records_count(world.stage.journal);
    world.epoch++;
    if (world.epoch % 4 == 0)
        stage_restart_with_older_journal(&world.stage, world.epoch, n - (n < 5 ? n : 5));
    else if (world.epoch % 2 == 0)
        stage_restart_with_journal(&world.stage, world.epoch);
    else
        stage_restart(&world.stage, world.epoch);
    stage_tick(&world.stage, 1);
    for (int i = 0; i < NODES; i++) {
        world.nodes[i].conn = ++world.next_conn;
        world.nodes[i].state.spec = &world.nodes[i].spec;
        if (fake_place(&world.nodes[i]) != NULL)
            world.nodes[i].ranks[0].plan_rank = (int32_t)fake_place(&world.nodes[i])->rank;
    }
}

/* ---- the sequence ---- */

static void pass_time(struct feed *feed)
{
    static const int64_t jumps_ms[] = {0, 1, 10, 50, 100, 300, 1000, 4600, 5000, 20000, 70000};
    const uint32_t choice = feed_below(feed, 16);
    if (choice < sizeof jumps_ms / sizeof jumps_ms[0])
        stage_tick(&world.stage, jumps_ms[choice]); /* a loop that stood still */
    else if (choice == 11)
        stage_backlog(&world.stage, 100);
    else
        stage_pass(&world.stage, 100 * (int64_t)(choice - 10)); /* one that did not */
}

static void one_event(struct feed *feed)
{
    const uint8_t choice = feed_u8(feed);
    struct fake *fake = &world.nodes[choice % NODES];
    switch (choice / NODES % 16) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4: /* all is well */
        fake_obeys(fake, feed);
        fake_says_anything(fake, feed, 0);
        break;
    case 5: /* time passes without faults */
        for (int i = 0; i < NODES; i++) {
            fake_obeys(&world.nodes[i], feed);
            fake_says_anything(&world.nodes[i], feed, 0);
        }
        stage_tick(&world.stage, 100);
        break;
    case 6:
    case 7:
        spoil_rank(fake, feed);
        fake_says_anything(fake, feed, 0);
        break;
    case 8:
        spoil_node(fake, feed);
        fake_says_anything(fake, feed, 0);
        break;
    case 9:
        fake_obeys(fake, feed);
        fake_says_anything(fake, feed, 1 + feed_below(feed, 3));
        break;
    case 10:
        repeat(feed);
        break;
    case 11:
        stage_step(&world.stage,
                   (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = fake->conn});
        if (feed_below(feed, 2))
            fake->conn = ++world.next_conn;
        break;
    case 12:
        start_again(fake, 1);
        fake_says_anything(fake, feed, 0);
        break;
    case 13:
        switch (feed_below(feed, 4)) {
        case 0:
            restart_server();
            break;
        case 1:
            meet_stranger(fake, feed);
            break;
        case 2: {
            const uint8_t what = feed_u8(feed);
            operator_says((Dpt__ControlVerb)(what % 10), (what & 0x10) != 0 ? fake->id : "",
                          (what & 0x20) != 0 ? what : -1, (what & 0x40) != 0);
            break;
        }
        default: /* its key is denied, until it is heard again */
            stage_step(&world.stage,
                       (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_DENIED, .conn = fake->conn});
        }
        break;
    default:
        pass_time(feed);
    }
}

/* Faults have ceased. Everybody is started again, pauses and denials are taken back, as operators
 * do, and the run gets going: a run
 * that has failed or is done, or that spoilt words made of another config, is forgotten first. */
static void come_to_rest(void)
{
    struct feed nothing = {0};
    for (int i = 0; i < NODES; i++)
        start_again(&world.nodes[i], LATER);
    const int64_t until_ms = world.stage.now_ms + REST_MS;
    bool runs = false;
    for (int round = 0; !runs && world.stage.now_ms < until_ms; round++) {
        operator_says(DPT__CONTROL_VERB__CONTROL_RESUME, "", -1, false);
        operator_says(DPT__CONTROL_VERB__CONTROL_ALLOW, world.nodes[round % NODES].id, -1, false);
        for (int i = 0; i < NODES; i++) {
            struct fake *fake = &world.nodes[i];
            if (fake->phase == DPT__SERVER_PHASE__SERVER_EXPELLED ||
                fake->phase == DPT__SERVER_PHASE__SERVER_FAILED ||
                fake->phase == DPT__SERVER_PHASE__SERVER_DONE ||
                fake->phase == DPT__SERVER_PHASE__SERVER_REFUSED)
                start_again(fake, LATER);
            fake_obey(fake);
            fake_says_anything(fake, &nothing, 0);
        }
        stage_tick(&world.stage, 100);
        for (size_t i = 0; i < dpt_rdzv_runs(world.stage.core); i++) {
            struct dpt_rdzv_run_view view;
            dpt_rdzv_run_view(world.stage.core, i, &view);
            runs = runs || (strcmp(view.run, "demo") == 0 && view.phase == DPT_RDZV_RUNNING);
        }
    }
    DPT_ASSERT(runs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct feed feed = feed_from(data, bytes);
    memset(&world, 0, sizeof world);
    stage_open(&world.stage);
    world.epoch = 77;
    world.next_conn = 5000;
    const uint8_t shape = feed_u8(&feed);
    for (int i = 0; i < NODES; i++) {
        const char id[] = {(char)('a' + i), '\0'};
        fake_init(&world.nodes[i], &world.stage, id);
        world.nodes[i].state.n_ranks = 1 + (shape & 1);
        world.nodes[i].spec.min_nodes = 1 + (shape >> 1) % 3;
        world.nodes[i].spec.max_world = (shape & 16) != 0 ? 2 : 16;
        if ((shape & 32) != 0)
            world.nodes[i].state.host = "one";
        world.nodes[i].spec.sharded = (shape & 64) != 0;
    }
    for (int n = 0; n < EVENTS_MAX && !feed_is_over(&feed); n++)
        one_event(&feed);
    come_to_rest();
    stage_close(&world.stage);
    return 0;
}
