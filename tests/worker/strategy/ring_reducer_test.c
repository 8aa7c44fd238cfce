/* The ring all-reduce of training over real communicators, ranks as threads on simulated hosts:
 * every element on every rank equals, bit for bit, the sum in the order of the ring. */
#include "tests/every.h"
#include "tests/worker/comm/comm_world.h"
#include "worker/strategy/reduce/ring_reducer.h"
#include "worker/strategy/transport/pattern_run.h"
#include "worker/trace/present_work.h"
#include "worker/trace/recorder.h"

#include "base/clock.h"
#include "base/cores.h"
#include "base/rng.h"
#include "kernels/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { BUCKETS_MAX = 8, STEPS = 3 };

struct setting {
    int n_buckets;
    int64_t numel;
    struct dpt_bucket buckets[BUCKETS_MAX];
    uint64_t seed;
    int leaver; /* a rank that leaves in the middle of a step */
    atomic_int failures;
    atomic_int waits; /* ranks whose trace has the wait for a late rank */
};

/* Values whose sum depends on the order. */
static float value_of(const struct setting *s, int step, int rank, int64_t i)
{
    uint32_t block[4];
    dpt_philox(dpt_rng_key(s->seed, DPT_RNG_TEST, 11, (uint64_t)step, (uint64_t)rank), (uint64_t)i,
               block);
    return (float)(int32_t)block[0] * 0x1p-31f * (float)(1 << (block[1] % 12));
}

struct part {
    struct dpt_device *device;
    struct dpt_stream *stream;
    struct dpt_comm_thread *thread;
    struct dpt_comm_mem *buffer;
    struct dpt_reducer *reducer;
    struct dpt_world world;
    int rank_of_position[RANKS_MAX], host_of_position[RANKS_MAX];
};

/* Ranks are numbered against the order of positions, so that taking one for the other shows. */
static void make_ring_world(const struct rank *self, struct part *p)
{
    const int size = self->world->size;
    int n = 0;
    for (int host = 0; host < size; host++)
        for (int rank = size - 1; rank >= 0; rank--)
            if (self->world->hosts[rank] == host) {
                p->rank_of_position[n] = rank;
                p->host_of_position[n++] = host;
            }
    CHECK(n == size);
    p->world = (struct dpt_world){.lanes = size,
                                  .size = size,
                                  .rank_of_position = p->rank_of_position,
                                  .host_of_position = p->host_of_position};
}

static void open_ring(struct rank *self, struct setting *s, struct part *p)
{
    *p = (struct part){.device = NULL};
    make_ring_world(self, p);
    CHECK_OK(dpt_device_cpu_create(&p->device, &self->err), &self->err);
    CHECK_OK(dpt_stream_create(p->device, 1, &p->stream, &self->err), &self->err);
    CHECK_OK(dpt_comm_thread_create(self->listener, &p->thread, &self->err), &self->err);
    CHECK_OK(dpt_comm_mem_create(self->listener, (size_t)s->numel * sizeof(float), &p->buffer,
                                 &self->err),
             &self->err);
    const struct dpt_ring_reducer_spec spec = {.of = {.thread = p->thread,
                                                      .stream = p->stream,
                                                      .buckets = s->buckets,
                                                      .n_buckets = s->n_buckets,
                                                      .world = &p->world,
                                                      .rank = self->rank,
                                                      .wire = DPT_F32},
                                               .ops = dpt_device_ops(p->device),
                                               .listener = self->listener,
                                               .buffer = p->buffer};
    CHECK_OK(dpt_ring_reducer_create(&spec, &p->reducer, &self->err), &self->err);
    struct dpt_comm_spec comm = world_spec(self, s->seed + 1);
    dpt_comm_thread_arm(p->thread);
    CHECK_OK(dpt_comm_thread_open(p->thread, &comm, &self->err), &self->err);
}

static void close_ring(struct part *p)
{
    dpt_comm_thread_close(p->thread);
    dpt_reducer_destroy(&p->reducer);
    dpt_comm_thread_destroy(&p->thread);
    dpt_comm_mem_destroy(&p->buffer);
    dpt_stream_destroy(&p->stream);
    dpt_device_destroy(&p->device);
}

static int position_of(const struct part *p, int rank)
{
    int position = 0;
    while (p->rank_of_position[position] != rank)
        position++;
    return position;
}

