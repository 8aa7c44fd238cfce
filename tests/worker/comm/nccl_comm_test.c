/* The data plane between GPUs over a fabric of threads, with real communicators of the CPU as its
 * control: transfers, a canonical all-reduce, groups, deaths, shrinking, ends, aborts. */
#include "base/clock.h"
#include "base/cores.h"
#include "tests/worker/comm/nccl_gpus.h"
#include "worker/comm/nccl_comm_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void reduce_ranks(struct rank *self)
{
    struct gpu g = gpu_plug_in(self);
    gpu_create(&g);
    for (uint64_t generation = 1; generation <= 2; generation++) {
        g.control = world_comm(self, generation);
        gpu_open_world(&g, generation);
        CHECK(!g.comm->world.shrink); /* the former was closed: nothing is kept */
        CHECK(g.comm->groups[0].size == self->world->size);
        for (int i = 0; i < 3; i++)
            gpu_all_reduce(&g);
        dpt_nccl_comm_close(g.comm);
        dpt_nccl_comm_close(g.comm); /* no effect */
        dpt_comm_destroy(&g.control);
    }
    const int others = self->world->size - 1;
    CHECK(dpt_nccl_comm_bytes_sent(g.comm) ==
          (uint64_t)(2 * 3 * 2 * others * PIECE) * sizeof(float));
    dpt_nccl_comm_destroy(&g.comm);
    CHECK(g.comm == NULL);
}

static void a_canonical_all_reduce(void **state)
{
    (void)state;
    for (int size = 2; size <= 5; size++) {
        struct scene scene = {.fault = FABRIC_WELL};
        gpu_run(size, &scene, reduce_ranks);
    }
}

static void queue_ranks(struct rank *self)
{
    enum { N = DPT_NCCL_QUEUE_MAX };
    struct gpu g = gpu_plug_in(self);
    const int peer = 1 - self->rank;
    float out[N + 1], in[N + 1];
    struct dpt_nccl_piece pieces[N + 1][2];
    uint64_t tickets[N + 1], ticket;
    gpu_create(&g);
    g.control = world_comm(self, 1);
    gpu_open_world(&g, 1);
    for (int i = 0; i <= N; i++) {
        out[i] = (float)(100 * self->rank + i);
        pieces[i][0] = gpu_send_to(peer, &out[i], 1);
        pieces[i][1] = gpu_recv_from(peer, &in[i], 1);
    }
    struct dpt_nccl_piece wrong = gpu_send_to(self->rank, out, 1);
    CHECK_STATUS(
        DPT_EINVAL,
        dpt_nccl_comm_post(g.comm, 0, &(struct dpt_nccl_op){&wrong, 1, NULL}, &ticket, &self->err),
        &self->err);
    wrong = gpu_send_to(2, out, 1);
    CHECK_STATUS(
        DPT_EINVAL,
        dpt_nccl_comm_post(g.comm, 0, &(struct dpt_nccl_op){&wrong, 1, NULL}, &ticket, &self->err),
        &self->err);
    wrong = gpu_send_to(peer, NULL, 1);
    CHECK_STATUS(
        DPT_EINVAL,
        dpt_nccl_comm_post(g.comm, 0, &(struct dpt_nccl_op){&wrong, 1, NULL}, &ticket, &self->err),
        &self->err);
    CHECK_STATUS(DPT_EINVAL,
                 dpt_nccl_comm_post(g.comm, 1, &(struct dpt_nccl_op){pieces[0], 2, NULL}, &ticket,
                                    &self->err),
                 &self->err);
    for (int i = 0; i < N; i++)
        CHECK_OK(dpt_nccl_comm_post(g.comm, 0,
                                    &(struct dpt_nccl_op){pieces[i], 2, i % 2 ? self : NULL},
                                    &tickets[i], &self->err),
                 &self->err);
    CHECK_STATUS(DPT_EOVERFLOW,
                 dpt_nccl_comm_post(g.comm, 0, &(struct dpt_nccl_op){pieces[N], 2, NULL}, &ticket,
                                    &self->err),
                 &self->err);
    CHECK_OK(gpu_wait_for(&g, 0, tickets[N / 2]), &self->err);
    for (int i = 0; i <= N / 2; i++) /* in order */
        CHECK(in[i] == (float)(100 * peer + i));
    CHECK_OK(dpt_nccl_comm_post(g.comm, 0, &(struct dpt_nccl_op){pieces[N], 2, NULL}, &tickets[N],
                                &self->err),
             &self->err);
    CHECK_OK(gpu_wait_for(&g, 0, tickets[N]), &self->err);
    CHECK(in[N] == (float)(100 * peer + N));
    gpu_unplug(&g);
}

