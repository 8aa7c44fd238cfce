/* The thread that owns a communicator: aborts before, during and after creation; closing and
 * destroying with a job under way. The same with NCCL's communicator beside it, of a double. */
#include "tests/every.h"
#include "tests/worker/comm/comm_world.h"
#include "tests/worker/comm/nccl_fabric.h"
#include "worker/comm/nccl_comm.h"
#include "worker/strategy/transport/comm_thread.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { ROUNDS = 20, SOON_MS = TIMEOUT_MS / 2 };

static struct dpt_device *device; /* NULL: no NCCL */
static struct fabric fabric;
static struct fabric_rank views[RANKS_MAX];

static enum dpt_status load_fabric(void *ctx, const struct dpt_nccl_calls **ret, void **ret_ctx,
                                   struct dpt_err *err)
{
    (void)err;
    *ret = &fabric_calls;
    *ret_ctx = ctx;
    return DPT_OK;
}

static int plug_in(void **state)
{
    struct dpt_err err;
    (void)state;
    CHECK_OK(dpt_device_cpu_create(&device, &err), &err);
    fabric_init(&fabric);
    for (int i = 0; i < RANKS_MAX; i++)
        views[i] = (struct fabric_rank){.fabric = &fabric};
    return 0;
}

/* Nothing is left of NCCL. */
static int plug_out(void **state)
{
    (void)state;
    CHECK(fabric.ids > 0);
    fabric_fini(&fabric);
    dpt_device_destroy(&device);
    return 0;
}

static void run_comm_world(int size, bool one_host, rank_fn fn)
{
    struct world world = {.size = size, .address = "127.0.0.1"};
    for (int i = 0; i < size; i++)
        world.hosts[i] = one_host ? 0 : i;
    world_run_threads(&world, fn);
}

/* Waits in the communicator until it is aborted or a peer dies. */
static enum dpt_status job_wait_for_ever(struct dpt_comm_thread *thread, void *ctx,
                                         struct dpt_err *err)
{
    struct dpt_comm *comm = dpt_comm_thread_comm(thread);
    atomic_int *started = ctx;
    if (started)
        atomic_store(started, 1);
    for (;;) {
        enum dpt_status status = dpt_comm_poll_woken(comm, -1, err);
        if (status != DPT_INPROGRESS)
            return status;
    }
}

static enum dpt_status gather_by_nccl(struct dpt_comm_thread *thread, const struct rank *self,
                                      struct dpt_err *err)
{
    struct dpt_nccl_comm *nccl = dpt_comm_thread_nccl(thread);
    struct dpt_nccl_piece pieces[2 * RANKS_MAX];
    int all[RANKS_MAX], mine = 200 + self->rank, n = 0;
    uint64_t ticket;
    for (int r = 0; r < self->world->size; r++) {
        const struct dpt_nccl_piece send = {DPT_NCCL_SEND, r, &mine, NULL, sizeof mine, 0},
                                    recv = {DPT_NCCL_RECV, r, NULL, &all[r], sizeof mine, 0};
        if (r != self->rank) {
            pieces[n++] = send;
            pieces[n++] = recv;
        }
    }
    DPT_TRY(dpt_nccl_comm_post(nccl, 0, &(struct dpt_nccl_op){pieces, n, NULL}, &ticket, err));
    enum dpt_status status;
    do
        status = dpt_nccl_comm_poll(nccl, 0, ticket, -1, err);
    while (status == DPT_INPROGRESS);
    for (int r = 0; status == DPT_OK && r < self->world->size; r++)
        CHECK(r == self->rank || all[r] == 200 + r);
    return status;
}

/* Fails with an operation under way, for which the peer does nothing. */
static enum dpt_status job_fail_between(struct dpt_comm_thread *thread, void *ctx,
                                        struct dpt_err *err)
{
    const struct dpt_nccl_piece recv = {DPT_NCCL_RECV, 1, NULL, ctx, sizeof(int), 0};
    uint64_t ticket;
    DPT_TRY(dpt_nccl_comm_post(dpt_comm_thread_nccl(thread), 0,
                               &(struct dpt_nccl_op){&recv, 1, NULL}, &ticket, err));
    return dpt_fail(err, DPT_EIO, "something else");
}

static enum dpt_status job_gather(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct rank *self = ctx;
    int all[RANKS_MAX], mine = 100 + self->rank;
    DPT_TRY(dpt_comm_small_all_gather(dpt_comm_thread_comm(thread), &mine, sizeof mine, all, err));
    for (int i = 0; i < self->world->size; i++)
        CHECK(all[i] == 100 + i);
    return device ? gather_by_nccl(thread, self, err) : DPT_OK;
}