/* The chunk of rank r begins at the rank after r and is added from rank to rank up to r. */
static float ring_sum(const struct setting *s, const struct part *p, int step, int chunk, int64_t i)
{
    const int n = p->world.size, at = position_of(p, chunk);
    float sum = value_of(s, step, p->rank_of_position[(at + 1) % n], i);
    for (int k = 2; k <= n; k++)
        sum = value_of(s, step, p->rank_of_position[(at + k) % n], i) + sum;
    return sum;
}

static void check_bucket(const struct setting *s, const struct part *p, int step, int bucket)
{
    const float *data = dpt_comm_mem_data(p->buffer);
    const struct dpt_bucket *range = &s->buckets[bucket];
    for (int chunk = 0; chunk < p->world.size; chunk++) {
        const struct dpt_interval x =
            dpt_pattern_part(range->end - range->first, p->world.size, chunk, 1, 0);
        for (int64_t i = range->first + x.first; i < range->first + x.end; i++) {
            const float expected = ring_sum(s, p, step, chunk, i);
            if (memcmp(&expected, &data[i], sizeof expected) == 0)
                continue;
            (void)fprintf(stderr, "world %d, step %d: element %lld is %.9g instead of %.9g\n",
                          p->world.size, step, (long long)i, (double)data[i], (double)expected);
            abort();
        }
    }
}

static enum dpt_status job_sent(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct dpt_comm *comm = dpt_comm_thread_comm(thread);
    uint64_t *ret = ctx;
    while (dpt_comm_poll(comm, NULL, -1, err) == DPT_INPROGRESS)
        continue;
    *ret = dpt_comm_bytes_sent(comm);
    return DPT_OK;
}

static void fill_gradient(const struct setting *s, const struct part *p, int rank, int step)
{
    float *data = dpt_comm_mem_data(p->buffer);
    for (int64_t i = 0; i < s->numel; i++)
        data[i] = value_of(s, step, rank, i);
}

static void reduce_some_steps(struct rank *self)
{
    struct setting *s = self->world->arg;
    struct part p;
    uint64_t opened = 0, sent = 0;
    open_ring(self, s, &p);
    CHECK_OK(dpt_comm_thread_run(p.thread, job_sent, &opened, &self->err), &self->err);
    for (int step = 0; step < STEPS; step++) {
        fill_gradient(s, &p, self->rank, step);
        (void)dpt_reducer_begin(p.reducer, 0);
        dpt_reducer_post(p.reducer);
        for (int b = 0; b < s->n_buckets; b++) /* some ranks complete them in another order */
            CHECK_OK(dpt_reducer_ready(p.reducer,
                                       (step + self->rank) % 2 == 0 ? b : s->n_buckets - 1 - b,
                                       &self->err),
                     &self->err);
        CHECK_OK(dpt_reducer_finish(p.reducer, &self->err), &self->err);
        for (int b = 0; b < s->n_buckets; b++)
            check_bucket(s, &p, step, b);
        CHECK_OK(dpt_comm_thread_run(p.thread, job_sent, &sent, &self->err), &self->err);
        CHECK((int64_t)(sent - opened) == (step + 1) * dpt_reducer_bytes_sent(p.reducer));
    }
    close_ring(&p);
}

static void cut_buckets(struct setting *s, const int *sizes, int n)
{
    s->n_buckets = n;
    s->numel = 0;
    for (int b = n - 1; b >= 0; b--) {
        s->buckets[b] = (struct dpt_bucket){.first = s->numel, .end = s->numel + sizes[b]};
        s->numel += sizes[b];
    }
}

static void run_rings(struct setting *s, int size, int layout, rank_fn fn)
{
    struct world world = {.size = size, .address = "127.0.0.1", .seed = s->seed, .arg = s};
    for (int i = 0; i < size; i++)
        world.hosts[i] = layout == 0 ? 0 : layout == 1 ? i : i % 2;
    world_run_threads(&world, fn);
}

/* ---- traces ---- */

enum { EVENTS = 4096, LATE_NS = 20000000, TRIES = 8 };
static const int64_t noted_ns = 30000000000;

/* Of the communication thread's events: each bucket is one collective, each wait names its peer and
 * is inside of a collective, and no two waits overlap. Returns the sum of the waits. */
