/* State moved between ranks as threads, over shared memory, TCP and the simulator: from any layout
 * to any other each rank gets exactly its new part and no rank loses its old one, also when the
 * move is interrupted. */
#include "tests/worker/comm/comm_world.h"
#include "worker/strategy/state/move_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCK = 4, NUMEL = 68 * BLOCK, WORLD_MAX = 5 };

/* Units of 28 blocks, 1 block, none, 4 and 35 blocks. */
static const int64_t offsets[] = {0, 28 * BLOCK, 29 * BLOCK, 29 * BLOCK, 33 * BLOCK, NUMEL};
static const struct dpt_grid grid = {.offset = offsets, .n_units = 5, .block = BLOCK};

struct setting {
    int from, to;            /* ranks that hold, and ranks that will hold */
    bool shadow_a, shadow_b; /* before, after: also the shard of the rank before */
    int lost;                /* its parts are gone; -1: none */
    bool by_host;            /* shards of a host's ranks, a replica each, afterwards */
    bool flat;               /* masters in one flat vector, before and after */
    int xfers_max;
    struct dpt_move_state_rank ranks[WORLD_MAX];
    /* of a rank that is struck down at a call to the communicator */
    uint64_t call;
    enum dpt_sim_fault fault;
};

static float value(int vector, int64_t x)
{
    return (float)(1 + x + 1000 * vector);
}

static void assign_shards(const struct world *world, struct setting *s)
{
    memset(s->ranks, 0, sizeof s->ranks);
    for (int r = 0; r < world->size; r++) {
        struct dpt_move_state_rank *rank = &s->ranks[r];
        rank->host = world->hosts[r];
        if (r < s->from && r != s->lost) {
            rank->held[0] = (struct dpt_shard){r, s->from};
            if (s->shadow_a)
                rank->held[1] = (struct dpt_shard){(r + s->from - 1) % s->from, s->from};
        }
        int index = r, of = s->to;
        if (s->by_host) {
            index = of = 0;
            for (int k = 0; k < s->to; k++) {
                of += world->hosts[k] == world->hosts[r];
                index += world->hosts[k] == world->hosts[r] && k < r;
            }
        }
        if (r < s->to) {
            rank->wanted[0] = (struct dpt_shard){index, of};
            if (s->shadow_b)
                rank->wanted[1] = (struct dpt_shard){(r + s->to - 1) % s->to, s->to};
        }
    }
}

static struct dpt_comm_mem *make_mem(struct rank *self, int64_t numel)
{
    struct dpt_comm_mem *mem;
    CHECK_OK(
        dpt_comm_mem_create(self->listener, (size_t)(numel + 1) * sizeof(float), &mem, &self->err),
        &self->err);
    for (int64_t i = 0; i <= numel; i++)
        ((float *)dpt_comm_mem_data(mem))[i] = -1.0f;
    return mem;
}

/* Everything at its place where the masters are flat, in `whole`; else compact. */
static void make_state_part(struct rank *self, struct dpt_shard shard, struct dpt_comm_mem *whole,
                            struct dpt_state_part *ret)
{
    *ret = (struct dpt_state_part){.shard = shard};
    for (int v = 0; v < DPT_VECTOR_COUNT && !dpt_shard_is_none(shard); v++) {
        const bool flat = v == DPT_VECTOR_PARAM && whole != NULL;
        ret->vector[v].flat = flat;
        ret->vector[v].mem = flat ? whole : make_mem(self, dpt_shard_numel(&grid, shard));
    }
}

static void free_part(struct dpt_state_part *part)
{
    for (int v = 0; v < DPT_VECTOR_COUNT; v++)
        if (!part->vector[v].flat)
            dpt_comm_mem_destroy(&part->vector[v].mem);
}

static void each(const struct dpt_state_part *part, bool write)
{
    for (int u = 0; u < grid.n_units && !dpt_shard_is_none(part->shard); u++) {
        const struct dpt_interval piece = dpt_shard_piece(&grid, part->shard, u);
        for (int v = 0; v < DPT_VECTOR_COUNT; v++) {
            float *at = dpt_strategy_state_at(part, &grid, (enum dpt_vector)v, u);
            for (int64_t x = piece.first; x < piece.end; x++) {
                if (write)
                    at[x - piece.first] = value(v, x);
                CHECK(at[x - piece.first] == value(v, x));
            }
        }
    }
}

