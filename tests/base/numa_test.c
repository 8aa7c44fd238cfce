/* NUMA nodes: lists of cores, a machine's nodes, devices' nodes, the assignment of ranks, and
 * binding. */
#include "base/numa.h"

#include "base/cores.h"
#include "base/fs.h"
#include "tests/tmp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static char sys[64];

static int setup(void **state)
{
    (void)state;
    return test_make_dir(sys, sizeof sys, "test-numa") ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    struct dpt_err err;
    return dpt_fs_remove_tree(sys, &err) == DPT_OK ? 0 : -1;
}

static void put_node_file(const char *folder, const char *name, const char *text)
{
    char path[192], file[256];
    struct dpt_err err;
    (void)snprintf(path, sizeof path, "%s/%s", sys, folder);
    assert_int_equal(dpt_fs_mkdirs(path, &err), DPT_OK);
    (void)snprintf(file, sizeof file, "%s/%s", path, name);
    assert_int_equal(dpt_fs_write_file_atomic(file, text, strlen(text), &err), DPT_OK);
}

static void test_core_lists(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int count, with; /* -1: no list */
    } good[] = {{"0", 1, 0}, {"0-3,8", 5, 8}, {"2-2,7-9", 4, 9}, {"1023", 1, 1023}};
    static const char *const bad[] = {"a",      "1-",    "-1",  "3-1",
                                      "1,",     ",1",    "1;",  "1024",
                                      "0-1024", "1-2-3", " 1 ", "99999999999999999999"};
    cpu_set_t set;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(dpt_numa_parse_cores(good[i].text, &set));
        assert_int_equal(CPU_COUNT(&set), good[i].count);
        assert_true(CPU_ISSET((size_t)good[i].with, &set));
    }
    assert_true(dpt_numa_parse_cores("", &set));
    assert_int_equal(CPU_COUNT(&set), 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(dpt_numa_parse_cores(bad[i], &set));
}

static void test_node_of_pci_device(void **state)
{
    (void)state;
    put_node_file("bus/pci/devices/0000:1b:00.0", "numa_node", "1\n");
    put_node_file("bus/pci/devices/0000:2a:00.0", "numa_node", "-1\n");
    put_node_file("bus/pci/devices/0000:3c:00.0", "numa_node", "what\n");
    assert_int_equal(dpt_numa_of_pci(sys, "0000:1B:00.0"), 1);
    assert_int_equal(dpt_numa_of_pci(sys, "0000:2A:00.0"), -1);
    assert_int_equal(dpt_numa_of_pci(sys, "0000:3C:00.0"), -1);
    assert_int_equal(dpt_numa_of_pci(sys, "0000:FF:00.0"), -1);
}

/* Cores that this process has, so that the machine that runs the test can be a fake one. */
static int first_core(void)
{
    cpu_set_t mine;
    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    int core = 0;
    while (!CPU_ISSET((size_t)core, &mine))
        core++;
    return core;
}

static void *stay_in_a_thread(void *ctx)
{
    const struct dpt_numa *numa = ctx;
    struct dpt_err err;
    uint64_t id;
    if (dpt_numa_stay(numa, 0, &err) != DPT_OK)
        return "the thread cannot stay there";
    return dpt_cores_identified(&id) == 1 ? NULL : "the thread has other cores";
}

/* A node whose cores belong to another node does not count, nor does a node with memory only. */
static void test_nodes_without_cores_do_not_count(void **state)
{
    (void)state;
    struct dpt_numa numa;
    char list[32];
    dpt_numa_read("/nonexistent", &numa);
    assert_int_equal(numa.n, 0);
    put_node_file("devices/system/node/node0", "cpulist", "1000-1007\n");
    put_node_file("devices/system/node/node1", "cpulist", "\n");
    (void)snprintf(list, sizeof list, "%d,1008\n", first_core());
    put_node_file("devices/system/node/node2", "cpulist", list);
    dpt_numa_read(sys, &numa);
    assert_int_equal(numa.n, 1);
    assert_int_equal(numa.node[0], 2);
    assert_int_equal(CPU_COUNT(&numa.cores[0]), 1);
    pthread_t thread;
    void *said;
    assert_int_equal(pthread_create(&thread, NULL, stay_in_a_thread, &numa), 0);
    assert_int_equal(pthread_join(thread, &said), 0);
    assert_null(said);
}