static int64_t check_ring_events(const struct setting *s, const struct dpt_trace_events *events)
{
    int64_t sum = 0, wait_ended_ns = 0;
    int collectives = 0;
    for (size_t i = 0; i < events->n; i++) {
        const struct dpt_trace_event *event = &events->event[i];
        if (event->span.kind == DPT_TRACE_COLLECTIVE) {
            CHECK(event->span.value[3] == collectives);
            collectives++;
        } else if (event->span.name && strcmp(event->span.name, "wait for peers") == 0) {
            CHECK(event->span.key[0] && strcmp(event->span.key[0], "peer") == 0);
            CHECK(event->begin_ns >= wait_ended_ns);
            wait_ended_ns = event->end_ns;
            sum += event->end_ns - event->begin_ns;
        }
    }
    CHECK(events->dropped == 0 && collectives == s->n_buckets);
    return sum;
}

/* Waits until the communication thread notes that it is in the all-reduce of bucket 0. */
static void await_note(const struct dpt_present_work *work)
{
    const int64_t end_ns = dpt_now_ns() + noted_ns;
    struct dpt_present_work_view view;
    do {
        view = dpt_present_work_read(work, DPT_PRESENT_WORK_COMM);
        (void)sched_yield();
    } while (view.work != DPT_WORK_ALL_REDUCE && dpt_now_ns() < end_ns);
    CHECK(view.work == DPT_WORK_ALL_REDUCE && view.unit == 0);
}

/* Rank 1 begins LATE_NS after the others have posted their parts. */
static void trace_a_late_rank(struct rank *self)
{
    struct setting *s = self->world->arg;
    struct part p;
    struct dpt_trace_recorder *recorder;
    struct dpt_trace_events events;
    CHECK_OK(dpt_trace_recorder_create(EVENTS, &recorder, &self->err), &self->err);
    struct dpt_present_work work = {0};
    dpt_trace_attach(recorder, DPT_TRACE_MAIN);
    dpt_present_work_attach(&work, DPT_PRESENT_WORK_MAIN);
    open_ring(self, s, &p);
    fill_gradient(s, &p, self->rank, 0);
    dpt_trace_recorder_begin(recorder);
    const int64_t began_ns = dpt_now_ns();
    if (self->rank == 1) {
        pthread_barrier_wait(&self->world->barrier);
        for (const int64_t end_ns = dpt_now_ns() + LATE_NS; dpt_now_ns() < end_ns;)
            (void)sched_yield();
    }
    (void)dpt_reducer_begin(p.reducer, 0);
    dpt_reducer_post(p.reducer);
    for (int b = 0; b < s->n_buckets; b++)
        CHECK_OK(dpt_reducer_ready(p.reducer, b, &self->err), &self->err);
    if (self->rank != 1) {
        await_note(&work);
        pthread_barrier_wait(&self->world->barrier);
    }
    CHECK_OK(dpt_reducer_finish(p.reducer, &self->err), &self->err);
    const int64_t step_ns = dpt_now_ns() - began_ns;
    dpt_trace_recorder_end(recorder);
    dpt_trace_recorder_read(recorder, DPT_TRACE_COMM, &events);
    const int64_t waits_ns = check_ring_events(s, &events);
    CHECK(waits_ns <= step_ns);
    if (self->rank != 1 && waits_ns > LATE_NS / 2)
        atomic_fetch_add(&s->waits, 1);
    close_ring(&p);
    dpt_trace_attach(NULL, DPT_TRACE_MAIN);
    dpt_present_work_attach(NULL, DPT_PRESENT_WORK_MAIN);
    dpt_trace_recorder_destroy(&recorder);
}

/* On a busy machine a thread may begin to wait late: then another try shows the wait. */
static void traced_waits_for_a_late_rank(void **state)
{
    (void)state;
    static const int sizes[] = {100000, 3000};
    for (int layout = 0; layout < 3; layout++) {
        static struct setting s;
        s = (struct setting){.seed = 6};
        cut_buckets(&s, sizes, 2);
        for (int i = 0; i < TRIES && atomic_load(&s.waits) == 0; i++)
            run_rings(&s, 3, layout, trace_a_late_rank);
        assert_true(atomic_load(&s.waits) > 0);
    }
}