struct memory {
    struct dpt_strategy_state held, wanted;
    struct dpt_comm_mem *whole;
};

static void make_memory(struct rank *self, const struct setting *s, struct memory *m)
{
    const struct dpt_move_state_rank *mine = &s->ranks[self->rank];
    m->whole = s->flat ? make_mem(self, NUMEL) : NULL;
    make_state_part(self, mine->held[0], m->whole, &m->held.own);
    make_state_part(self, mine->held[1], NULL, &m->held.shadow);
    make_state_part(self, mine->wanted[0], m->whole, &m->wanted.own);
    make_state_part(self, mine->wanted[1], NULL, &m->wanted.shadow);
    each(&m->held.own, true);
    each(&m->held.shadow, true);
}

static void free_memory(struct memory *m)
{
    free_part(&m->held.own);
    free_part(&m->held.shadow);
    free_part(&m->wanted.own);
    free_part(&m->wanted.shadow);
    dpt_comm_mem_destroy(&m->whole);
}

static struct dpt_reshard reshard_of(const struct rank *self, const struct setting *s,
                                     const struct memory *m)
{
    return (struct dpt_reshard){.grid = &grid,
                                .rank = self->rank,
                                .world_size = self->world->size,
                                .ranks = s->ranks,
                                .held = &m->held,
                                .wanted = &m->wanted,
                                .xfers_max = s->xfers_max};
}

/* Whoever leaves has seen all others have theirs. */
static void leave_together(struct rank *self, struct dpt_comm **comm)
{
    if (*comm)
        while (dpt_comm_poll(*comm, NULL, -1, &self->err) == DPT_INPROGRESS)
            continue;
    pthread_barrier_wait(&self->world->barrier);
    dpt_comm_destroy(comm);
}

static void move(struct rank *self)
{
    const struct setting *s = self->world->arg;
    struct memory m;
    make_memory(self, s, &m);
    struct dpt_comm *comm = self->world->size > 1 ? world_comm(self, 1) : NULL;
    struct dpt_reshard reshard = reshard_of(self, s, &m);
    CHECK_OK(dpt_move_state(comm, &reshard, &self->err), &self->err);
    each(&m.wanted.own, false);
    each(&m.wanted.shadow, false);
    each(&m.held.own, false);
    each(&m.held.shadow, false);
    if (comm)
        CHECK((int64_t)dpt_comm_bytes_sent(comm) == reshard.bytes_sent);
    leave_together(self, &comm);
    free_memory(&m);
}

static void run_moves(struct setting *s, int n_hosts, struct dpt_sim_net *net)
{
    struct world world = {
        .size = s->from > s->to ? s->from : s->to, .address = "127.0.0.1", .sim = net, .arg = s};
    for (int r = 0; r < world.size; r++)
        world.hosts[r] = r * n_hosts / world.size;
    assign_shards(&world, s);
    world_run_threads(&world, move);
}

/* What a lost rank held is with its shadow. */
static void any_to_any(int n_hosts, struct dpt_sim_net *net, int step)
{
    int n = 0;
    for (int from = 1; from <= WORLD_MAX; from++)
        for (int to = 1; to <= WORLD_MAX; to++)
            for (int kind = 0; kind < 8; kind++)
                for (int lost = -1; lost < from; lost++) {
                    struct setting s = {.from = from,
                                        .to = to,
                                        .shadow_a = (kind & 1) != 0,
                                        .shadow_b = (kind & 2) != 0,
                                        .flat = (kind & 4) != 0,
                                        .lost = lost,
                                        .xfers_max = n % 2 == 0 ? 0 : 6};
                    if ((lost >= 0 && (!s.shadow_a || from < 2)) || n++ % step != 0)
                        continue;
                    run_moves(&s, n_hosts, net);
                }
}

static void over_shared_memory(void **state)
{
    (void)state;
    any_to_any(1, NULL, 5);
}

static void over_tcp_and_shared_memory(void **state)
{
    (void)state;
    any_to_any(2, NULL, 7);
    any_to_any(3, NULL, 23);
}

static void in_the_simulator(void **state)
{
    (void)state;
    struct dpt_err err;
    struct dpt_sim_net *net;
    assert_int_equal(dpt_sim_net_create(&net, &err), DPT_OK);
    any_to_any(1, net, 1);
    dpt_sim_net_destroy(&net);
}

