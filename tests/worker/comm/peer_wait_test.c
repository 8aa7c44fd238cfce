/* Traced waits for late peers: the peer that comes is named, its lateness is the wait, and a
 * transfer under way is no wait. Through shared memory and TCP. */
#include "tests/worker/comm/comm_world.h"
#include "worker/trace/recorder.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>
#include <sched.h>

enum {
    EVENTS = 4096,
    BYTES = 100000,
    LARGE = 32 << 20,
    GIVEN = 8 << 20,
    NS_A_MS = 1000000,
    EARLY_MS = 15,
    LATE_MS = 45,
    TRIES = 100
};

/* Rank 0 also sends this much to both, more than sockets take; set by the test. */
static size_t given_bytes;

static const int64_t late_ns[] = {0, EARLY_MS *NS_A_MS, LATE_MS *NS_A_MS};

/* One try of a scene. Rank 0 writes `began` before the others read it (marks). */
static struct {
    int64_t began_ns, ended_ns; /* of rank 0's poll */
    int64_t sent_ns[3];
    struct dpt_trace_event wait[EVENTS];
    size_t n_waits;
} scene;

/* Works until a time on the clock, as a slow rank does. */
static void work_until(int64_t end_ns)
{
    while (dpt_now_ns() < end_ns)
        (void)sched_yield();
}

/* Runs rank 0's wait with a recorder, and keeps its waits. */
static void receive_traced(struct rank *self, struct dpt_comm *comm, struct dpt_comm_op **op,
                           int *mark)
{
    struct dpt_trace_recorder *recorder = NULL;
    struct dpt_trace_events events;
    CHECK_OK(dpt_trace_recorder_create(EVENTS, &recorder, &self->err), &self->err);
    dpt_trace_attach(recorder, DPT_TRACE_COMM);
    dpt_trace_recorder_begin(recorder);
    scene.began_ns = dpt_now_ns();
    mark_set(mark, 1);
    CHECK_OK(dpt_comm_poll(comm, *op, -1, &self->err), &self->err);
    dpt_comm_op_free(comm, op);
    scene.ended_ns = dpt_now_ns();
    dpt_trace_recorder_end(recorder);
    dpt_trace_recorder_read(recorder, DPT_TRACE_COMM, &events);
    scene.n_waits = events.n;
    if (events.n > 0)
        memcpy(scene.wait, events.event, events.n * sizeof *events.event);
    dpt_trace_attach(NULL, DPT_TRACE_COMM);
    dpt_trace_recorder_destroy(&recorder);
}

static void come_late(struct rank *self)
{
    struct dpt_comm_mem *mem, *given;
    CHECK_OK(dpt_comm_mem_create(self->listener, (size_t)2 * BYTES, &mem, &self->err), &self->err);
    CHECK_OK(dpt_comm_mem_create(self->listener, given_bytes + 1, &given, &self->err), &self->err);
    struct dpt_comm *comm = world_comm(self, 1);
    struct dpt_comm_op *op;
    if (self->rank == 0) {
        struct dpt_comm_xfer xfers[4];
        for (int i = 0; i < 2; i++) {
            xfers[i] = (struct dpt_comm_xfer){.dir = DPT_COMM_RECV,
                                              .peer = 1 + i,
                                              .mem = mem,
                                              .offset = (size_t)i * BYTES,
                                              .bytes = BYTES};
            xfers[2 + i] = (struct dpt_comm_xfer){
                .dir = DPT_COMM_SEND, .peer = 1 + i, .mem = given, .bytes = given_bytes};
        }
        CHECK_OK(dpt_comm_exchange(comm, xfers, given_bytes > 0 ? 4 : 2, &op, &self->err),
                 &self->err);
        receive_traced(self, comm, &op, &self->world->marks[0]);
    } else {
        struct dpt_comm_xfer xfers[2] = {
            {.dir = DPT_COMM_SEND, .peer = 0, .mem = mem, .bytes = BYTES},
            {.dir = DPT_COMM_RECV, .peer = 0, .mem = given, .bytes = given_bytes}};
        mark_wait(&self->world->marks[0], 1);
        work_until(scene.began_ns + late_ns[self->rank]);
        scene.sent_ns[self->rank] = dpt_now_ns();
        CHECK_OK(dpt_comm_exchange(comm, xfers, given_bytes > 0 ? 2 : 1, &op, &self->err),
                 &self->err);
        CHECK_OK(dpt_comm_poll(comm, op, -1, &self->err), &self->err);
        dpt_comm_op_free(comm, &op);
    }
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&given);
    dpt_comm_mem_destroy(&mem);
}

static int64_t peer_of(size_t i)
{
    assert_string_equal(scene.wait[i].span.name, "wait for peers");
    assert_string_equal(scene.wait[i].span.key[0], "peer");
    return scene.wait[i].span.value[0];
}

/* The waits are in order, and within the poll. Returns their sum. */
static int64_t check_order(void)
{
    int64_t sum_ns = 0, last_ns = scene.began_ns;
    for (size_t i = 0; i < scene.n_waits; i++) {
        assert_true(last_ns <= scene.wait[i].begin_ns);
        assert_true(scene.wait[i].begin_ns < scene.wait[i].end_ns);
        sum_ns += scene.wait[i].end_ns - scene.wait[i].begin_ns;
        last_ns = scene.wait[i].end_ns;
    }
    assert_true(last_ns <= scene.ended_ns);
    return sum_ns;
}