static void every_world_and_layout(void **state)
{
    (void)state;
    static const int sizes[] = {1, 3, 17, 1000, 4099};
    for (int size = 2; size < RANKS_MAX; size++)
        for (int layout = 0; layout < 3; layout++) {
            static struct setting s;
            if ((size + layout) % dpt_test_sanitized_every() != 0)
                continue;
            dpt_cores_set_demand(size % 2 == 0); /* waits spin, or not */
            s = (struct setting){.seed = (uint64_t)(size * 10 + layout)};
            cut_buckets(&s, sizes, 5);
            run_rings(&s, size, layout, reduce_some_steps);
        }
}

/* A bucket whose chunks have many parts, the last one short. */
static void chunks_of_many_parts(void **state)
{
    (void)state;
    const int part = DPT_PATTERN_RUN_PART_BYTES / (int)sizeof(float);
    const int sizes[] = {3 * (2 * part + 77) + 1, 5};
    for (int layout = 0; layout < 3; layout++) {
        static struct setting s;
        s = (struct setting){.seed = 5};
        cut_buckets(&s, sizes, 2);
        run_rings(&s, 3, layout, reduce_some_steps);
    }
}

/* One rank goes in the middle of a step: the others' wait ends with it or a neighbour that it
 * stopped as the suspect, and nothing hangs. */
static void lose_one(struct rank *self)
{
    struct setting *s = self->world->arg;
    struct part p;
    open_ring(self, s, &p);
    pthread_barrier_wait(&self->world->barrier); /* all are there before one goes */
    fill_gradient(s, &p, self->rank, 0);
    (void)dpt_reducer_begin(p.reducer, 0);
    dpt_reducer_post(p.reducer);
    CHECK_OK(dpt_reducer_ready(p.reducer, 0, &self->err), &self->err);
    if (self->rank != s->leaver) {
        for (int b = 1; b < s->n_buckets; b++)
            CHECK_OK(dpt_reducer_ready(p.reducer, b, &self->err), &self->err);
        CHECK_STATUS(DPT_EPEER, dpt_reducer_finish(p.reducer, &self->err), &self->err);
        CHECK(dpt_comm_thread_suspect(p.thread) == s->leaver);
        atomic_fetch_add(&s->failures, 1);
    }
    close_ring(&p); /* the leaver's: with its job still waiting for bucket 1 */
}

static void a_rank_lost_in_the_step(void **state)
{
    (void)state;
    static const int sizes[] = {100, 3000, 20};
    for (int layout = 0; layout < 3; layout++)
        for (int leaver = 0; leaver < 3; leaver++) {
            static struct setting s;
            s = (struct setting){.seed = 4, .leaver = leaver};
            cut_buckets(&s, sizes, 3);
            run_rings(&s, 3, layout, lose_one);
            assert_int_equal(atomic_load(&s.failures), 2);
        }
}

/* ---- patterns that training does not use ---- */

/* What a rank must have: every collective over one vector, out of place and in place. */
struct collective_case {
    enum dpt_collective collective;
    enum dpt_algorithm algorithm;
    bool in_place;
    int64_t numel, part_numel;
};

static float marked(int rank, int64_t i)
{
    return (float)((rank + 1) * (1 + i % 1021));
}

static float expected_of(const struct collective_case *c, int n, int rank, int chunk, int64_t i)
{
    const int sum = n * (n + 1) / 2 - 1;
    switch (c->collective) {
    case DPT_COLLECTIVE_ALL_REDUCE:
    case DPT_COLLECTIVE_REDUCE_SCATTER:
        return marked(sum, i);
    case DPT_COLLECTIVE_ALL_GATHER:
        return marked(chunk, i);
    case DPT_COLLECTIVE_BROADCAST:
        return marked(1, i);
    case DPT_COLLECTIVE_SEND_RECV:
    case DPT_COLLECTIVE_COUNT:
        break;
    }
    return marked((rank + n - 1) % n, i);
}

