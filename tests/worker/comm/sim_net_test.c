/* The simulator's faults: death and abort at any call, silence, and life after death. */
#include "tests/worker/comm/comm_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { VICTIM = 1, SIZE = 3, CALLS_MAX = 24 };

struct plan {
    enum dpt_sim_fault fault;
    uint64_t call;
};

static enum dpt_status rounds(struct rank *self, struct dpt_comm *comm, struct dpt_comm_mem *mem,
                              int n)
{
    for (int i = 0; i < n; i++) {
        int mine = self->rank, all[SIZE];
        enum dpt_status status =
            dpt_comm_small_all_gather(comm, &mine, sizeof mine, all, &self->err);
        if (status == DPT_OK)
            status = world_gather(self, comm, mem, (const size_t[]){0, 4096, 8192},
                                  (const size_t[]){4096, 4096, 4096});
        if (status != DPT_OK)
            return status;
    }
    return DPT_OK;
}

static void fault_then_recover(struct rank *self)
{
    const struct plan *plan = self->world->arg;
    struct dpt_comm_mem *mem;
    struct dpt_comm *comm = NULL;
    int suspect = -1;
    CHECK_OK(dpt_comm_mem_create(self->listener, 3 * 4096, &mem, &self->err), &self->err);
    if (self->rank == VICTIM)
        dpt_sim_fault_at(self->world->sim, VICTIM, plan->call, plan->fault);
    pthread_barrier_wait(&self->world->barrier);
    struct dpt_comm_spec spec = world_spec(self, 1);
    /* A rank that aborts before the others have reached it is found by this timeout alone. */
    spec.timeout_ms = plan->fault == DPT_SIM_FAULT_KILL ? 30000 : 10000;
    enum dpt_status status =
        dpt_comm_create(self->listener, &spec, -1, &comm, &suspect, &self->err);
    if (status == DPT_OK) {
        status = rounds(self, comm, mem, 1000);
        suspect = dpt_comm_suspect(comm);
    }
    if (self->rank == VICTIM) {
        CHECK_STATUS(DPT_EABORTED, status, &self->err);
    } else {
        /* A rank that is aborted before another one came is missing only for that one, as are those
         * that gave up. */
        if (status != DPT_ETIMEOUT || plan->fault == DPT_SIM_FAULT_KILL) {
            CHECK_STATUS(DPT_EPEER, status, &self->err);
            CHECK(suspect == VICTIM);
        }
    }
    dpt_comm_destroy(&comm);
    pthread_barrier_wait(&self->world->barrier);
    if (self->rank == VICTIM && plan->fault == DPT_SIM_FAULT_KILL) { /* a new process */
        dpt_comm_mem_destroy(&mem);
        dpt_comm_listener_destroy(&self->listener);
        CHECK_OK(dpt_sim_listener_create(self->world->sim, VICTIM, &self->listener, &self->err),
                 &self->err);
        CHECK_OK(dpt_comm_mem_create(self->listener, 3 * 4096, &mem, &self->err), &self->err);
    }
    pthread_barrier_wait(&self->world->barrier);
    comm = world_comm(self, 2);
    CHECK_OK(rounds(self, comm, mem, 3), &self->err);
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
}

static void fault_at_any_call(void **state)
{
    (void)state;
    for (int fault = DPT_SIM_FAULT_KILL; fault <= DPT_SIM_FAULT_ABORT; fault++)
        for (uint64_t call = 0; call < CALLS_MAX; call++) {
            struct plan plan = {.fault = (enum dpt_sim_fault)fault, .call = call};
            struct world world = {.size = SIZE, .arg = &plan};
            assert_int_equal(dpt_sim_net_create(&world.sim, NULL), DPT_OK);
            world_run_threads(&world, fault_then_recover);
            dpt_sim_net_destroy(&world.sim);
        }
}

static void silence(struct rank *self)
{
    struct dpt_comm *comm = world_comm(self, 1);
    int value = 5;
    struct dpt_comm_xfer x = {.dir = self->rank == 0 ? DPT_COMM_SEND : DPT_COMM_RECV,
                              .peer = 1 - self->rank,
                              .buf = &value,
                              .bytes = sizeof value};
    struct dpt_comm_op *op;
    if (self->rank == 0) {
        dpt_sim_stall(self->world->sim, 0, 1, true);
        CHECK_OK(dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
        CHECK(dpt_sim_calls(self->world->sim, 0) >= 2);
        mark_set(&self->world->marks[0], 1);
        mark_wait(&self->world->marks[1], 1);
        dpt_sim_stall(self->world->sim, 0, 1, false);
        CHECK_OK(dpt_comm_poll(comm, op, -1, &self->err), &self->err);
    } else {
        value = 0;
        mark_wait(&self->world->marks[0], 1);
        CHECK_OK(dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
        CHECK_STATUS(DPT_INPROGRESS, dpt_comm_poll(comm, op, 20, &self->err), &self->err);
        mark_set(&self->world->marks[1], 1);
        CHECK_OK(dpt_comm_poll(comm, op, -1, &self->err), &self->err);
        CHECK(value == 5);
    }
    dpt_comm_op_free(comm, &op);
    dpt_comm_destroy(&comm);
}

static void stalled_data_does_not_arrive(void **state)
{
    (void)state;
    struct world world = {.size = 2};
    assert_int_equal(dpt_sim_net_create(&world.sim, NULL), DPT_OK);
    world_run_threads(&world, silence);
    dpt_sim_net_destroy(&world.sim);
}

static void absent_peers(void **state)
{
    (void)state;
    struct dpt_err err;
    struct dpt_sim_net *net;
    struct dpt_comm_listener *listeners[2];
    struct dpt_comm *comm = NULL;
    int suspect = -1;
    CHECK_OK(dpt_sim_net_create(&net, &err), &err);
    CHECK_OK(dpt_sim_listener_create(net, 0, &listeners[0], &err), &err);
    struct dpt_comm_peer peer = {.rank = 1, .tcp_addr = "sim:1"};
    struct dpt_comm_spec spec = {
        .run = "absent", .world_size = 2, .peers = &peer, .n_peers = 1, .timeout_ms = 30};
    CHECK_STATUS(DPT_EPEER, dpt_comm_create(listeners[0], &spec, -1, &comm, &suspect, &err), &err);
    CHECK(suspect == 1);
    CHECK_OK(dpt_sim_listener_create(net, 1, &listeners[1], &err), &err);
    suspect = -1;
    CHECK_STATUS(DPT_ETIMEOUT, dpt_comm_create(listeners[0], &spec, -1, &comm, &suspect, &err),
                 &err);
    CHECK(suspect == 1);
    set_text(peer.tcp_addr, sizeof peer.tcp_addr, "1.2.3.4:5");
    CHECK_STATUS(DPT_EINVAL, dpt_comm_create(listeners[0], &spec, -1, &comm, &suspect, &err), &err);
    dpt_comm_listener_destroy(&listeners[0]);
    dpt_comm_listener_destroy(&listeners[1]);
    dpt_sim_net_destroy(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fault_at_any_call),
        cmocka_unit_test(stalled_data_does_not_arrive),
        cmocka_unit_test(absent_peers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
