/* The canonical all-reduce over real communicators, ranks as threads on simulated hosts: every
 * element on every rank equals, bit for bit, the sum of the lanes in tree order. */
#include "tests/every.h"
#include "tests/worker/comm/comm_world.h"
#include "worker/strategy/reduce/host_reducer.h"

#include "base/cores.h"
#include "base/rng.h"
#include "kernels/device.h"
#include "kernels/half.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <string.h>

enum { BUCKETS_MAX = 600, STEPS = 3 };

/* What all ranks agree on. */
struct setting {
    int lanes, n_buckets, steps;
    size_t piece_bytes;
    int64_t block, numel;
    struct dpt_bucket buckets[BUCKETS_MAX];
    enum dpt_dtype wire;
    uint64_t seed;
    float *values;   /* [steps][lanes][numel] */
    float *expected; /* [steps][numel], in tree order */
    /* A rank that leaves in the middle of a step; -1: none. */
    int leaver;
    atomic_int failures;
};

static uint32_t draw_below(uint64_t seed, uint64_t what, uint64_t at, uint32_t below)
{
    uint32_t block[4];
    dpt_philox(dpt_rng_key(seed, DPT_RNG_TEST, 7, what, 0), at, block);
    return block[0] % below;
}

static float *lane_values(const struct setting *s, int step, int lane)
{
    return s->values + ((int64_t)step * s->lanes + lane) * s->numel;
}

static float round_to_wire(const struct setting *s, float x)
{
    return s->wire == DPT_BF16  ? dpt_f32_of_bf16(dpt_bf16_of_f32(x))
           : s->wire == DPT_F16 ? dpt_f32_of_f16(dpt_f16_of_f32(x))
                                : x;
}

/* Values whose sum depends on the order. */
static void make_values(const struct setting *s, int step, int lane)
{
    struct dpt_rng_key key = dpt_rng_key(s->seed, DPT_RNG_TEST, 8, (uint64_t)step, (uint64_t)lane);
    for (int64_t i = 0; i < s->numel; i++) {
        uint32_t block[4];
        dpt_philox(key, (uint64_t)i, block);
        lane_values(s, step, lane)[i] =
            round_to_wire(s, (float)(int32_t)block[0] * 0x1p-31f * (float)(1 << (block[1] % 12)));
    }
}

static float node_value(const struct setting *s, int step, struct dpt_range node, int64_t i)
{
    if (node.end - node.first == 1)
        return lane_values(s, step, node.first)[i];
    int split = dpt_tree_split(node);
    float left = node_value(s, step, (struct dpt_range){node.first, split}, i);
    float right = node_value(s, step, (struct dpt_range){split, node.end}, i);
    return round_to_wire(s, left + right);
}

struct part {
    struct dpt_device *device;
    struct dpt_stream *stream;
    struct dpt_comm_thread *thread;
    struct dpt_comm_mem *buffers[DPT_COVER_MAX];
    int n_buffers;
    struct dpt_reducer *reducer;
    struct dpt_world world;
    int rank_of_position[RANKS_MAX], host_of_position[RANKS_MAX];
};

static float *data_of(const struct part *p, int buffer)
{
    return dpt_comm_mem_data(p->buffers[buffer]);
}

/* Ranks are numbered against the order of positions, so that taking one for the other shows. */
static void make_world(struct rank *self, const struct setting *s, struct part *p)
{
    int size = self->world->size, n = 0;
    for (int host = 0; host < size; host++)
        for (int rank = size - 1; rank >= 0; rank--)
            if (self->world->hosts[rank] == host) {
                p->rank_of_position[n] = rank;
                p->host_of_position[n++] = host;
            }
    CHECK(n == size);
    p->world = (struct dpt_world){.lanes = s->lanes,
                                  .size = size,
                                  .rank_of_position = p->rank_of_position,
                                  .host_of_position = p->host_of_position};
}

static int position_of(const struct part *p, int rank)
{
    int position = 0;
    while (p->rank_of_position[position] != rank)
        position++;
    return position;
}

static void make_reducer_part(struct rank *self, struct setting *s, struct part *p)
{
    *p = (struct part){.n_buffers = 0};
    make_world(self, s, p);
    CHECK_OK(dpt_device_cpu_create(&p->device, &self->err), &self->err);
    CHECK_OK(dpt_stream_create(p->device, 1, &p->stream, &self->err), &self->err);
    CHECK_OK(dpt_comm_thread_create(self->listener, &p->thread, &self->err), &self->err);
    p->n_buffers = dpt_reduce_buffers(&p->world, position_of(p, self->rank));
    CHECK(p->n_buffers >= 1 && p->n_buffers <= DPT_COVER_MAX);
    for (int i = 0; i < p->n_buffers; i++)
        CHECK_OK(
            dpt_host_reducer_buffer_create(self->listener, i, s->numel, &p->buffers[i], &self->err),
            &self->err);
    const struct dpt_host_reducer_spec spec = {.of = {.thread = p->thread,
                                                      .stream = p->stream,
                                                      .buckets = s->buckets,
                                                      .n_buckets = s->n_buckets,
                                                      .block = s->block,
                                                      .world = &p->world,
                                                      .rank = self->rank,
                                                      .wire = s->wire},
                                               .ops = dpt_device_ops(p->device),
                                               .listener = self->listener,
                                               .buffers = p->buffers,
                                               .piece_bytes = s->piece_bytes};
    CHECK_OK(dpt_host_reducer_create(&spec, &p->reducer, &self->err), &self->err);
    struct dpt_comm_spec comm = world_spec(self, s->seed + 1);
    dpt_comm_thread_arm(p->thread);
    CHECK_OK(dpt_comm_thread_open(p->thread, &comm, &self->err), &self->err);
}

