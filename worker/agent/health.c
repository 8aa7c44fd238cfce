/* The health check of this machine (health.h). */
#include "worker/agent/health.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "kernels/device.h"
#include "worker/agent/health_product.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CORES_MAX = CPU_SETSIZE, UNBOUND = -1 };

/* A core and what its products have shown. */
struct core {
    int number;    /* UNBOUND: the core on which the thread happens to run */
    bool tested;   /* false: the system did not bind the thread to it */
    bool is_right; /* every product has the corner that integer arithmetic gives */
    bool is_same;  /* all products have the bits of the first one, */
    uint64_t bits; /* whose hash this is */
    uint32_t mflops;
};

struct check {
    struct dpt_device *device;
    struct dpt_health_operands operands;
    int n_cores, n_threads;
    struct core cores[CORES_MAX];
};

struct tester {
    pthread_t thread;
    struct check *check;
    int first; /* core that it tests first; the next one is n_threads further */
    enum dpt_status status;
    struct dpt_err err;
};

/* ---- one core ---- */

static int64_t thread_ns(void)
{
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static bool bind_to(int core)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    if (core != UNBOUND)
        CPU_SET((size_t)core, &one);
    return core == UNBOUND || sched_setaffinity(0, sizeof one, &one) == 0;
}

/* Multiplies until the core has computed for DPT_HEALTH_CORE_NS. The first product is not timed: it
 * prepares the kernels. The core's time counts, since others may compute on it, too. */
static void multiply_on(struct core *core, const struct check *check, struct dpt_stream *stream,
                        float *y)
{
    static const double flops = 2.0 * DPT_HEALTH_ROWS * DPT_HEALTH_DEPTH * DPT_HEALTH_COLUMNS;
    const struct dpt_ops *ops = dpt_device_ops(check->device);
    const int64_t until_ms = dpt_now_ms() + DPT_HEALTH_CORE_MS_MAX;
    int64_t spent_ns = 0;
    core->is_right = core->is_same = true;
    for (int round = 0; round <= DPT_HEALTH_ROUNDS_MIN ||
                        (spent_ns < DPT_HEALTH_CORE_NS && dpt_now_ms() < until_ms);
         round++) {
        const int64_t begin_ns = thread_ns();
        dpt_health_multiply(ops, stream, &check->operands, y);
        const int64_t ns = thread_ns() - begin_ns;
        const uint64_t bits = dpt_hash128(y, DPT_HEALTH_Y_FLOATS * sizeof *y).lo;
        core->is_right = core->is_right && dpt_health_corner_is_right(&check->operands, y);
        core->is_same = core->is_same && (round == 0 || bits == core->bits);
        if (round == 0) {
            core->bits = bits;
            continue;
        }
        spent_ns += ns;
        core->mflops = (uint32_t)(flops * round * 1000.0 / (double)(spent_ns > 0 ? spent_ns : 1));
    }
    core->tested = true;
}

static enum dpt_status test_cores(struct tester *tester, float *y, struct dpt_err *err)
{
    struct check *check = tester->check;
    struct dpt_stream *stream = NULL;
    DPT_TRY(dpt_stream_create(check->device, 1, &stream, err));
    for (int i = tester->first; i < check->n_cores; i += check->n_threads)
        if (bind_to(check->cores[i].number))
            multiply_on(&check->cores[i], check, stream, y);
    const enum dpt_status status = dpt_stream_sync(stream, err);
    dpt_stream_destroy(&stream);
    return status;
}

static void *run_tester(void *arg)
{
    struct tester *tester = arg;
    float *y = aligned_alloc(64, DPT_HEALTH_Y_FLOATS * sizeof *y);
    tester->status =
        y != NULL ? test_cores(tester, y, &tester->err) : dpt_fail_nomem(&tester->err, "a product");
    free(y);
    return NULL;
}

/* ---- all cores ---- */

static void list_cores(struct check *check)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) { /* there are more than CORES_MAX */
        check->cores[check->n_cores++].number = UNBOUND;
    } else {
        for (int i = 0; i < CORES_MAX; i++)
            if (CPU_ISSET((size_t)i, &set))
                check->cores[check->n_cores++].number = i;
    }
    check->n_threads =
        check->n_cores < DPT_HEALTH_THREADS_MAX ? check->n_cores : DPT_HEALTH_THREADS_MAX;
}