static void operations_queue_up(void **state)
{
    (void)state;
    struct scene scene = {.fault = FABRIC_WELL};
    gpu_run(2, &scene, queue_ranks);
}

/* Two replicas of two shards: in the shard group by key, in the replica group against the order of
 * ranks. */
static void hybrid_ranks(struct rank *self)
{
    struct gpu g = gpu_plug_in(self);
    const int shard = self->rank / 2, place = self->rank % 2;
    const struct dpt_nccl_split_of splits[] = {{shard, place}, {place, 3 - self->rank}};
    const int peers[] = {shard * 2 + (1 - place), (1 - shard) * 2 + place};
    gpu_create(&g);
    g.control = world_comm(self, 1);
    CHECK_OK(gpu_open_with(&g, 1, splits, 2), &self->err);
    for (int group = 1; group <= 2; group++) {
        float out = (float)self->rank, in = -1;
        const int peer = peers[group - 1], stranger = peers[2 - group];
        const struct dpt_nccl_piece pieces[] = {gpu_send_to(peer, &out, 1),
                                                gpu_recv_from(peer, &in, 1)};
        const struct dpt_nccl_piece wrong = gpu_send_to(stranger, &out, 1);
        uint64_t ticket;
        CHECK(g.comm->groups[group].size == 2);
        CHECK_STATUS(DPT_EINVAL,
                     dpt_nccl_comm_post(g.comm, group, &(struct dpt_nccl_op){&wrong, 1, NULL},
                                        &ticket, &self->err),
                     &self->err);
        CHECK_OK(dpt_nccl_comm_post(g.comm, group, &(struct dpt_nccl_op){pieces, 2, NULL}, &ticket,
                                    &self->err),
                 &self->err);
        CHECK_OK(gpu_wait_for(&g, group, ticket), &self->err);
        CHECK(in == (float)peer);
    }
    gpu_all_reduce(&g);
    gpu_unplug(&g);
}

static void groups_of_hybrid_shard(void **state)
{
    (void)state;
    struct scene scene = {.fault = FABRIC_WELL};
    gpu_run(4, &scene, hybrid_ranks);
}

/* The survivors' control: ranks move up. */
static struct dpt_comm *survivors_comm(struct rank *self, uint64_t generation)
{
    struct dpt_comm *comm;
    struct dpt_comm_spec spec = world_spec(self, generation);
    int n = 0;
    for (int i = 0; i < spec.n_peers; i++) {
        if (self->peers[i].rank == VICTIM)
            continue;
        self->peers[n] = self->peers[i];
        self->peers[n].rank -= self->peers[n].rank > VICTIM;
        n++;
    }
    spec.n_peers = n;
    spec.world_size--;
    spec.rank -= self->rank > VICTIM;
    CHECK_OK(dpt_comm_create(self->listener, &spec, -1, &comm, NULL, &self->err), &self->err);
    return comm;
}

/* One rank dies while the others wait for its data; they go on without it. */
static void death_ranks(struct rank *self)
{
    struct gpu g = gpu_plug_in(self);
    float in[PIECE];
    uint64_t ticket;
    gpu_create(&g);
    g.control = world_comm(self, 1);
    gpu_open_world(&g, 1);
    gpu_all_reduce(&g);
    pthread_barrier_wait(&self->world->barrier); /* all have seen its end */
    if (self->rank == VICTIM) {
        dpt_comm_abort(g.control);
        CHECK_STATUS(DPT_EABORTED, dpt_comm_poll_woken(g.control, -1, &self->err), &self->err);
        dpt_comm_destroy(&g.control); /* for the others it is gone */
        dpt_nccl_comm_quit(g.comm);
        dpt_nccl_comm_destroy(&g.comm);
        pthread_barrier_wait(&self->world->barrier); /* its communicators are gone */
        return;
    }
    const struct dpt_nccl_piece piece = gpu_recv_from(VICTIM, in, PIECE);
    const int64_t start = dpt_now_ms();
    CHECK_OK(
        dpt_nccl_comm_post(g.comm, 0, &(struct dpt_nccl_op){&piece, 1, NULL}, &ticket, &self->err),
        &self->err);
    CHECK_STATUS(DPT_EPEER, gpu_wait_for(&g, 0, ticket), &self->err);
    CHECK(dpt_now_ms() - start < LONG_MS / 2); /* by the control, not by a deadline */
    g.view.fault = self->rank == 0 ? g.scene->fault : FABRIC_WELL;
    dpt_nccl_comm_quit(g.comm);
    dpt_comm_destroy(&g.control);
    g.control = survivors_comm(self, 2);
    gpu_open_world(&g, 2);
    CHECK(g.view.shrinks == (g.scene->fault != FABRIC_NO_REVOKE));
    CHECK(g.comm->world.shrink == (g.scene->fault == FABRIC_WELL));
    CHECK(g.view.inits == (g.scene->fault == FABRIC_WELL ? 1 : 2));
    gpu_all_reduce(&g);
    /* Every survivor has opened its new communicator, so every parent of a shrink is freed. The
     * victim's thread may be slower than all of them: wait until it has freed its communicators. */
    pthread_barrier_wait(&self->world->barrier);
    CHECK(fabric_live(g.view.fabric) <= dpt_comm_world_size(g.control));
    gpu_unplug(&g);
}

