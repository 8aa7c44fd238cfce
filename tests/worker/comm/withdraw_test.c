/* Memory that is withdrawn while its communicator goes on: peers unmap it, the owner may destroy
 * it, and the communicator works as before. */
#include "tests/worker/comm/comm_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { BYTES = 3 << 20 };

/* Everybody sends all of `mem` to the next rank and receives into `to`. */
static void pass_on(struct rank *self, struct dpt_comm *comm, struct dpt_comm_mem *mem, void *to)
{
    const int size = self->world->size;
    struct dpt_comm_op *op;
    struct dpt_comm_xfer x[2] = {
        {.dir = DPT_COMM_SEND, .peer = (self->rank + 1) % size, .mem = mem, .bytes = BYTES},
        {.dir = DPT_COMM_RECV, .peer = (self->rank + size - 1) % size, .buf = to, .bytes = BYTES}};
    memset(dpt_comm_mem_data(mem), 1 + self->rank, BYTES);
    memset(to, 0, BYTES);
    CHECK_OK(dpt_comm_exchange(comm, x, 2, &op, &self->err), &self->err);
    CHECK_OK(dpt_comm_poll(comm, op, -1, &self->err), &self->err);
    dpt_comm_op_free(comm, &op);
    for (int i = 0; i < BYTES; i += 4093)
        CHECK(((uint8_t *)to)[i] == 1 + (self->rank + size - 1) % size);
}

/* A barrier: a rank that returns has read everything that was sent to it before. */
static void meet(struct rank *self, struct dpt_comm *comm)
{
    uint32_t all[RANKS_MAX], mine = (uint32_t)self->rank;
    CHECK_OK(dpt_comm_small_all_gather(comm, &mine, sizeof mine, all, &self->err), &self->err);
    pthread_barrier_wait(&self->world->barrier);
}

static void withdraw(struct rank *self)
{
    struct dpt_comm_mem *old, *kept;
    void *to = malloc(BYTES);
    CHECK(to != NULL);
    CHECK_OK(dpt_comm_mem_create(self->listener, BYTES, &old, &self->err), &self->err);
    CHECK_OK(dpt_comm_mem_create(self->listener, BYTES, &kept, &self->err), &self->err);
    for (uint64_t generation = 1; generation <= 2; generation++) {
        struct dpt_comm *comm = world_comm(self, generation);
        pass_on(self, comm, old, to);
        meet(self, comm);
        if (self->rank == 0)
            self->world->marks[0] = count_maps();
        pthread_barrier_wait(&self->world->barrier);
        dpt_comm_withdraw(comm, old);
        if (generation == 2)
            dpt_comm_mem_destroy(&old);
        pass_on(self, comm, kept, to);
        meet(self, comm);
        if (self->rank == 0) /* one map a peer of the host, and the owners' own */
            CHECK(count_maps() == self->world->marks[0] - (int)self->world->seed -
                                      (generation == 2 ? self->world->size : 0));
        pthread_barrier_wait(&self->world->barrier);
        while (dpt_comm_poll(comm, NULL, -1, &self->err) == DPT_INPROGRESS)
            continue;
        pthread_barrier_wait(&self->world->barrier);
        dpt_comm_destroy(&comm);
    }
    dpt_comm_mem_destroy(&kept);
    free(to);
}

static void withdrawn_transfers_are_gone(void **state)
{
    (void)state;
    struct world one_host = {.size = 3, .seed = 6};
    world_run_threads(&one_host, withdraw);
    struct world two_hosts = {.size = 4, .hosts = {0, 0, 1, 1}, .seed = 4};
    world_run_threads(&two_hosts, withdraw);
}

static void withdrawn_transfers_are_gone_in_the_simulator(void **state)
{
    (void)state;
    struct dpt_err err;
    struct world world = {.size = 3};
    assert_int_equal(dpt_sim_net_create(&world.sim, &err), DPT_OK);
    world_run_threads(&world, withdraw);
    dpt_sim_net_destroy(&world.sim);
}

/* A communicator that has failed is no hindrance to taking leave of memory. */
static void after_a_failure(struct rank *self)
{
    struct dpt_comm_mem *mem;
    CHECK_OK(dpt_comm_mem_create(self->listener, BYTES, &mem, &self->err), &self->err);
    struct dpt_comm *comm = world_comm(self, 1);
    dpt_comm_abort(comm);
    CHECK_STATUS(DPT_EABORTED, dpt_comm_poll(comm, NULL, -1, &self->err), &self->err);
    dpt_comm_withdraw(comm, mem);
    dpt_comm_mem_destroy(&mem);
    pthread_barrier_wait(&self->world->barrier);
    dpt_comm_destroy(&comm);
}

static void withdrawn_from_a_failed_one(void **state)
{
    (void)state;
    struct world world = {.size = 2};
    world_run_threads(&world, after_a_failure);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(withdrawn_transfers_are_gone),
        cmocka_unit_test(withdrawn_transfers_are_gone_in_the_simulator),
        cmocka_unit_test(withdrawn_from_a_failed_one),
    };
    return cmocka_run_group_tests_name("comm_withdraw", tests, NULL, NULL);
}
