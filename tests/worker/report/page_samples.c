/* Reports made by hand. The rank's step is GPT-2's of twelve blocks: data, forward, backward with
 * communication beside it, the rest of the communication, the optimizer. */
#include "tests/worker/report/page_samples.h"

#include "base/err.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define US INT64_C(1000)
#define MS INT64_C(1000000)

enum { BLOCKS = 12, BUCKETS = 8, STEPS = 10, POINTS = 120, SPANS_MAX = 128 };

struct sample {
    const char *name, *strategy;
    size_t n_ranks;
    int straggler;           /* -1: none */
    double comm_ms, wait_ms; /* of a bucket */
    bool has_collectives, has_memory, has_odd_names;
};

static const struct sample samples[PAGE_SAMPLES] = {
    {.name = "one_rank", .strategy = "no_shard", .n_ranks = 1, .straggler = -1, .has_memory = true},
    {.name = "four_ranks",
     .strategy = "ddp",
     .n_ranks = 4,
     .straggler = -1,
     .comm_ms = 14,
     .wait_ms = 0.8,
     .has_collectives = true,
     .has_memory = true},
    {.name = "eight_ranks",
     .strategy = "full_shard",
     .n_ranks = 8,
     .straggler = 5,
     .comm_ms = 4,
     .wait_ms = 7,
     .has_collectives = true,
     .has_memory = true},
    {.name = "many_ranks",
     .strategy = "hybrid_shard",
     .n_ranks = 64,
     .straggler = 40,
     .comm_ms = 5,
     .wait_ms = 2,
     .has_collectives = true,
     .has_memory = true},
    {.name = "no_memory",
     .strategy = "zero1",
     .n_ranks = 2,
     .straggler = -1,
     .comm_ms = 3,
     .wait_ms = 0.5,
     .has_collectives = true},
    {.name = "odd_names",
     .strategy = "<script>alert(\"&\")</script>",
     .n_ranks = 2,
     .straggler = -1,
     .comm_ms = 3,
     .has_collectives = true,
     .has_memory = true,
     .has_odd_names = true},
    {.name = "nothing_known", .strategy = "unknown", .n_ranks = 0, .straggler = -1},
    {.name = "comparison",
     .strategy = "ddp",
     .n_ranks = 4,
     .straggler = -1,
     .comm_ms = 9,
     .wait_ms = 0.5,
     .has_collectives = true,
     .has_memory = true},
};

/* Quotes, a control character, a byte that is no UTF-8, and no blank. */
static const char odd_name[] =
    "void<T&>::gemm\"x'y\"\x01\xff/a/very/long/name/without/a/blank/that/no/screen/has/room/for/"
    "0123456789/0123456789/0123456";

const char *page_sample_name(int i)
{
    return samples[i].name;
}

static void *make_zeroed(size_t n, size_t bytes)
{
    void *ret = calloc(n > 0 ? n : 1, bytes);
    DPT_ASSERT(ret != NULL);
    return ret;
}

/* ---- one rank ---- */

/* Adds a span, and returns its end. */
static int64_t add_span(struct dpt_report_rank *rank, const char *lane, const char *name,
                        enum dpt_report_span_class class, const int64_t time_ns[2])
{
    struct dpt_report_span *span = &rank->spans[rank->n_spans++];
    DPT_ASSERT(rank->n_spans <= SPANS_MAX);
    (void)snprintf(span->lane, sizeof span->lane, "%s", lane);
    (void)snprintf(span->name, sizeof span->name, "%s", name);
    span->class = class;
    span->begin_ns = time_ns[0];
    span->end_ns = time_ns[0] + time_ns[1];
    return span->end_ns;
}

struct times {
    int64_t forward, backward, comm, wait, exposed, optimizer, data;
};

static struct times times_of(const struct sample *s, int rank)
{
    const double slow = rank == s->straggler ? 1.25 : 1.0 + 0.004 * (rank % 3);
    const struct times t = {.forward = (int64_t)(3.1 * slow * MS),
                            .backward = (int64_t)(6.4 * slow * MS),
                            .comm = (int64_t)(s->comm_ms * MS),
                            .wait = rank == s->straggler ? 0 : (int64_t)(s->wait_ms * MS),
                            .optimizer = 9 * MS,
                            .data = 900 * US};
    return t;
}