static void survivors_shrink(void **state)
{
    (void)state;
    for (int size = 3; size <= 5; size++) {
        struct scene scene = {.fault = FABRIC_WELL};
        gpu_run(size, &scene, death_ranks);
    }
}

static void a_shrink_that_fails_on_one(void **state)
{
    (void)state;
    struct scene scene = {.fault = FABRIC_NO_SHRINK};
    gpu_run(4, &scene, death_ranks);
}

/* One has nothing left to shrink: all make new communicators. */
static void a_revoke_that_fails_on_one(void **state)
{
    (void)state;
    struct scene scene = {.fault = FABRIC_NO_REVOKE};
    gpu_run(4, &scene, death_ranks);
}

/* One leaves in order: nothing was kept, so nothing is shrunk. */
static void leaving_ranks(struct rank *self)
{
    struct gpu g = gpu_plug_in(self);
    gpu_create(&g);
    g.control = world_comm(self, 1);
    gpu_open_world(&g, 1);
    dpt_nccl_comm_close(g.comm);
    dpt_comm_destroy(&g.control);
    if (self->rank != VICTIM) {
        g.control = survivors_comm(self, 2);
        gpu_open_world(&g, 2);
        CHECK(!g.comm->world.shrink && g.view.shrinks == 0 && g.view.inits == 2);
        gpu_all_reduce(&g);
        dpt_nccl_comm_close(g.comm);
        dpt_comm_destroy(&g.control);
    }
    dpt_nccl_comm_destroy(&g.comm);
}

static void after_an_orderly_end_all_is_new(void **state)
{
    (void)state;
    struct scene scene = {.fault = FABRIC_WELL};
    gpu_run(3, &scene, leaving_ranks);
}

/* One rank comes late to the end: none ends before it, because an end waits inside the library. */
static void late_ranks(struct rank *self)
{
    struct gpu g = gpu_plug_in(self);
    gpu_create(&g);
    g.control = world_comm(self, 1);
    gpu_open_world(&g, 1);
    if (self->rank == VICTIM)
        for (int64_t end = dpt_now_ms() + 50; dpt_now_ms() < end;)
            CHECK(dpt_comm_poll_woken(g.control, 1000 * 1000, &self->err) == DPT_INPROGRESS);
    atomic_fetch_add(&g.scene->fabric.closing, 1);
    gpu_unplug(&g);
}

static void all_come_before_one_ends(void **state)
{
    (void)state;
    struct scene scene = {.fault = FABRIC_WELL, .closing_min = 3};
    gpu_run(3, &scene, late_ranks);
}

/* One never comes to the end: the others wait their time, and end without it. */
static void absent_ranks(struct rank *self)
{
    struct gpu g = gpu_plug_in(self);
    gpu_create(&g);
    g.control = world_comm(self, 1);
    gpu_open_world(&g, 1);
    const int64_t start = dpt_now_ms();
    if (self->rank != VICTIM) {
        dpt_nccl_comm_close(g.comm);
        CHECK(dpt_now_ms() - start >= SHORT_MS && dpt_now_ms() - start < LONG_MS / 2);
    }
    pthread_barrier_wait(&self->world->barrier);
    dpt_nccl_comm_quit(g.comm);
    dpt_comm_destroy(&g.control);
    dpt_nccl_comm_destroy(&g.comm);
}

static void an_end_to_which_one_does_not_come(void **state)
{
    (void)state;
    struct scene scene = {.fault = FABRIC_WELL, .timeout_ms = SHORT_MS};
    gpu_run(3, &scene, absent_ranks);
}