static enum dpt_status job_fail(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    (void)thread;
    return dpt_fail(err, DPT_EIO, "job %d failed", *(int *)ctx);
}

static void open_generation(struct rank *self, struct dpt_comm_thread *t, uint64_t generation)
{
    struct dpt_comm_spec spec = world_spec(self, generation);
    dpt_comm_thread_arm(t);
    CHECK_OK(dpt_comm_thread_open(t, &spec, &self->err), &self->err);
    CHECK(dpt_comm_thread_comm(t) != NULL);
}

static void make_comm_thread(struct rank *self, struct dpt_comm_thread **ret)
{
    CHECK_OK(dpt_comm_thread_create(self->listener, ret, &self->err), &self->err);
    if (device)
        dpt_comm_thread_set_device(*ret, load_fabric, &views[self->rank], device, 500);
}

static void alone(struct rank *self)
{
    struct dpt_comm_thread *t = NULL;
    make_comm_thread(self, &t);
    dpt_comm_thread_wake(t);
    dpt_comm_thread_close(t); /* nothing is open */
    struct dpt_comm_spec spec = world_spec(self, 1);
    dpt_comm_thread_arm(t);
    CHECK_OK(dpt_comm_thread_open(t, &spec, &self->err), &self->err);
    CHECK(dpt_comm_thread_comm(t) == NULL);
    int job = 3;
    CHECK_STATUS(DPT_EIO, dpt_comm_thread_run(t, job_fail, &job, &self->err), &self->err);
    CHECK(strcmp(self->err.text, "job 3 failed") == 0);
    CHECK(dpt_comm_thread_suspect(t) == -1);
    job = 4;
    dpt_comm_thread_post(t, job_fail, &job);
    while (dpt_comm_thread_check(t, &self->err) == DPT_OK)
        (void)sched_yield();
    CHECK_STATUS(DPT_EIO, self->err.status, &self->err);
    CHECK(strcmp(self->err.text, "job 4 failed") == 0);
    CHECK_STATUS(DPT_EIO, dpt_comm_thread_wait(t, NULL), &self->err);
    dpt_comm_thread_close(t);
    dpt_comm_thread_destroy(&t);
    CHECK(t == NULL);
    dpt_comm_thread_destroy(&t);
}

static void without_peers(void **state)
{
    (void)state;
    run_comm_world(1, true, alone);
}

static void one_generation_after_another(struct rank *self)
{
    const uint64_t bytes = (device ? 2 : 1) * sizeof(int) * (uint64_t)(self->world->size - 1);
    struct dpt_comm_thread *t = NULL;
    struct dpt_comm_account account, later;
    make_comm_thread(self, &t);
    for (uint64_t generation = 1; generation <= ROUNDS; generation++) {
        open_generation(self, t, generation);
        CHECK_OK(dpt_comm_thread_run(t, job_gather, self, &self->err), &self->err);
        CHECK_OK(dpt_comm_thread_check(t, &self->err), &self->err);
        dpt_comm_thread_close(t);
        CHECK(dpt_comm_thread_comm(t) == NULL);
        dpt_comm_thread_account(t, &account);
        CHECK(account.bytes_sent == generation * bytes);
        CHECK(account.waited_ns > 0);
    }
    dpt_comm_thread_add_wait(t, 1000);
    dpt_comm_thread_account(t, &later);
    CHECK(later.waited_ns == account.waited_ns + 1000);
    CHECK(later.bytes_sent == account.bytes_sent);
    dpt_comm_thread_destroy(&t);
}

static void test_generations_follow_each_other(void **state)
{
    (void)state;
    run_comm_world(3, true, one_generation_after_another);
    run_comm_world(3, false, one_generation_after_another);
}

/* An abort that came before open ends that generation; arm forgets only earlier aborts. */
static void abort_first(struct rank *self)
{
    struct dpt_comm_thread *t = NULL;
    make_comm_thread(self, &t);
    dpt_comm_thread_abort(t);
    dpt_comm_thread_abort(t);
    dpt_comm_thread_arm(t);
    if (self->rank == 0)
        dpt_comm_thread_abort(t);
    struct dpt_comm_spec spec = world_spec(self, 1);
    int64_t start = dpt_now_ms();
    if (self->rank == 0) {
        CHECK_STATUS(DPT_EABORTED, dpt_comm_thread_open(t, &spec, &self->err), &self->err);
        CHECK(dpt_now_ms() - start < SOON_MS);
        CHECK(dpt_comm_thread_comm(t) == NULL);
    }
    pthread_barrier_wait(&self->world->barrier);
    dpt_comm_thread_close(t);
    open_generation(self, t, 2);
    CHECK_OK(dpt_comm_thread_run(t, job_gather, self, &self->err), &self->err);
    dpt_comm_thread_close(t);
    dpt_comm_thread_destroy(&t);
}