/* From shards of the world to a replica a host, also where hosts are uneven. */
static void shards_move_to_replicas_by_host(void **state)
{
    (void)state;
    for (int to = 2; to <= WORLD_MAX; to++)
        for (int hosts = 1; hosts <= 2; hosts++) {
            struct setting s = {.from = 3, .to = to, .lost = -1, .by_host = true};
            run_moves(&s, hosts, NULL);
        }
}

/* ---- cut short ---- */

/* Rank 1 dies at some call; the others notice it, keep their parts, and continue together. */
static void struck(struct rank *self)
{
    struct setting *s = self->world->arg;
    struct memory m;
    make_memory(self, s, &m);
    struct dpt_comm *comm = world_comm(self, 1);
    pthread_barrier_wait(&self->world->barrier); /* all have theirs */
    if (self->rank == 1)
        dpt_sim_fault_at(self->world->sim, 1, dpt_sim_calls(self->world->sim, 1) + s->call,
                         s->fault);
    struct dpt_reshard reshard = reshard_of(self, s, &m);
    const enum dpt_status status = dpt_move_state(comm, &reshard, &self->err);
    CHECK(status == DPT_OK || status == DPT_EABORTED || status == DPT_EPEER);
    if (status == DPT_OK) {
        each(&m.wanted.own, false);
        each(&m.wanted.shadow, false);
    }
    each(&m.held.own, false);
    each(&m.held.shadow, false);
    if (status != DPT_OK)
        dpt_comm_abort(comm);
    dpt_comm_destroy(&comm);
    pthread_barrier_wait(&self->world->barrier);
    if (self->rank == 1 && status != DPT_OK)
        mark_set(&self->world->marks[0], 1); /* it did strike */
    pthread_barrier_wait(&self->world->barrier);
    /* All are present: once more, from their present parts. */
    if (s->fault == DPT_SIM_FAULT_ABORT && self->world->marks[0] != 0) {
        struct dpt_comm *again = world_comm(self, 2);
        struct dpt_reshard second = reshard_of(self, s, &m);
        CHECK_OK(dpt_move_state(again, &second, &self->err), &self->err);
        each(&m.wanted.own, false);
        each(&m.wanted.shadow, false);
        leave_together(self, &again);
    }
    free_memory(&m);
}

static void cut_short(void **state)
{
    (void)state;
    int struck_n = 0;
    for (int fault = 0; fault < 2; fault++)
        for (uint64_t call = 0; call < 40; call++) {
            struct dpt_err err;
            struct setting s = {.from = 3,
                                .to = 4,
                                .shadow_a = true,
                                .shadow_b = true,
                                .lost = -1,
                                .flat = call % 2 != 0,
                                .xfers_max = 3,
                                .call = call,
                                .fault = fault == 0 ? DPT_SIM_FAULT_ABORT : DPT_SIM_FAULT_KILL};
            struct world world = {.size = 4, .arg = &s};
            assert_int_equal(dpt_sim_net_create(&world.sim, &err), DPT_OK);
            assign_shards(&world, &s);
            world_run_threads(&world, struck);
            struck_n += world.marks[0];
            dpt_sim_net_destroy(&world.sim);
        }
    assert_true(struck_n > 10);
}

/* All say so, and at the same point. */
static void missing(struct rank *self)
{
    const struct setting *s = self->world->arg;
    struct memory m;
    make_memory(self, s, &m);
    struct dpt_comm *comm = world_comm(self, 1);
    struct dpt_reshard reshard = reshard_of(self, s, &m);
    CHECK_STATUS(DPT_EPEER, dpt_move_state(comm, &reshard, &self->err), &self->err);
    CHECK(strstr(self->err.text, "no rank holds") != NULL);
    leave_together(self, &comm);
    free_memory(&m);
}

static void missing_shard_ends_the_move(void **state)
{
    (void)state;
    struct setting s = {.from = 3, .to = 2, .lost = 1};
    struct world world = {.size = 3, .arg = &s};
    assign_shards(&world, &s);
    world_run_threads(&world, missing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(over_shared_memory), cmocka_unit_test(over_tcp_and_shared_memory),
        cmocka_unit_test(in_the_simulator),   cmocka_unit_test(shards_move_to_replicas_by_host),
        cmocka_unit_test(cut_short),          cmocka_unit_test(missing_shard_ends_the_move),
    };
    return cmocka_run_group_tests_name("reshard", tests, NULL, NULL);
}
