/* The machine of NCCL's communicators through thousands of random lives: any call in any order that
 * its contract allows, any fault at any time, an abort from another thread whenever it likes. The
 * double watches the rules of the library, and this file those of the machine: nothing is called
 * done that is not, every wait ends by its deadline, at the end nothing is left. An argument is the
 * one seed to run. */
#include "tests/worker/comm/nccl_double.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum {
    SEEDS = 3000,
    ACTIONS = 300,
    ENDS_MS = 4 * DOUBLE_TIMEOUT_MS /* of closing and stopping together, at the latest */
};

struct life {
    struct nccl_double d;
    struct dpt_nccl_machine *n;
    uint64_t random;
    bool may_lose; /* something was written into the script that never ends */
    bool failed, ending;
    int64_t ending_since_ms;
};

/* Events over all lives: the faults do happen. */
static struct {
    int lost, timeouts, peers, shrunk, splits, done, closed, kept, left, released;
} seen;
static uint64_t only_seed;
static char memory[16];
static const uint8_t id[DPT_NCCL_ID_BYTES] = {9};

static int below(struct life *l, int n)
{
    l->random ^= l->random << 13;
    l->random ^= l->random >> 7;
    l->random ^= l->random << 17;
    return (int)((l->random >> 11) % (uint64_t)n);
}

static bool chance(struct life *l, int percent)
{
    return below(l, 100) < percent;
}

/* Mostly soon, sometimes late, sometimes never. */
static int some_ms(struct life *l)
{
    if (chance(l, 2))
        return NEVER;
    return chance(l, 5) ? below(l, 2 * DOUBLE_TIMEOUT_MS) : below(l, 30);
}

static enum dpt_nccl_result mostly_well(struct life *l)
{
    if (below(l, 100) != 0)
        return chance(l, 50) ? DPT_NCCL_OK : DPT_NCCL_INPROGRESS;
    return (enum dpt_nccl_result)(DPT_NCCL_EUSAGE +
                                  below(l, DPT_NCCL_RESULT_COUNT - DPT_NCCL_EUSAGE));
}

static enum dpt_nccl_result mostly_ok(struct life *l)
{
    const enum dpt_nccl_result result = mostly_well(l);
    return result == DPT_NCCL_INPROGRESS ? DPT_NCCL_OK : result;
}

static void write_script(struct life *l)
{
    struct nccl_script *s = &l->d.script;
    *s = (struct nccl_script){.create_ms = some_ms(l),
                              .launch_ms = some_ms(l),
                              .op_ms = some_ms(l),
                              .revoke_ms = some_ms(l),
                              .finalize_ms = some_ms(l),
                              .abort_takes_ms = chance(l, 20) ? below(l, 100) : 0,
                              .revoke_takes_ms = chance(l, 10) ? below(l, 100) : 0,
                              .drain_ms = below(l, 10),
                              .create = mostly_well(l),
                              .create_ends = mostly_ok(l),
                              .op = mostly_well(l),
                              .op_ends = mostly_ok(l),
                              .revoke = mostly_well(l),
                              .revoke_ends = mostly_ok(l),
                              .finalize = mostly_well(l),
                              .finalize_ends = mostly_ok(l),
                              .abort = mostly_ok(l),
                              .stream_create = mostly_ok(l),
                              .child_left = chance(l, 50)};
    if (below(l, 150) == 0) {
        int *never[] = {&s->abort_takes_ms, &s->revoke_takes_ms, &s->drain_ms};
        *never[below(l, 3)] = NEVER;
        l->may_lose = true;
    }
}

static void note(struct life *l, enum dpt_status status)
{
    if (status == DPT_OK || status == DPT_INPROGRESS)
        return;
    if (l->failed)
        return; /* the same, reported again */
    l->failed = true;
    seen.timeouts += status == DPT_ETIMEOUT;
    seen.peers += status == DPT_EPEER;
}

static void begin_end(struct life *l)
{
    if (!l->ending)
        l->ending_since_ms = l->d.now_ms;
    l->ending = true;
}

static void stop(struct life *l)
{
    begin_end(l);
    dpt_nccl_machine_stop(l->n, below(l, DPT_NCCL_COMMS_MAX + 1) - 1);
}