static void an_abort_before_open(void **state)
{
    (void)state;
    run_comm_world(2, true, abort_first);
    run_comm_world(2, false, abort_first);
}

struct aborter {
    struct dpt_comm_thread *thread;
    uint64_t after_us;
};

static void *abort_later(void *arg)
{
    struct aborter *a = arg;
    let_pass_us(a->after_us);
    dpt_comm_thread_abort(a->thread);
    return NULL;
}

/* Nobody answers: only the abort ends the creation. */
static void abort_creation(struct rank *self)
{
    if (self->rank == 0) {
        struct dpt_comm_thread *t = NULL;
        make_comm_thread(self, &t);
        for (uint64_t round = 0; round < ROUNDS / dpt_test_sanitized_every(); round++) {
            dpt_comm_thread_arm(t);
            struct aborter a = {.thread = t, .after_us = round * 200};
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, abort_later, &a) == 0);
            struct dpt_comm_spec spec = world_spec(self, round + 1);
            int64_t start = dpt_now_ms();
            CHECK_STATUS(DPT_EABORTED, dpt_comm_thread_open(t, &spec, &self->err), &self->err);
            CHECK(dpt_now_ms() - start < SOON_MS);
            CHECK(pthread_join(thread, NULL) == 0);
            dpt_comm_thread_close(t);
        }
        dpt_comm_thread_destroy(&t);
    }
    pthread_barrier_wait(&self->world->barrier);
}

static void an_abort_during_open(void **state)
{
    (void)state;
    run_comm_world(2, true, abort_creation);
    run_comm_world(2, false, abort_creation);
}

/* The peer never comes: the missing rank is named. */
static void wait_in_vain(struct rank *self)
{
    if (self->rank == 0) {
        struct dpt_comm_thread *t = NULL;
        make_comm_thread(self, &t);
        struct dpt_comm_spec spec = world_spec(self, 1);
        spec.timeout_ms = 100;
        dpt_comm_thread_arm(t);
        CHECK_STATUS(DPT_ETIMEOUT, dpt_comm_thread_open(t, &spec, &self->err), &self->err);
        CHECK(dpt_comm_thread_suspect(t) == 1);
        dpt_comm_thread_arm(t);
        CHECK(dpt_comm_thread_suspect(t) == -1);
        dpt_comm_thread_destroy(&t);
    }
    pthread_barrier_wait(&self->world->barrier);
}

static void a_peer_that_never_comes(void **state)
{
    (void)state;
    run_comm_world(2, true, wait_in_vain);
    run_comm_world(2, false, wait_in_vain);
}

/* Aborts at random moments of creation, of a job, of the goodbye: nothing hangs, and the next
 * generation works. */
static void abort_whenever(struct rank *self)
{
    struct dpt_comm_thread *t = NULL;
    make_comm_thread(self, &t);
    uint64_t random = 77;
    for (uint64_t round = 0; round < ROUNDS / dpt_test_sanitized_every(); round++) {
        dpt_comm_thread_arm(t);
        struct aborter a = {.thread = t, .after_us = next_random(&random) % 3000};
        bool aborts = (int)(round % (uint64_t)self->world->size) == self->rank;
        pthread_t thread;
        if (aborts)
            CHECK(pthread_create(&thread, NULL, abort_later, &a) == 0);
        struct dpt_comm_spec spec = world_spec(self, 2 * round + 1);
        spec.timeout_ms = 200;
        enum dpt_status status = dpt_comm_thread_open(t, &spec, &self->err);
        while (status == DPT_OK)
            status = dpt_comm_thread_run(t, job_gather, self, &self->err);
        if (aborts) {
            CHECK(pthread_join(thread, NULL) == 0);
            CHECK(status == DPT_EABORTED || status == DPT_EPEER || status == DPT_ETIMEOUT);
        } else {
            CHECK(status == DPT_EPEER || status == DPT_ETIMEOUT);
        }
        dpt_comm_thread_close(t);
        pthread_barrier_wait(&self->world->barrier);
        open_generation(self, t, 2 * round + 2);
        CHECK_OK(dpt_comm_thread_run(t, job_gather, self, &self->err), &self->err);
        dpt_comm_thread_close(t);
        pthread_barrier_wait(&self->world->barrier);
    }
    dpt_comm_thread_destroy(&t);
}