/* A machine that stops this process for longer than a rank is late spoils a try. */
static void expect_latecomers(const int hosts[3])
{
    bool seen = false;
    for (int i = 0; i < TRIES && !seen; i++) {
        struct world world = {.size = 3, .hosts = {hosts[0], hosts[1], hosts[2]}};
        world_run_threads(&world, come_late);
        const int64_t sum_ns = check_order();
        if (scene.n_waits != 2 || peer_of(0) != 1 || peer_of(1) != 2)
            continue;
        assert_true(scene.wait[0].end_ns >= scene.sent_ns[1]);
        assert_true(scene.wait[1].end_ns >= scene.sent_ns[2]);
        const int64_t waited_ns = scene.sent_ns[2] - scene.began_ns;
        seen = sum_ns > waited_ns - waited_ns / 20 && sum_ns < waited_ns + waited_ns / 20;
    }
    assert_true(seen);
}

static void test_latest_peer_is_named(void **state)
{
    (void)state;
    expect_latecomers((int[]){0, 0, 0});
    expect_latecomers((int[]){0, 1, 2});
}

/* A socket that takes no more bytes because the late peer does not read is no transfer. The waits
 * before each peer's data are all there is to see; how much of the early time counts depends on how
 * fast the sockets fill. */
static void test_peer_that_does_not_read_is_late(void **state)
{
    (void)state;
    bool seen = false;
    given_bytes = GIVEN;
    for (int i = 0; i < TRIES && !seen; i++) {
        struct world world = {.size = 3, .hosts = {0, 1, 2}};
        int64_t late = 0;
        world_run_threads(&world, come_late);
        (void)check_order();
        for (size_t w = 0; w < scene.n_waits; w++)
            late += peer_of(w) == 2 ? scene.wait[w].end_ns - scene.wait[w].begin_ns : 0;
        seen = late > (LATE_MS - EARLY_MS) * (int64_t)NS_A_MS / 2;
    }
    given_bytes = 0;
    assert_true(seen);
}

/* ---- what is no wait ---- */

static void send_much(struct rank *self)
{
    struct dpt_comm_mem *mem;
    CHECK_OK(dpt_comm_mem_create(self->listener, LARGE, &mem, &self->err), &self->err);
    struct dpt_comm *comm = world_comm(self, 1);
    struct dpt_comm_op *op;
    struct dpt_comm_xfer x = {.dir = self->rank == 0 ? DPT_COMM_RECV : DPT_COMM_SEND,
                              .peer = 1 - self->rank,
                              .mem = mem,
                              .bytes = LARGE};
    CHECK_OK(dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
    if (self->rank == 0) {
        receive_traced(self, comm, &op, &self->world->marks[0]);
    } else {
        CHECK_OK(dpt_comm_poll(comm, op, -1, &self->err), &self->err);
        dpt_comm_op_free(comm, &op);
    }
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
}

/* Each wait ends when the first byte comes: after it the receiver sleeps for further bytes. */
static void test_transfer_is_no_wait(void **state)
{
    (void)state;
    struct world world = {.size = 2, .hosts = {0, 1}};
    world_run_threads(&world, send_much);
    (void)check_order();
    assert_true(scene.n_waits <= 1);
}

/* The owner waits for its own process, although a receive is posted. */
static void be_woken(struct rank *self)
{
    struct dpt_comm *comm = world_comm(self, 1);
    struct dpt_comm_op *op = NULL;
    uint8_t byte = 0;
    struct dpt_comm_xfer x = {.dir = self->rank == 0 ? DPT_COMM_RECV : DPT_COMM_SEND,
                              .peer = 1 - self->rank,
                              .buf = &byte,
                              .bytes = 1};
    if (self->rank == 0) {
        struct dpt_trace_recorder *recorder = NULL;
        struct dpt_trace_events events;
        CHECK_OK(dpt_trace_recorder_create(EVENTS, &recorder, &self->err), &self->err);
        dpt_trace_attach(recorder, DPT_TRACE_COMM);
        dpt_trace_recorder_begin(recorder);
        CHECK_OK(dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
        CHECK_STATUS(DPT_INPROGRESS, dpt_comm_poll_woken(comm, EARLY_MS * NS_A_MS, &self->err),
                     &self->err);
        dpt_trace_recorder_end(recorder);
        dpt_trace_recorder_read(recorder, DPT_TRACE_COMM, &events);
        CHECK(events.n == 0);
        dpt_trace_attach(NULL, DPT_TRACE_COMM);
        dpt_trace_recorder_destroy(&recorder);
        mark_set(&self->world->marks[0], 1);
    } else {
        mark_wait(&self->world->marks[0], 1);
        CHECK_OK(dpt_comm_exchange(comm, &x, 1, &op, &self->err), &self->err);
    }
    CHECK_OK(dpt_comm_poll(comm, op, -1, &self->err), &self->err);
    dpt_comm_op_free(comm, &op);
    dpt_comm_destroy(&comm);
}

static void test_wait_for_own_work_is_none(void **state)
{
    (void)state;
    struct world shm = {.size = 2}, tcp = {.size = 2, .hosts = {0, 1}};
    world_run_threads(&shm, be_woken);
    world_run_threads(&tcp, be_woken);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_latest_peer_is_named),
        cmocka_unit_test(test_peer_that_does_not_read_is_late),
        cmocka_unit_test(test_transfer_is_no_wait),
        cmocka_unit_test(test_wait_for_own_work_is_none),
    };
    return cmocka_run_group_tests_name("waits for peers", tests, NULL, NULL);
}