static void run_collective(struct rank *self, const struct collective_case *c, uint64_t generation)
{
    struct part p = {.device = NULL};
    struct dpt_pattern pattern;
    struct dpt_pattern_run *run;
    struct dpt_comm_mem *from, *to, *staging;
    const size_t bytes = (size_t)c->numel * sizeof(float);
    make_ring_world(self, &p);
    for (int i = 0; i < p.world.size; i++)
        p.rank_of_position[i] = i;
    const struct dpt_pattern_spec spec = {
        .collective = c->collective, .algorithm = c->algorithm, .world = &p.world, .root = 1};
    CHECK_OK(dpt_pattern_init(&pattern, &spec, &self->err), &self->err);
    CHECK_OK(dpt_device_cpu_create(&p.device, &self->err), &self->err);
    CHECK_OK(dpt_stream_create(p.device, 1, &p.stream, &self->err), &self->err);
    CHECK_OK(dpt_comm_mem_create(self->listener, bytes, &from, &self->err), &self->err);
    CHECK_OK(dpt_comm_mem_create(self->listener, bytes, &to, &self->err), &self->err);
    const size_t staged = dpt_pattern_run_staging(&pattern, self->rank, c->numel, c->part_numel);
    CHECK_OK(dpt_comm_mem_create(self->listener, staged + 1, &staging, &self->err), &self->err);
    float *values = dpt_comm_mem_data(c->in_place ? to : from), *result = dpt_comm_mem_data(to);
    for (int64_t i = 0; i < c->numel; i++) {
        result[i] = NAN;
        values[i] = marked(self->rank, i);
    }
    const struct dpt_pattern_run_spec of = {.pattern = &pattern,
                                            .rank = self->rank,
                                            .numel_max = c->numel,
                                            .part_numel = c->part_numel,
                                            .from = c->in_place ? to : from,
                                            .to = to,
                                            .staging = staging,
                                            .ops = dpt_device_ops(p.device),
                                            .stream = p.stream};
    CHECK_OK(dpt_pattern_run_create(&of, &run, &self->err), &self->err);
    struct dpt_comm *comm = world_comm(self, generation);
    CHECK_OK(dpt_pattern_run_once(run, comm, (struct dpt_interval){0, c->numel}, &self->err),
             &self->err);
    for (int chunk = 0; chunk < p.world.size; chunk++) {
        const struct dpt_interval x = dpt_pattern_part(c->numel, p.world.size, chunk, 1, 0);
        for (int64_t i = x.first; i < x.end; i++)
            CHECK((c->collective == DPT_COLLECTIVE_REDUCE_SCATTER && chunk != self->rank) ||
                  result[i] == expected_of(c, p.world.size, self->rank, chunk, i));
    }
    dpt_comm_destroy(&comm);
    dpt_pattern_run_destroy(&run);
    dpt_comm_mem_destroy(&from);
    dpt_comm_mem_destroy(&to);
    dpt_comm_mem_destroy(&staging);
    dpt_stream_destroy(&p.stream);
    dpt_device_destroy(&p.device);
    dpt_pattern_fini(&pattern);
}

static void run_all_collectives(struct rank *self)
{
    static const int64_t sizes[][2] = {{5, 100}, {3001, 64}, {50000, 512}};
    uint64_t generation = 1;
    for (int kind = 0; kind < 2 * DPT_COLLECTIVE_COUNT * DPT_ALGORITHM_COUNT; kind++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const struct collective_case c = {
                .collective = (enum dpt_collective)(kind / 2 % DPT_COLLECTIVE_COUNT),
                .algorithm = (enum dpt_algorithm)(kind / 2 / DPT_COLLECTIVE_COUNT),
                .in_place = kind % 2 == 1,
                .numel = sizes[i][0],
                .part_numel = sizes[i][1]};
            if (c.in_place && c.collective == DPT_COLLECTIVE_SEND_RECV)
                continue;
            if (c.algorithm == DPT_ALGORITHM_DIRECT &&
                (c.collective == DPT_COLLECTIVE_ALL_REDUCE ||
                 c.collective == DPT_COLLECTIVE_REDUCE_SCATTER))
                continue; /* host_reducer.h */
            run_collective(self, &c, generation++);
        }
}

static void every_collective_and_form(void **state)
{
    (void)state;
    for (int size = 2; size <= 4; size++)
        for (int layout = 0; layout < 3; layout++) {
            static struct setting s;
            if ((size + layout) % dpt_test_sanitized_every() != 0)
                continue;
            run_rings(&s, size, layout, run_all_collectives);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(traced_waits_for_a_late_rank), cmocka_unit_test(every_world_and_layout),
        cmocka_unit_test(chunks_of_many_parts),         cmocka_unit_test(a_rank_lost_in_the_step),
        cmocka_unit_test(every_collective_and_form),
    };
    return cmocka_run_group_tests_name("ring_reducer", tests, NULL, NULL);
}