static void aborts_at_any_moment(void **state)
{
    (void)state;
    run_comm_world(3, true, abort_whenever);
    run_comm_world(3, false, abort_whenever);
}

/* close and destroy end a job for which no thread waited. */
static void leave_a_job(struct rank *self)
{
    struct dpt_comm_thread *t = NULL;
    make_comm_thread(self, &t);
    for (uint64_t round = 0; round < ROUNDS / dpt_test_sanitized_every(); round++) {
        open_generation(self, t, round + 1);
        pthread_barrier_wait(&self->world->barrier); /* both are there before one goes */
        atomic_int started = 0;
        dpt_comm_thread_post(t, job_wait_for_ever, &started);
        if (round % 2 == 0)
            while (!atomic_load(&started))
                sched_yield();
        dpt_comm_thread_wake(t);
        dpt_comm_thread_close(t);
        CHECK(dpt_comm_thread_comm(t) == NULL);
    }
    open_generation(self, t, ROUNDS + 1);
    pthread_barrier_wait(&self->world->barrier);
    dpt_comm_thread_post(t, job_wait_for_ever, NULL);
    dpt_comm_thread_destroy(&t);
    CHECK(t == NULL);
}

static void a_job_left_running(void **state)
{
    (void)state;
    run_comm_world(2, true, leave_a_job);
    run_comm_world(2, false, leave_a_job);
}

static void fail_between(struct rank *self)
{
    struct dpt_comm_thread *t = NULL;
    int never = 7;
    make_comm_thread(self, &t);
    for (uint64_t round = 1; round <= 3; round++) {
        open_generation(self, t, 2 * round);
        pthread_barrier_wait(&self->world->barrier);
        if (self->rank == 0)
            CHECK_STATUS(DPT_EIO, dpt_comm_thread_run(t, job_fail_between, &never, &self->err),
                         &self->err);
        dpt_comm_thread_close(t);
        pthread_barrier_wait(&self->world->barrier);
        open_generation(self, t, 2 * round + 1);
        CHECK_OK(dpt_comm_thread_run(t, job_gather, self, &self->err), &self->err);
        dpt_comm_thread_close(t);
    }
    CHECK(never == 7);
    dpt_comm_thread_destroy(&t);
}

static void a_job_that_fails_between(void **state)
{
    (void)state;
    run_comm_world(2, true, fail_between);
}

static enum dpt_status job_lost_by_nccl(struct dpt_comm_thread *thread, void *ctx,
                                        struct dpt_err *err)
{
    (void)thread;
    (void)ctx;
    return dpt_fail(err, DPT_EPEER, "remote process exited or there was a network error");
}

/* Rank 1 ends, and NCCL notices that first: it names no rank, the control does. */
static void lose_a_peer_by_nccl(struct rank *self)
{
    struct dpt_comm_thread *t = NULL;
    make_comm_thread(self, &t);
    open_generation(self, t, 1);
    pthread_barrier_wait(&self->world->barrier);
    if (self->rank == 0) {
        CHECK_STATUS(DPT_EPEER, dpt_comm_thread_run(t, job_lost_by_nccl, NULL, &self->err),
                     &self->err);
        CHECK(dpt_comm_thread_suspect(t) == 1);
    } else {
        dpt_comm_thread_abort(t);
    }
    dpt_comm_thread_close(t);
    dpt_comm_thread_destroy(&t);
}

static void a_dead_peer_is_named_after_nccl(void **state)
{
    (void)state;
    run_comm_world(2, true, lose_a_peer_by_nccl);
    run_comm_world(2, false, lose_a_peer_by_nccl);
}

int main(void)
{
#define NCCL(test)                                                                                 \
    {                                                                                              \
        "nccl: " #test, test, plug_in, plug_out, NULL                                              \
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_peers),
        cmocka_unit_test(test_generations_follow_each_other),
        cmocka_unit_test(an_abort_before_open),
        cmocka_unit_test(an_abort_during_open),
        cmocka_unit_test(a_peer_that_never_comes),
        cmocka_unit_test(aborts_at_any_moment),
        cmocka_unit_test(a_job_left_running),
        NCCL(test_generations_follow_each_other),
        NCCL(an_abort_before_open),
        NCCL(aborts_at_any_moment),
        NCCL(a_job_left_running),
        NCCL(a_job_that_fails_between),
        NCCL(a_dead_peer_is_named_after_nccl),
    };
    return cmocka_run_group_tests_name("comm_thread", tests, NULL, NULL);
}