static bool is_busy(enum dpt_nccl_state state)
{
    return state == DPT_NCCL_LAUNCHING || state == DPT_NCCL_RUNNING;
}

static bool ended_well(struct life *l)
{
    int revoked = 0;
    for (int i = 0; i < DPT_NCCL_COMMS_MAX; i++) {
        const enum dpt_nccl_state state = dpt_nccl_state(l->n, i);
        RULE(&l->d, state == DPT_NCCL_FREE || state == DPT_NCCL_REVOKED);
        revoked += state == DPT_NCCL_REVOKED;
    }
    seen.kept += revoked;
    return revoked <= 1;
}

static void step_life(struct life *l)
{
    enum dpt_nccl_state before[DPT_NCCL_COMMS_MAX];
    struct dpt_err err;
    const int64_t now = l->d.now_ms;
    for (int i = 0; i < DPT_NCCL_COMMS_MAX; i++)
        before[i] = dpt_nccl_state(l->n, i);
    const enum dpt_status status = dpt_nccl_machine_step(l->n, &err);
    for (int i = 0; i < DPT_NCCL_COMMS_MAX; i++) {
        const enum dpt_nccl_state state = dpt_nccl_state(l->n, i);
        const struct double_handle *h = double_of(l->n, i);
        if (is_busy(before[i]) && state == DPT_NCCL_READY) {
            RULE(&l->d, h->ops_done == h->ops_begun && !h->revoke_tried && !l->ending);
            seen.done++;
        }
        const bool late = state == DPT_NCCL_CREATING && l->n->comms[i].until_ms <= now;
        RULE(&l->d, !late || l->ending || (status != DPT_OK && status != DPT_INPROGRESS));
    }
    if (!l->ending) {
        note(l, status);
        return;
    }
    RULE(&l->d, status == DPT_OK || status == DPT_INPROGRESS);
    RULE(&l->d, status == DPT_OK || now <= l->ending_since_ms + ENDS_MS);
    if (status == DPT_OK) {
        RULE(&l->d, ended_well(l));
        l->ending = l->failed = false;
    }
}

static int some_comm(struct life *l, enum dpt_nccl_state state)
{
    const int first = below(l, DPT_NCCL_COMMS_MAX);
    for (int i = 0; i < DPT_NCCL_COMMS_MAX; i++) {
        const int comm = (first + i) % DPT_NCCL_COMMS_MAX;
        if (dpt_nccl_state(l->n, comm) == state && !l->n->comms[comm].has_child)
            return comm;
    }
    return -1;
}

static void create_something(struct life *l)
{
    struct dpt_err err;
    const int comm = some_comm(l, DPT_NCCL_FREE);
    const int parent = some_comm(l, chance(l, 50) ? DPT_NCCL_READY : DPT_NCCL_REVOKED);
    if (comm < 0 || l->d.n_handles + DPT_NCCL_COMMS_MAX >= DOUBLE_HANDLES_MAX)
        return;
    if (parent < 0) {
        note(l, dpt_nccl_machine_init(l->n, comm, 4, below(l, 4), id, &err));
    } else if (dpt_nccl_state(l->n, parent) == DPT_NCCL_READY) {
        note(l, dpt_nccl_machine_split(l->n, comm, parent, below(l, 3), below(l, 3), &err));
        seen.splits++;
    } else if (chance(l, 20)) {
        dpt_nccl_machine_release(l->n, parent);
        seen.released++;
    } else if (dpt_nccl_machine_can_shrink(l->n)) {
        note(l, dpt_nccl_machine_shrink(l->n, comm, parent, (const int[]){1, 2}, 2, &err));
        seen.shrunk++;
    }
}