static void end_part(struct part *p)
{
    dpt_comm_thread_close(p->thread);
    dpt_reducer_destroy(&p->reducer);
    CHECK(p->reducer == NULL);
    dpt_comm_thread_destroy(&p->thread);
    for (int i = 0; i < p->n_buffers; i++)
        dpt_comm_mem_destroy(&p->buffers[i]);
    dpt_stream_destroy(&p->stream);
    dpt_device_destroy(&p->device);
}

/* Own subtree sums into the buffers; the memory for the others' parts is filled with rubbish. */
static void fill_gradient(const struct setting *s, const struct part *p, int rank, int step)
{
    struct dpt_range own[DPT_COVER_MAX];
    int n = dpt_tree_cover(s->lanes,
                           dpt_position_lanes(s->lanes, p->world.size, position_of(p, rank)), own);
    for (int b = 0; b < p->n_buffers; b++)
        for (int64_t i = 0; i < s->numel; i++)
            data_of(p, b)[i] = b < n ? node_value(s, step, own[b], i) : -1e30f;
}

static void check_sum(const struct setting *s, const struct part *p, int step)
{
    const float *all = s->expected + step * s->numel;
    if (memcmp(all, data_of(p, 0), (size_t)s->numel * sizeof *all) == 0)
        return;
    for (int64_t i = 0; i < s->numel; i++) {
        float expected = all[i];
        if (memcmp(&expected, &data_of(p, 0)[i], sizeof expected) != 0) {
            (void)fprintf(stderr,
                          "world %d, %d lanes, step %d: element %lld is %.9g instead of %.9g\n",
                          p->world.size, s->lanes, step, (long long)i, (double)data_of(p, 0)[i],
                          (double)expected);
            abort();
        }
    }
}

/* In even steps bucket by bucket as backward does it, in odd ones in another order. */
static void say_ready(struct rank *self, const struct setting *s, const struct part *p, int step)
{
    for (int i = 0; i < s->n_buckets; i++)
        CHECK_OK(dpt_reducer_ready(p->reducer,
                                   (step + self->rank) % 2 == 0 ? i : s->n_buckets - 1 - i,
                                   &self->err),
                 &self->err);
}

static enum dpt_status job_sent(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct dpt_comm *comm = dpt_comm_thread_comm(thread);
    uint64_t *ret = ctx;
    if (!comm)
        return DPT_OK;
    while (dpt_comm_poll(comm, NULL, -1, err) == DPT_INPROGRESS)
        continue;
    *ret = dpt_comm_bytes_sent(comm);
    return DPT_OK;
}

static void reduce_some_steps(struct rank *self)
{
    struct setting *s = self->world->arg;
    struct part p;
    uint64_t opened = 0, sent = 0;
    make_reducer_part(self, s, &p);
    CHECK_OK(dpt_comm_thread_run(p.thread, job_sent, &opened, &self->err), &self->err);
    for (int step = 0; step < s->steps; step++) {
        fill_gradient(s, &p, self->rank, step);
        (void)dpt_reducer_begin(p.reducer, 0);
        dpt_reducer_post(p.reducer);
        say_ready(self, s, &p, step);
        CHECK_OK(dpt_reducer_finish(p.reducer, &self->err), &self->err);
        check_sum(s, &p, step);
        CHECK_OK(dpt_comm_thread_run(p.thread, job_sent, &sent, &self->err), &self->err);
        CHECK((int64_t)(sent - opened) == (step + 1) * dpt_reducer_bytes_sent(p.reducer));
        pthread_barrier_wait(&self->world->barrier); /* the next step overwrites lent memory */
    }
    end_part(&p);
}

/* Buckets from the end of the vector, as the plan makes them. */
static void cut_buckets(struct setting *s, int n, int numel_max)
{
    int64_t sizes[BUCKETS_MAX];
    s->n_buckets = n;
    s->numel = 0;
    for (int b = 0; b < n; b++) {
        sizes[b] = 1 + draw_below(s->seed, 1, (uint64_t)b, (uint32_t)numel_max);
        s->numel += sizes[b];
    }
    int64_t end = s->numel;
    for (int b = 0; b < n; b++) {
        s->buckets[b] = (struct dpt_bucket){.first = end - sizes[b], .end = end};
        end -= sizes[b];
    }
}