/* One rank dies instead of closing; the others do not wait for the deadline. */
static void dying_in_close_ranks(struct rank *self)
{
    struct gpu g = gpu_plug_in(self);
    gpu_create(&g);
    g.control = world_comm(self, 1);
    gpu_open_world(&g, 1);
    pthread_barrier_wait(&self->world->barrier); /* all are open */
    const int64_t start = dpt_now_ms();
    if (self->rank == VICTIM) {
        struct dpt_comm_op *op;
        uint64_t nothing;
        if (g.scene->meets)
            CHECK_OK(dpt_nccl_comm_barrier(g.comm, &self->err), &self->err);
        struct dpt_comm_xfer never = {
            .dir = DPT_COMM_RECV, .peer = 0, .buf = &nothing, .bytes = sizeof nothing};
        CHECK_OK(dpt_comm_exchange(g.control, &never, 1, &op, &self->err), &self->err);
        dpt_comm_abort(g.control); /* with something in flight: no orderly goodbye */
        dpt_comm_destroy(&g.control);
        dpt_nccl_comm_quit(g.comm);
    } else {
        dpt_nccl_comm_close(g.comm);
        CHECK(dpt_now_ms() - start < LONG_MS / 2);
        dpt_comm_destroy(&g.control);
    }
    dpt_nccl_comm_destroy(&g.comm);
}

static void a_death_while_closing(void **state)
{
    (void)state;
    for (int meets = 0; meets < 2; meets++) {
        struct scene scene = {.fault = FABRIC_WELL, .meets = meets};
        gpu_run(3, &scene, dying_in_close_ranks);
    }
}

static void *abort_control(void *control)
{
    dpt_comm_abort(control);
    return NULL;
}

static void *wake_control(void *control)
{
    dpt_comm_wake(control);
    return NULL;
}

/* An abort from another thread, while the owner waits for data that never comes. */
static void abort_ranks(struct rank *self)
{
    struct gpu g = gpu_plug_in(self);
    float in[PIECE];
    uint64_t ticket;
    pthread_t thread;
    gpu_create(&g);
    g.control = world_comm(self, 1);
    gpu_open_world(&g, 1);
    const struct dpt_nccl_piece piece = gpu_recv_from(1 - self->rank, in, PIECE);
    CHECK_OK(
        dpt_nccl_comm_post(g.comm, 0, &(struct dpt_nccl_op){&piece, 1, NULL}, &ticket, &self->err),
        &self->err);
    CHECK_STATUS(DPT_INPROGRESS, dpt_nccl_comm_poll(g.comm, 0, ticket, 0, &self->err), &self->err);
    CHECK_STATUS(DPT_INPROGRESS, dpt_nccl_comm_poll(g.comm, 0, ticket, 5, &self->err), &self->err);
    for (int i = 0; i < 20; i++) { /* new work is said to have come: the owner comes back for it */
        CHECK(pthread_create(&thread, NULL, wake_control, g.control) == 0);
        CHECK_STATUS(DPT_INPROGRESS, dpt_nccl_comm_poll(g.comm, 0, ticket, -1, &self->err),
                     &self->err);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    pthread_barrier_wait(&self->world->barrier); /* each is aborted; neither learns it first */
    CHECK(pthread_create(&thread, NULL, abort_control, g.control) == 0);
    const enum dpt_status status = gpu_wait_for(&g, 0, ticket);
    CHECK(status == DPT_EABORTED || status == DPT_EPEER);
    CHECK(pthread_join(thread, NULL) == 0);
    dpt_nccl_comm_quit(g.comm);
    memset(in, 0, sizeof in); /* nothing writes there any more */
    dpt_comm_destroy(&g.control);
    dpt_nccl_comm_destroy(&g.comm); /* frees the kept communicator */
}

static void an_abort_from_another_thread(void **state)
{
    (void)state;
    for (int refused = 0; refused < 2; refused++) {
        struct scene scene = {.fault = refused ? FABRIC_NO_REVOKE : FABRIC_WELL};
        dpt_cores_set_demand(refused); /* 1: waits may spin, where there is a core */
        gpu_run(2, &scene, abort_ranks);
    }
    dpt_cores_set_demand(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_canonical_all_reduce),
        cmocka_unit_test(operations_queue_up),
        cmocka_unit_test(groups_of_hybrid_shard),
        cmocka_unit_test(survivors_shrink),
        cmocka_unit_test(a_shrink_that_fails_on_one),
        cmocka_unit_test(a_revoke_that_fails_on_one),
        cmocka_unit_test(after_an_orderly_end_all_is_new),
        cmocka_unit_test(all_come_before_one_ends),
        cmocka_unit_test(an_end_to_which_one_does_not_come),
        cmocka_unit_test(a_death_while_closing),
        cmocka_unit_test(an_abort_from_another_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