static void operate(struct life *l)
{
    struct dpt_err err;
    const struct dpt_nccl_piece pieces[] = {
        {.kind = DPT_NCCL_SEND, .from = memory, .count = 4},
        {.kind = DPT_NCCL_RECV, .to = memory, .count = 4},
        {.kind = DPT_NCCL_ALL_REDUCE, .from = memory, .to = memory, .count = 1},
        {.kind = DPT_NCCL_REDUCE_SCATTER, .from = memory, .to = memory, .count = 1},
        {.kind = DPT_NCCL_ALL_GATHER, .from = memory, .to = memory, .count = 1}};
    const int comm = below(l, DPT_NCCL_COMMS_MAX); /* in any state: a wrong one is refused */
    const enum dpt_nccl_state state = dpt_nccl_state(l->n, comm);
    const bool ready = state == DPT_NCCL_READY && !l->n->comms[comm].has_child;
    const int calls = l->d.n_calls;
    const enum dpt_status status = dpt_nccl_machine_launch(
        l->n, comm,
        &(struct dpt_nccl_op){pieces + below(l, 3), 1 + below(l, 3), chance(l, 30) ? memory : NULL},
        &err);
    if (!ready)
        RULE(&l->d, status != DPT_OK && l->d.n_calls == calls);
    if (ready)
        note(l, status);
}

static void act_at_random(struct life *l)
{
    if (chance(l, 60))
        write_script(l);
    const int kind = below(l, 100);
    if (l->failed && !l->ending && chance(l, 50)) {
        stop(l);
    } else if (kind < 25) {
        l->d.now_ms += chance(l, 20) ? below(l, 400) : below(l, 10);
    } else if (kind < 60 || (l->ending && kind < 95)) {
        step_life(l);
    } else if (l->ending || l->failed || kind < 61) {
        stop(l);
    } else if (kind < 75) {
        create_something(l);
    } else if (kind < 99) {
        operate(l);
    } else {
        begin_end(l);
        seen.closed++;
        dpt_nccl_machine_close(l->n);
    }
}

static void finish_life(struct life *l)
{
    begin_end(l);
    dpt_nccl_machine_stop(l->n, -1);
    const int64_t start = l->d.now_ms;
    while (l->ending) {
        step_life(l);
        l->d.now_ms++;
        RULE(&l->d, l->d.now_ms <= start + ENDS_MS);
    }
    /* A stop that was under way may have kept one. */
    dpt_nccl_machine_stop(l->n, -1);
    while (dpt_nccl_machine_step(l->n, NULL) == DPT_INPROGRESS)
        l->d.now_ms++;
    dpt_nccl_machine_destroy(&l->n);
    nccl_double_check_clean(&l->d);
}

static void live(struct life *l, uint64_t seed)
{
    jmp_buf lost;
    nccl_double_init(&l->d, seed);
    l->random = seed * 0x9e3779b97f4a7c15U + 1;
    l->failed = l->ending = l->may_lose = false;
    if (seed % 5 == 0)
        l->d.calls.revoke = NULL;
    if (seed % 7 == 0)
        l->d.calls.shrink = NULL;
    l->n = nccl_double_machine(&l->d);
    l->d.lost_to = &lost;
    if (setjmp(lost) == 0) {
        for (int i = 0; i < ACTIONS; i++)
            act_at_random(l);
        finish_life(l);
        seen.left++;
        return;
    }
    RULE(&l->d, l->may_lose); /* if all calls return in time, no process is lost */
    RULE(&l->d, l->ending || l->d.lost != NULL);
    seen.lost++;
    free(l->n); /* as the process's memory would be */
}

static void thousands_of_lives(void **state)
{
    (void)state;
    struct life *l = calloc(1, sizeof *l);
    assert_non_null(l);
    if (only_seed != 0) {
        live(l, only_seed);
        free(l);
        return;
    }
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        live(l, seed);
    free(l);
    print_message("lost %d left %d done %d timeouts %d peers %d shrunk %d splits %d "
                  "closed %d kept %d released %d\n",
                  seen.lost, seen.left, seen.done, seen.timeouts, seen.peers, seen.shrunk,
                  seen.splits, seen.closed, seen.kept, seen.released);
    assert_true(seen.lost > SEEDS / 100 && seen.left > SEEDS / 2 && seen.done > SEEDS);
    assert_true(seen.timeouts > 50 && seen.peers > 50 && seen.kept > 50);
    assert_true(seen.shrunk > 50 && seen.splits > 50 && seen.closed > 50 && seen.released > 50);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(thousands_of_lives)};
    only_seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