static void run_reducers(struct setting *s, int size, int layout, rank_fn fn)
{
    struct world world = {.size = size, .address = "127.0.0.1", .seed = s->seed, .arg = s};
    for (int i = 0; i < size; i++)
        world.hosts[i] = layout == 0   ? 0     /* shared memory alone */
                         : layout == 1 ? i     /* TCP alone */
                         : layout == 2 ? i % 2 /* both */
                                       : i / 3;
    s->values = malloc((size_t)(s->steps * s->lanes * s->numel) * sizeof(float));
    s->expected = malloc((size_t)(s->steps * s->numel) * sizeof(float));
    CHECK(s->values && s->expected);
    for (int step = 0; step < s->steps; step++) {
        for (int lane = 0; lane < s->lanes; lane++)
            make_values(s, step, lane);
        for (int64_t i = 0; i < s->numel; i++)
            s->expected[step * s->numel + i] =
                node_value(s, step, (struct dpt_range){0, s->lanes}, i);
    }
    world_run_threads(&world, fn);
    free(s->values);
    free(s->expected);
}

static void every_world_and_lane_count(void **state)
{
    (void)state;
    for (int size = 1; size <= 5; size++)
        for (int lanes = size; lanes <= 9; lanes += dpt_test_sanitized_every())
            for (int layout = 0; layout < (size == 1 ? 1 : size < 4 ? 3 : 4); layout++) {
                static struct setting s;
                dpt_cores_set_demand(lanes % 3 == 0); /* waits spin, or not */
                s = (struct setting){.lanes = lanes,
                                     .wire = (enum dpt_dtype)(lanes % DPT_DTYPE_COUNT),
                                     .block = 16,
                                     .piece_bytes = lanes % 2 == 0 ? 0 : 128, /* many chunks */
                                     .steps = 2,
                                     .seed = (uint64_t)(size * 100 + lanes),
                                     .leaver = -1};
                cut_buckets(&s, 5, 120);
                run_reducers(&s, size, layout, reduce_some_steps);
            }
}

/* Pieces of many chunks, and a world with uneven runs of lanes. */
static void large_buckets(void **state)
{
    (void)state;
    for (int layout = 0; layout < 3; layout++)
        for (size_t piece_bytes = 0; piece_bytes <= 2 * 4096; piece_bytes += 4096) {
            static struct setting s;
            s = (struct setting){.lanes = 7,
                                 .wire = piece_bytes == 4096 ? DPT_BF16 : DPT_F32,
                                 .block = 1024,
                                 .piece_bytes = piece_bytes,
                                 .steps = 1,
                                 .seed = 3,
                                 .leaver = -1};
            cut_buckets(&s, 2, 40000);
            run_reducers(&s, 3, layout, reduce_some_steps);
        }
}

/* More buckets than operations fit into a communicator; most ranks own no part of most buckets. */
static void many_tiny_buckets(void **state)
{
    (void)state;
    for (int layout = 0; layout < 3; layout++) {
        static struct setting s;
        s = (struct setting){.lanes = 5, .block = 16, .steps = STEPS, .seed = 9, .leaver = -1};
        s.wire = layout == 1 ? DPT_BF16 : DPT_F32;
        cut_buckets(&s, BUCKETS_MAX, 20);
        run_reducers(&s, 4, layout, reduce_some_steps);
    }
}

/* One rank goes in the middle of a step: the others' wait ends with it as the suspect, and nothing
 * hangs. */
static void lose_one(struct rank *self)
{
    struct setting *s = self->world->arg;
    struct part p;
    make_reducer_part(self, s, &p);
    pthread_barrier_wait(&self->world->barrier); /* all are there before one goes */
    fill_gradient(s, &p, self->rank, 0);
    (void)dpt_reducer_begin(p.reducer, 0);
    dpt_reducer_post(p.reducer);
    CHECK_OK(dpt_reducer_ready(p.reducer, 0, &self->err), &self->err);
    if (self->rank != s->leaver) {
        for (int b = 1; b < s->n_buckets; b++)
            CHECK_OK(dpt_reducer_ready(p.reducer, b, &self->err), &self->err);
        CHECK_STATUS(DPT_EPEER, dpt_reducer_finish(p.reducer, &self->err), &self->err);
        CHECK_STATUS(DPT_EPEER, dpt_comm_thread_check(p.thread, &self->err), &self->err);
        CHECK(dpt_comm_thread_suspect(p.thread) == s->leaver);
        atomic_fetch_add(&s->failures, 1);
    }
    end_part(&p); /* the leaver's: with its job still waiting for bucket 1 */
}

static void a_rank_lost_in_the_step(void **state)
{
    (void)state;
    for (int layout = 0; layout < 3; layout++)
        for (int leaver = 0; leaver < 3; leaver++) {
            static struct setting s;
            s = (struct setting){.lanes = 6, .block = 16, .steps = 1, .seed = 4, .leaver = leaver};
            cut_buckets(&s, 4, 3000);
            run_reducers(&s, 3, layout, lose_one);
            assert_int_equal(atomic_load(&s.failures), 2);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_world_and_lane_count),
        cmocka_unit_test(large_buckets),
        cmocka_unit_test(many_tiny_buckets),
        cmocka_unit_test(a_rank_lost_in_the_step),
    };
    return cmocka_run_group_tests_name("reducer", tests, NULL, NULL);
}
