/* The data plane between GPUs where it cannot be opened: a library that is silent or fails, an id
 * that is not made, a death, an abort (nccl_gpus.h). */
#include "base/clock.h"
#include "tests/worker/comm/nccl_gpus.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* The library of one rank never ends its creation: all fail, and can try again. */
static void silent_ranks(struct rank *self)
{
    struct gpu g = gpu_plug_in(self);
    gpu_create(&g);
    g.control = world_comm(self, 1);
    const enum dpt_status status = gpu_open_with(&g, 1, NULL, 0);
    CHECK(status == DPT_ETIMEOUT || status == DPT_EPEER);
    g.view.fault = FABRIC_WELL;
    gpu_open_world(&g, 1);
    gpu_all_reduce(&g);
    gpu_unplug(&g);
}

static void creation_without_end(void **state)
{
    (void)state;
    struct scene scene = {.fault = FABRIC_SILENT_IN_INIT, .timeout_ms = SHORT_MS};
    gpu_run(3, &scene, silent_ranks);
}

/* The library of one rank fails in the creation, and thereby that of the others: that rank is at
 * fault, whatever the others hear first. If it makes all fail at once, one of them is at fault, no
 * matter which. */
static void failing_ranks(struct rank *self)
{
    struct gpu g = gpu_plug_in(self);
    gpu_create(&g);
    g.control = world_comm(self, 1);
    const enum dpt_status status = gpu_open_with(&g, 1, NULL, 0);
    CHECK(status == DPT_EDEVICE || status == DPT_EPEER);
    if (g.scene->fault == FABRIC_FAILS_IN_INIT)
        CHECK((status == DPT_EDEVICE) == (self->rank == VICTIM));
    atomic_fetch_add(&g.scene->at_fault, status == DPT_EDEVICE);
    g.view.fault = FABRIC_WELL;
    gpu_open_world(&g, 1);
    gpu_all_reduce(&g);
    gpu_unplug(&g);
}

/* The rank that makes the id fails: the fault is its own, not another rank's. */
static void ranks_without_an_id(struct rank *self)
{
    struct gpu g = gpu_plug_in(self);
    gpu_create(&g);
    g.control = world_comm(self, 1);
    g.view.fault = self->rank == 0 ? FABRIC_NO_ID : FABRIC_WELL;
    CHECK_STATUS(self->rank == 0 ? DPT_EDEVICE : DPT_EPEER, gpu_open_with(&g, 1, NULL, 0),
                 &self->err);
    g.view.fault = FABRIC_WELL;
    gpu_open_world(&g, 1);
    gpu_unplug(&g);
}

static void an_id_that_fails(void **state)
{
    (void)state;
    struct scene scene = {.fault = FABRIC_WELL};
    gpu_run(3, &scene, ranks_without_an_id);
}

static void a_creation_that_fails(void **state)
{
    (void)state;
    for (int i = 0; i < 120; i++) {
        struct scene scene = {.fault = i % 2 ? FABRIC_TEARS_IN_INIT : FABRIC_FAILS_IN_INIT};
        gpu_run(3, &scene, failing_ranks);
        assert_int_equal(atomic_load(&scene.at_fault), 1);
    }
}

/* One dies, or is aborted, while the others create: they need not wait for the deadline. */
static void dying_in_creation_ranks(struct rank *self)
{
    struct gpu g = gpu_plug_in(self);
    gpu_create(&g);
    g.control = world_comm(self, 1);
    pthread_barrier_wait(&self->world->barrier); /* all have one */
    if (self->rank == VICTIM) {
        dpt_comm_abort(g.control);
        if (g.scene->aborts)
            CHECK_STATUS(DPT_EABORTED, gpu_open_with(&g, 1, NULL, 0), &self->err);
        else
            CHECK_STATUS(DPT_EABORTED, dpt_comm_poll_woken(g.control, -1, &self->err), &self->err);
        dpt_comm_destroy(&g.control);
    } else {
        const int64_t start = dpt_now_ms();
        CHECK_STATUS(DPT_EPEER, gpu_open_with(&g, 1, NULL, 0), &self->err);
        CHECK(dpt_now_ms() - start < LONG_MS / 2);
        dpt_nccl_comm_quit(g.comm); /* there is nothing */
        dpt_comm_destroy(&g.control);
    }
    dpt_nccl_comm_destroy(&g.comm);
}

static void a_death_in_creation(void **state)
{
    (void)state;
    for (int aborts = 0; aborts < 2; aborts++) {
        struct scene scene = {.fault = FABRIC_WELL, .aborts = aborts};
        gpu_run(3, &scene, dying_in_creation_ranks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(creation_without_end),
        cmocka_unit_test(a_creation_that_fails),
        cmocka_unit_test(an_id_that_fails),
        cmocka_unit_test(a_death_in_creation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
