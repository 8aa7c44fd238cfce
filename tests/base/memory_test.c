/* What /proc and the control groups say of memory, in folders that look like them. */
#include "base/fs.h"
#include "base/memory.h"
#include "tests/tmp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static char root[96];

static void put_proc_file(const char *path, const char *text)
{
    char full[256];
    struct dpt_err err;
    (void)snprintf(full, sizeof full, "%s%s", root, path);
    char *slash = strrchr(full, '/');
    *slash = '\0';
    assert_int_equal(dpt_fs_mkdirs(full, &err), DPT_OK);
    *slash = '/';
    assert_int_equal(dpt_fs_write_file_atomic(full, text, strlen(text), &err), DPT_OK);
}

static int setup(void **state)
{
    (void)state;
    return test_make_dir(root, sizeof root, "memory") ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    struct dpt_err err;
    return dpt_fs_remove_tree(root, &err) == DPT_OK ? 0 : -1;
}

static void test_this_machine(void **state)
{
    (void)state;
    assert_true(dpt_memory_available("") > 1 << 20);
}

static void test_nothing_known(void **state)
{
    (void)state;
    assert_int_equal(dpt_memory_available(root), 0);
    put_proc_file("/proc/meminfo", "MemTotal:  10 kB\nMemFree:  9 kB\n");
    assert_int_equal(dpt_memory_available(root), 0);
}

static void test_memory_of_machine(void **state)
{
    (void)state;
    put_proc_file("/proc/meminfo",
                  "MemTotal:   9000 kB\nMemFree:   10 kB\nMemAvailable:   8000 kB\n");
    assert_int_equal(dpt_memory_available(root), 8000 * 1024);
    put_proc_file("/proc/self/cgroup", "4:memory:/old\n"); /* version 1 alone */
    assert_int_equal(dpt_memory_available(root), 8000 * 1024);
}

/* The tightest group counts; reclaimable memory does not count as used. */
static void test_tightest_cgroup_counts(void **state)
{
    (void)state;
    put_proc_file("/proc/meminfo", "MemAvailable:   8000 kB\n");
    put_proc_file("/proc/self/cgroup", "1:name=systemd:/x\n0::/job/step\n");
    put_proc_file("/sys/fs/cgroup/job/step/memory.max", "max\n");
    put_proc_file("/sys/fs/cgroup/job/step/memory.current", "5\n");
    assert_int_equal(dpt_memory_available(root), 8000 * 1024);
    put_proc_file("/sys/fs/cgroup/job/memory.max", "1000000\n");
    put_proc_file("/sys/fs/cgroup/job/memory.current", "400000\n");
    assert_int_equal(dpt_memory_available(root), 600000);
    put_proc_file("/sys/fs/cgroup/job/memory.stat",
                  "anon 1\ninactive_file 150000\nactive_file 7\n");
    assert_int_equal(dpt_memory_available(root), 750000);
    put_proc_file("/sys/fs/cgroup/job/step/memory.max", "300000\n");
    assert_int_equal(dpt_memory_available(root), 299995);
    put_proc_file("/sys/fs/cgroup/job/step/memory.current", "300001\n");
    assert_int_equal(dpt_memory_available(root), 0);
}

/* Files' pages and swap could all be given up; shared memory, which counts as a file, could not. */
static void test_at_most(void **state)
{
    (void)state;
    assert_int_equal(dpt_memory_at_most(root), 0);
    put_proc_file("/proc/meminfo", "MemAvailable:   8000 kB\nSwapTotal: 9 kB\nSwapFree: 5 kB\n");
    assert_int_equal(dpt_memory_at_most(root), 8005 * 1024);
    assert_int_equal(dpt_memory_of_machine(root), 0);
    put_proc_file("/proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 8000 kB\nSwapTotal: 9 kB\n"
                                   "SwapFree: 5 kB\n");
    assert_int_equal(dpt_memory_of_machine(root), 9009 * 1024);
    put_proc_file("/proc/self/cgroup", "0::/job\n");
    put_proc_file("/sys/fs/cgroup/job/memory.max", "1000000\n");
    put_proc_file("/sys/fs/cgroup/job/memory.current", "900000\n");
    assert_int_equal(dpt_memory_of_machine(root), 1000000 + 9 * 1024);
    put_proc_file("/sys/fs/cgroup/job/memory.stat",
                  "anon 1\nfile 700000\nshmem 200000\ninactive_file 1\n");
    assert_int_equal(dpt_memory_at_most(root), 600000 + 5 * 1024);
    assert_int_equal(dpt_memory_available(root), 100001);
    put_proc_file("/sys/fs/cgroup/job/memory.current", "1700000\n");
    assert_int_equal(dpt_memory_at_most(root), 5 * 1024);
    assert_true(dpt_memory_at_most("") >= dpt_memory_available("") / 2);
}

/* Of the own group, of version 2 before version 1, and of the machine where there is none. */
static void test_ends_for_lack_of_memory(void **state)
{
    (void)state;
    assert_int_equal(dpt_memory_oom_kills(root), -1);
    put_proc_file("/proc/vmstat", "nr_free_pages 7\noom_kill 5\n");
    assert_int_equal(dpt_memory_oom_kills(root), 5);
    put_proc_file("/proc/self/cgroup",
                  "9:name=systemd:/s\n4:cpu,memory:/a/b\n3:memoryx:/c\n0::/u\n");
    assert_int_equal(dpt_memory_oom_kills(root), 5);
    put_proc_file("/sys/fs/cgroup/memory/memory.oom_control",
                  "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
    assert_int_equal(dpt_memory_oom_kills(root), 1); /* a container: its group is the mount */
    put_proc_file("/sys/fs/cgroup/memory/a/b/memory.oom_control",
                  "oom_kill_disable 1\nunder_oom 0\noom_kill 3\n");
    assert_int_equal(dpt_memory_oom_kills(root), 3);
    put_proc_file("/sys/fs/cgroup/u/memory.events", "low 0\noom 9\noom_kill 4\n");
    assert_int_equal(dpt_memory_oom_kills(root), 4);
}

static void test_memory_of_process(void **state)
{
    (void)state;
    struct dpt_process_memory process;
    put_proc_file("/proc/self/status",
                  "Name:\tx\nVmHWM:\t    30 kB\nVmRSS:\t    20 kB\nRssAnon:\t 9 kB\n"
                  "RssFile:\t 8 kB\nRssShmem:\t       3 kB\n");
    dpt_memory_of_process(root, &process);
    assert_int_equal(process.peak, 30 * 1024);
    assert_int_equal(process.resident, 20 * 1024);
    assert_int_equal(process.anon, 9 * 1024);
    assert_int_equal(process.file, 8 * 1024);
    assert_int_equal(process.shared, 3 * 1024);
    put_proc_file("/proc/self/status", "Name:\tx\n");
    dpt_memory_of_process(root, &process);
    assert_int_equal(process.peak, -1);
    dpt_memory_of_process("", &process);
    assert_true(process.peak >= process.resident && process.resident > 1 << 16);
    assert_int_equal(process.anon + process.file + process.shared, process.resident);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_this_machine, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nothing_known, setup, teardown),
        cmocka_unit_test_setup_teardown(test_memory_of_machine, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tightest_cgroup_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_at_most, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ends_for_lack_of_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_memory_of_process, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