static enum dpt_status test_all(struct check *check, struct dpt_err *err)
{
    static const char what[] = "health check (cluster.health_check)";
    struct tester testers[DPT_HEALTH_THREADS_MAX];
    enum dpt_status status = DPT_OK;
    int n = 0, code = 0;
    for (; n < check->n_threads && code == 0; n++) {
        testers[n] = (struct tester){.check = check, .first = n};
        code = pthread_create(&testers[n].thread, NULL, run_tester, &testers[n]);
    }
    if (code != 0) {
        n--;
        status = dpt_fail_errno(err, code, "%s: start a thread", what);
    }
    for (int i = 0; i < n; i++) {
        (void)pthread_join(testers[i].thread, NULL);
        if (status == DPT_OK && testers[i].status != DPT_OK)
            status = dpt_fail(err, testers[i].status, "%s: %s", what, testers[i].err.text);
    }
    return status;
}

/* ---- the judgement ---- */

static int votes_for(const struct check *check, uint64_t bits)
{
    int n = 0;
    for (int i = 0; i < check->n_cores; i++)
        n += check->cores[i].tested && check->cores[i].bits == bits;
    return n;
}

/* A core whose bits most others do not have. If as many cores have either bits, the second one in
 * the list. NULL: all have the same. */
static const struct core *odd_core(const struct check *check)
{
    const struct core *first = NULL, *odd = NULL;
    for (int i = 0; i < check->n_cores; i++) {
        const struct core *core = &check->cores[i];
        if (core->tested && first == NULL)
            first = core;
        if (core->tested && odd == NULL && core->bits != first->bits)
            odd = core;
    }
    const bool first_is_odd =
        odd != NULL && votes_for(check, first->bits) < votes_for(check, odd->bits);
    return first_is_odd ? first : odd;
}

static void print_fault(const struct core *core, const char *what, char ret[DPT_HEALTH_FAULT_BYTES])
{
    char name[32] = "a core";
    if (core->number != UNBOUND)
        (void)snprintf(name, sizeof name, "core %d", core->number);
    (void)snprintf(ret, DPT_HEALTH_FAULT_BYTES,
                   "%s %s, so its results cannot be trusted; take the machine out of use, or keep "
                   "dpt-worker off that core (taskset)",
                   name, what);
}

static void judge_cores(const struct check *check, struct dpt_health *health,
                        char ret_fault[DPT_HEALTH_FAULT_BYTES])
{
    ret_fault[0] = '\0';
    for (int i = 0; i < check->n_cores && ret_fault[0] == '\0'; i++) {
        const struct core *core = &check->cores[i];
        if (!core->tested)
            continue;
        if (!core->is_right)
            print_fault(core, "computes wrong values of a matrix product", ret_fault);
        else if (!core->is_same)
            print_fault(core, "computes the same matrix product with different bits", ret_fault);
        health->cores++;
        if (health->mflops == 0 || core->mflops < health->mflops)
            health->mflops = core->mflops;
    }
    const struct core *odd = ret_fault[0] == '\0' ? odd_core(check) : NULL;
    if (odd != NULL)
        print_fault(odd, "computes other bits of a matrix product than another core", ret_fault);
}

enum dpt_status dpt_health_check(struct dpt_health *ret, char ret_fault[DPT_HEALTH_FAULT_BYTES],
                                 struct dpt_err *err)
{
    const int64_t begin_ns = dpt_now_ns();
    struct check *check = calloc(1, sizeof *check);
    if (check == NULL)
        return dpt_fail_nomem(err, "health check (cluster.health_check)");
    list_cores(check);
    dpt_health_draw_operands(&check->operands);
    enum dpt_status status = dpt_device_cpu_create(&check->device, err);
    if (status == DPT_OK)
        status = test_all(check, err);
    if (status == DPT_OK) {
        struct dpt_health health = {.checked = true, .memory_bytes = dpt_memory_available("")};
        judge_cores(check, &health, ret_fault);
        health.check_us = (dpt_now_ns() - begin_ns) / 1000;
        *ret = health;
    }
    dpt_device_destroy(&check->device);
    free(check);
    return status;
}