static void add_timeline(struct dpt_report_rank *rank, const struct sample *s, struct times *t)
{
    const char *op = s->has_odd_names ? odd_name : "linear_backward";
    char name[32];
    rank->spans = make_zeroed(SPANS_MAX, sizeof *rank->spans);
    const int64_t forward = t->data + BLOCKS * t->forward,
                  backward = forward + BLOCKS * t->backward;
    int64_t at = forward + 2 * t->backward;
    for (int i = 0; s->has_collectives && i < BUCKETS; i++)
        at = (at > forward + (i + 2) * t->backward ? at : forward + (i + 2) * t->backward) +
             t->wait + t->comm;
    t->exposed = at > backward ? at - backward : 0;
    const int64_t commit = backward + t->exposed;
    (void)add_span(rank, "main", "wait for data", REPORT_SPAN_DATA, (int64_t[]){0, t->data});
    (void)add_span(rank, "main", "forward", REPORT_SPAN_PHASE,
                   (int64_t[]){t->data, forward - t->data});
    (void)add_span(rank, "main", "backward", REPORT_SPAN_PHASE,
                   (int64_t[]){forward, backward - forward});
    (void)add_span(rank, "main", "optimizer_step", REPORT_SPAN_OPTIMIZER,
                   (int64_t[]){commit, t->optimizer});
    for (int i = 0; i < BLOCKS; i++)
        (void)add_span(rank, "stream 7", "14 ops", REPORT_SPAN_COMPUTE,
                       (int64_t[]){t->data + i * t->forward + 80 * US, t->forward - 160 * US});
    for (int i = 0; i < BLOCKS; i++) {
        const int64_t begin = forward + i * t->backward;
        (void)add_span(rank, "stream 7", op, REPORT_SPAN_COMPUTE,
                       (int64_t[]){begin + 60 * US, t->backward - 400 * US});
        (void)add_span(rank, "stream 7", "bias_backward", REPORT_SPAN_COMPUTE,
                       (int64_t[]){begin + t->backward - 300 * US, 40 * US});
    }
    (void)add_span(rank, "stream 7", "adamw", REPORT_SPAN_COMPUTE,
                   (int64_t[]){commit + 200 * US, t->optimizer - 300 * US});
    at = forward + 2 * t->backward;
    for (int i = 0; s->has_collectives && i < BUCKETS; i++) {
        at = at > forward + (i + 2) * t->backward ? at : forward + (i + 2) * t->backward;
        (void)snprintf(name, sizeof name, "bucket %d", i);
        if (t->wait > 0)
            at = add_span(rank, "communication", "wait for peers", REPORT_SPAN_WAIT,
                          (int64_t[]){at, t->wait});
        at = add_span(rank, "communication", name, REPORT_SPAN_COMMUNICATION,
                      (int64_t[]){at, t->comm});
    }
}

static void add_ops(struct dpt_report_rank *rank, const struct sample *s)
{
    static const char *const names[REPORT_OPS] = {
        "linear_backward", "linear_forward", "head_backward",      "attention_backward",
        "head_forward",    "adamw",          "attention_forward",  "norm_backward",
        "gelu_backward",   "norm_forward",   "embedding_backward", "cross_entropy"};
    double total = 61.3e6 * STEPS;
    for (size_t i = 0; i < REPORT_OPS; i++, total *= 0.58) {
        struct dpt_report_op *op = &rank->ops[rank->n_ops++];
        (void)snprintf(op->name, sizeof op->name, "%s",
                       s->has_odd_names && i < 2 ? odd_name : names[i]);
        op->calls = (i < 2 ? 48 : i < 8 ? 12 : 1) * STEPS;
        op->total_ns = (int64_t)total;
        op->percent = 100 * total / (double)rank->kernels_ns;
    }
}

static void add_memory(struct dpt_report_rank *rank, int64_t step_ns)
{
    struct dpt_report_memory *m = &rank->memory;
    m->points = make_zeroed(POINTS, sizeof *m->points);
    for (int i = 0; i < POINTS; i++) {
        const double phase = fmod(i / 12.0, 1),
                     rise = phase < 0.35 ? phase / 0.35 : 1.54 * (1 - phase);
        m->points[m->n_points++] =
            (struct dpt_report_point){.at_ns = (int64_t)(i / 12.0 * (double)step_ns),
                                      .bytes = (int64_t)(1.9e9 + 1.1e9 * rise + 7e6 * rank->rank)};
    }
    m->peak = (int64_t)(3.0e9 + 7e6 * rank->rank);
    m->final = m->points[POINTS - 1].bytes;
    m->p50 = (int64_t)2.4e9;
    m->p95 = (int64_t)2.95e9;
}

static void add_collective(struct dpt_report_rank *rank, enum dpt_report_collective_kind kind,
                           double share, const struct times *t)
{
    const double calls = BUCKETS * STEPS, bytes = 124439808 * 4.0 * STEPS * share;
    rank->collective[kind] = (struct dpt_report_collective){
        .calls = (int64_t)calls,
        .time_ns = (int64_t)(calls * share * (double)(t->comm + t->wait)),
        .wait_ns = (int64_t)(calls * share * (double)t->wait),
        .bytes = bytes,
        .bus_gb_s = 1.5 * bytes / (calls * share * (double)t->comm)};
}

