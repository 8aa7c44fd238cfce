/* A rank stays on its share of the machine's nodes, and nowhere where there is nothing to choose.
 * The machine is a fake one, made of two cores that this process has. */
#include "worker/train/device/rank_device.h"

#include "base/fs.h"
#include "tests/tmp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

static char sys[64];
static cpu_set_t mine;
static int core[2];

static void put_node(int node, int only)
{
    char path[128], file[160], list[32];
    struct dpt_err err;
    (void)snprintf(path, sizeof path, "%s/devices/system/node/node%d", sys, node);
    assert_int_equal(dpt_fs_mkdirs(path, &err), DPT_OK);
    (void)snprintf(file, sizeof file, "%s/cpulist", path);
    (void)snprintf(list, sizeof list, "%d\n", only);
    assert_int_equal(dpt_fs_write_file_atomic(file, list, strlen(list), &err), DPT_OK);
}

static int setup(void **state)
{
    (void)state;
    int found = 0;
    if (sched_getaffinity(0, sizeof mine, &mine) != 0 ||
        !test_make_dir(sys, sizeof sys, "test-bind"))
        return -1;
    for (int i = 0; i < CPU_SETSIZE && found < 2; i++)
        if (CPU_ISSET((size_t)i, &mine))
            core[found++] = i;
    if (found < 2)
        return 0;
    put_node(0, core[0]);
    put_node(3, core[1]);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    struct dpt_err err;
    return dpt_fs_remove_tree(sys, &err) == DPT_OK ? 0 : -1;
}

struct rank {
    struct dpt_rank_start start;
    struct dpt_config config;
    cpu_set_t after;
};

static void *bind_one(void *ctx)
{
    struct rank *rank = ctx;
    dpt_rank_bind_numa(&rank->start, &rank->config, sys);
    (void)sched_getaffinity(0, sizeof rank->after, &rank->after);
    return NULL;
}

/* The cores of a thread after it was bound as that rank. */
static cpu_set_t cores_of(int local_rank, int ranks, int threads, enum dpt_numa_use use,
                          enum dpt_device_kind device)
{
    static struct rank rank;
    rank = (struct rank){.start = {.local_rank = local_rank, .ranks = ranks, .threads = threads}};
    rank.config.cluster.numa = use;
    rank.config.cluster.device = device;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, bind_one, &rank), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return rank.after;
}

static void ranks_share_the_nodes(void **state)
{
    (void)state;
    if (CPU_COUNT(&mine) < 2)
        skip();
    for (int rank = 0; rank < 4; rank++) {
        const cpu_set_t set = cores_of(rank, 4, 0, DPT_NUMA_AUTO, DPT_DEVICE_CPU);
        assert_int_equal(CPU_COUNT(&set), 1);
        assert_true(CPU_ISSET((size_t)core[rank / 2], &set));
    }
}

static void where_there_is_nothing_to_choose(void **state)
{
    (void)state;
    const cpu_set_t sets[] = {
        cores_of(0, 1, 0, DPT_NUMA_AUTO, DPT_DEVICE_CPU), /* it may use both */
        cores_of(0, 3, 0, DPT_NUMA_AUTO, DPT_DEVICE_CPU),
        cores_of(0, 2, 0, DPT_NUMA_OFF, DPT_DEVICE_CPU),
        cores_of(0, 2, 2, DPT_NUMA_AUTO, DPT_DEVICE_CPU),  /* more threads than a node has cores */
        cores_of(0, 2, 0, DPT_NUMA_AUTO, DPT_DEVICE_CUDA), /* without a GPU */
    };
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
        assert_true(CPU_EQUAL(&sets[i], &mine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_share_the_nodes),
        cmocka_unit_test(where_there_is_nothing_to_choose),
    };
    return cmocka_run_group_tests_name("where ranks stay", tests, setup, teardown);
}