static void of_cores(struct dpt_numa *numa, int n, const int *cores)
{
    numa->n = n;
    for (int i = 0, core = 0; i < n; i++) {
        CPU_ZERO(&numa->cores[i]);
        for (int k = 0; k < cores[i]; k++)
            CPU_SET((size_t)core++, &numa->cores[i]);
    }
}

static void test_ranks_are_assigned_in_order(void **state)
{
    (void)state;
    struct dpt_numa numa;
    of_cores(&numa, 2, (const int[]){8, 8});
    const int of_four[] = {0, 0, 1, 1};
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(dpt_numa_assign(&numa, rank, 4), of_four[rank]);
    assert_int_equal(dpt_numa_assign(&numa, 1, 2), 1);
    assert_int_equal(dpt_numa_assign(&numa, 0, 1), -1); /* it may use both */
    assert_int_equal(dpt_numa_assign(&numa, 2, 3), -1);
    of_cores(&numa, 2, (const int[]){8, 4});
    assert_int_equal(dpt_numa_assign(&numa, 0, 2), -1);
    of_cores(&numa, 1, (const int[]){8});
    assert_int_equal(dpt_numa_assign(&numa, 0, 2), -1);
    of_cores(&numa, 0, NULL);
    assert_int_equal(dpt_numa_assign(&numa, 0, 2), -1);
}

/* Ranks that would have more to share with each other than with all are left where they are. */
static void test_uneven_ranks_are_not_bound(void **state)
{
    (void)state;
    struct dpt_numa numa;
    of_cores(&numa, 2, (const int[]){8, 8});
    assert_int_equal(dpt_numa_cores(&numa), 16);
    assert_true(dpt_numa_is_even(&numa, (const int[]){0, 1}, 2, 0, 16));
    assert_true(dpt_numa_is_even(&numa, (const int[]){0, 1, 1, 0}, 4, 4, 16));
    assert_false(dpt_numa_is_even(&numa, (const int[]){0, 1, 1, 0}, 4, 5, 16));
    assert_false(dpt_numa_is_even(&numa, (const int[]){0, 0}, 2, 0, 16)); /* all GPUs on one node */
    assert_false(dpt_numa_is_even(&numa, (const int[]){1}, 1, 0, 16));
    assert_false(dpt_numa_is_even(&numa, (const int[]){0, -1}, 2, 0, 16));
    assert_false(dpt_numa_is_even(&numa, (const int[]){0, 1}, 2, 0, 15)); /* a quota */
    of_cores(&numa, 2, (const int[]){8, 4});
    assert_true(dpt_numa_is_even(&numa, (const int[]){0, 0, 1}, 3, 4, 16));
    assert_false(dpt_numa_is_even(&numa, (const int[]){0, 1}, 2, 0, 16));
}

/* The system may take cores away after they were listed; then binding fails. */
static void cores_that_are_gone(void **state)
{
    (void)state;
    struct dpt_numa numa = {.n = 1, .node = {5}};
    struct dpt_err err;
    CPU_ZERO(&numa.cores[0]);
    CPU_SET(1000, &numa.cores[0]);
    assert_int_not_equal(dpt_numa_stay(&numa, 0, &err), DPT_OK);
    assert_non_null(strstr(err.text, "stay on NUMA node 5"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_core_lists),
        cmocka_unit_test(test_node_of_pci_device),
        cmocka_unit_test(test_nodes_without_cores_do_not_count),
        cmocka_unit_test(test_ranks_are_assigned_in_order),
        cmocka_unit_test(test_uneven_ranks_are_not_bound),
        cmocka_unit_test(cores_that_are_gone),
    };
    return cmocka_run_group_tests_name("numa", tests, setup, teardown);
}