static void make_rank(struct dpt_report_rank *rank, int number, const struct sample *s)
{
    struct times t = times_of(s, number);
    rank->rank = number;
    rank->path = make_zeroed(256, 1);
    (void)snprintf(rank->path, 256,
                   "traces/profile/%s/rank_%d/worker_%d.1764183000000.pt.trace.json.gz",
                   s->strategy, number, number);
    add_timeline(rank, s, &t);
    const int64_t step_ns = t.data + BLOCKS * (t.forward + t.backward) + t.exposed + t.optimizer;
    const double window = (double)(step_ns * STEPS),
                 compute = window - (double)(t.exposed + 4 * MS) * STEPS;
    rank->time = (struct dpt_report_breakdown){
        .window_ns = (int64_t)window,
        .compute_ns = (int64_t)compute,
        .non_compute_ns = t.exposed * STEPS,
        .idle_ns = 4 * MS * STEPS,
        .compute_percent = 100 * compute / window,
        .non_compute_percent = 100 * (double)t.exposed * STEPS / window,
        .idle_percent = 100 * 4e6 * STEPS / window,
        .overlap_percent = s->has_collectives ? 63.4 : (double)NAN,
        .comm_overhead_percent = s->has_collectives ? 31.7 : 0,
        .exposed_percent = 100 * (double)t.exposed * STEPS / window};
    rank->kernels_ns = (int64_t)(compute + 8.0 * (double)t.comm * STEPS);
    rank->phases = (struct dpt_report_phases){.forward_ns = BLOCKS * t.forward * STEPS,
                                              .backward_ns = BLOCKS * t.backward * STEPS,
                                              .optimizer_ns = t.optimizer * STEPS,
                                              .grad_sync_ns = t.exposed * STEPS,
                                              .data_wait_ns = t.data * STEPS,
                                              .peer_wait_ns = BUCKETS * t.wait * STEPS,
                                              .checkpoint_ns = number == 0 ? 12 * MS : 0};
    if (s->has_collectives) {
        add_collective(rank, REPORT_REDUCE_SCATTER, 0.5, &t);
        add_collective(rank, REPORT_ALL_GATHER, 0.45, &t);
        if (number == 0)
            add_collective(rank, REPORT_BROADCAST, 0.05, &t);
    }
    rank->memory = (struct dpt_report_memory){REPORT_UNKNOWN, REPORT_UNKNOWN, REPORT_UNKNOWN,
                                              REPORT_UNKNOWN, NULL,           0};
    if (s->has_memory)
        add_memory(rank, step_ns);
    rank->first_step = 11;
    rank->step_ns = make_zeroed(STEPS, sizeof *rank->step_ns);
    rank->step = make_zeroed(STEPS, sizeof *rank->step);
    for (int i = 0; i < STEPS; i++) {
        rank->step[i] = rank->first_step + i;
        rank->step_ns[rank->n_steps++] = step_ns + ((i * 7 + number * 3) % 11 - 5) * 300 * US;
    }
    add_ops(rank, s);
    rank->dropped_events = s->has_odd_names ? 12345 : 0;
}

/* ---- reports ---- */

static void set_verdict(struct dpt_report *report, const struct sample *s)
{
    struct dpt_report_verdict *v = &report->verdict;
    v->exposed_percent = v->wait_percent = report->means.exposed_percent;
    v->rank = s->straggler;
    v->share[REPORT_COMMUNICATION] = report->means.exposed_percent;
    v->share[REPORT_DATA] = 0.6;
    v->share[REPORT_COMPUTE] = 99.4 - v->share[REPORT_COMMUNICATION];
    if (s->straggler >= 0) {
        v->cause = REPORT_STRAGGLER;
        v->share[REPORT_STRAGGLER] = 17.8;
        (void)snprintf(v->key, sizeof v->key, "cluster.device");
        (void)snprintf(
            v->text, sizeof v->text,
            "Rank %d computes 25 %% longer than the median rank for the same work, and the "
            "other ranks wait for it: 17.8 %% of a step. Find out what slows its machine "
            "(other programs, heat, memory), or give it fewer slots.",
            s->straggler);
    } else if (s->comm_ms > 4) {
        v->cause = REPORT_COMMUNICATION;
        (void)snprintf(v->key, sizeof v->key, "train.global_batch");
        (void)snprintf(
            v->text, sizeof v->text,
            "Communication that computation does not hide takes %.1f %% of a step. A larger "
            "global batch sends the same bytes for more samples.",
            v->exposed_percent);
    } else if (s->n_ranks == 0) {
        (void)snprintf(v->text, sizeof v->text, "The traces have no step.");
    } else {
        (void)snprintf(
            v->text, sizeof v->text,
            "Computation takes %.1f %% of a step, and nothing else a share that matters.",
            report->means.compute_percent);
    }
    if (v->exposed_percent > REPORT_EXPOSED_WARN_PERCENT)
        (void)snprintf(v->warning, sizeof v->warning,
                       "%.1f %% of the time is exposed communication. Remedies: a larger batch, "
                       "compression of the gradients, more overlap.",
                       v->exposed_percent);
    if (s->has_odd_names) {
        (void)snprintf(v->text, sizeof v->text, "Text & more <b>text</b>: %s", odd_name);
        (void)snprintf(v->key, sizeof v->key, "a<b>&\"c\"");
        (void)snprintf(v->warning, sizeof v->warning, "%s", odd_name);
    }
}

static void set_means(struct dpt_report *report, const struct sample *s)
{
    const struct dpt_report_rank *first = &report->ranks[0];
    const double unknown = (double)NAN;
    struct dpt_report_means *m = &report->means;
    *m = (struct dpt_report_means){unknown, unknown, unknown, unknown, unknown, unknown, unknown,
                                   unknown, unknown, unknown, unknown, unknown, unknown};
    if (report->n_ranks == 0)
        return;
    m->step_ms = (double)first->time.window_ns / 1e6 / STEPS;
    m->compute_percent = first->time.compute_percent;
    m->non_compute_percent = first->time.non_compute_percent;
    m->idle_percent = first->time.idle_percent;
    m->overlap_percent = first->time.overlap_percent;
    m->comm_overhead_percent = first->time.comm_overhead_percent;
    m->exposed_percent = first->time.exposed_percent;
    m->wait_ms = BUCKETS * s->wait_ms;
    m->data_wait_ms = 0.9;
    m->checkpoint_ms = 0.3;
    m->collective_bytes = s->has_collectives ? 124439808 * 4.0 : 0;
    m->memory_peak_mib = s->has_memory ? 2861.4 : unknown;
}

/* As a trace of dpt states it; that of a damaged file has any text. */
static void set_setup(struct report_setup *setup, const struct sample *s)
{
    *setup = (struct report_setup){.hosts = 2,
                                   .overlap = REPORT_FACT_YES,
                                   .compression = "none",
                                   .activation_checkpointing = "selective",
                                   .precision = "bf16",
                                   .device = "cuda",
                                   .data = "classification",
                                   .global_batch = 1 << 20,
                                   .micro_batch = 64};
    if (s->has_odd_names)
        (void)snprintf(setup->precision, sizeof setup->precision, "<b>&\"\x01</b>");
}

static void make_report(struct dpt_report *ret, const struct sample *s)
{
    *ret = (struct dpt_report){.world_size = (int)s->n_ranks,
                               .generation = 2,
                               .window = 0,
                               .clock_error_ns = s->n_ranks == 8 ? 31 * US : REPORT_UNKNOWN,
                               .began_ns = INT64_C(1764183000) * 1000 * MS,
                               .timeline_step = 14,
                               .n_ranks = s->n_ranks};
    (void)snprintf(ret->name, sizeof ret->name, "%s", s->has_odd_names ? odd_name : s->strategy);
    (void)snprintf(ret->strategy, sizeof ret->strategy, "%s", s->strategy);
    (void)snprintf(ret->source, sizeof ret->source, "dpt");
    ret->ranks = make_zeroed(s->n_ranks, sizeof *ret->ranks);
    for (size_t i = 0; i < s->n_ranks; i++)
        make_rank(&ret->ranks[i], (int)i, s);
    if (s->n_ranks > 1) /* else of another program, which states nothing */
        set_setup(&ret->setup, s);
    set_means(ret, s);
    set_verdict(ret, s);
}

/* A row of a user's CSV: only name and some means. */
static void make_row(struct dpt_report *ret, const char *name)
{
    const struct sample none = {.name = name, .strategy = name, .straggler = -1};
    make_report(ret, &none);
    (void)snprintf(ret->source, sizeof ret->source, "csv");
    ret->means.step_ms = 141.2;
    ret->means.memory_peak_mib = 3076;
}

size_t page_sample_make(int i, struct dpt_report ret[PAGE_SAMPLE_REPORTS_MAX])
{
    struct sample s = samples[i];
    make_report(&ret[0], &s);
    if (strcmp(s.name, "comparison") != 0)
        return 1;
    s.strategy = "full_shard";
    s.comm_ms = 13;
    make_report(&ret[1], &s);
    s.strategy = "shard_grad_op";
    s.comm_ms = 2;
    s.has_memory = false;
    make_report(&ret[2], &s);
    s.strategy = "naive";
    s.has_odd_names = true;
    make_report(&ret[3], &s);
    make_row(&ret[4], "PyTorch FSDP, 2 GPUs & <more>");
    return 5;
}
