/* CPU quotas out of trees of control groups as the kernel shows them. */
#include "base/cgroup.h"

#include "base/fs.h"
#include "tests/tmp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static char root[128];

static int setup_cgroup(void **state)
{
    (void)state;
    return test_make_dir(root, sizeof root, "cgroup") ? 0 : -1;
}

static int teardown_cgroup(void **state)
{
    (void)state;
    struct dpt_err err;
    return dpt_fs_remove_tree(root, &err) == DPT_OK ? 0 : -1;
}

/* Writes root/FOLDER/NAME. */
static void put_cgroup_file(const char *folder, const char *name, const char *text)
{
    char path[512];
    struct dpt_err err;
    (void)snprintf(path, sizeof path, "%s/%s", root, folder);
    assert_int_equal(dpt_fs_mkdirs(path, &err), DPT_OK);
    (void)snprintf(path, sizeof path, "%s/%s/%s", root, folder, name);
    assert_int_equal(dpt_fs_write_file_atomic(path, text, strlen(text), &err), DPT_OK);
}

/* The quota of a process in the groups of `membership`, 0: none. */
static double quota(const char *membership, uint64_t *ret_group)
{
    char path[256];
    put_cgroup_file("proc", "cgroup", membership);
    (void)snprintf(path, sizeof path, "%s/proc/cgroup", root);
    double cpus = 0;
    return dpt_cgroup_quota(path, root, &cpus, ret_group) ? cpus : 0;
}

static void version_2(void **state)
{
    (void)state;
    uint64_t group = 0, other = 0;
    put_cgroup_file("a/b", "cpu.max", "150000 100000\n");
    put_cgroup_file("a", "cpu.max", "max 100000\n");
    put_cgroup_file("a/c", "cpu.max", "800000 100000\n");
    assert_float_equal(quota("0::/a/b\n", &group), 1.5, 0);
    assert_float_equal(quota("0::/a/b/deeper/not-there\n", &other), 1.5, 0);
    assert_true(group == other); /* they share it */
    assert_float_equal(quota("0::/a/c\n", &other), 8, 0);
    assert_true(group != other);
    assert_float_equal(quota("0::/a\n", &group), 0, 0);
    put_cgroup_file("a", "cpu.max", "400000 100000\n"); /* above, and tighter than its child's */
    assert_float_equal(quota("0::/a/c\n", &group), 4, 0);
    assert_float_equal(quota("0::/a/b\n", &group), 1.5, 0);
}

/* In a container the path may be the host's, or lead out of the visible tree: then the root's
 * limits count. */
static void roots(void **state)
{
    (void)state;
    uint64_t group = 0;
    put_cgroup_file(".", "cpu.max", "200000 100000\n");
    assert_float_equal(quota("0::/machine/container-7\n", &group), 2, 0);
    assert_float_equal(quota("0::/\n", &group), 2, 0);
    put_cgroup_file("out", "cpu.max", "100000 100000\n");
    assert_float_equal(quota("0::/../out\n", &group), 2, 0);
    put_cgroup_file("unified/x", "cpu.max", "100000 200000\n"); /* beside version 1 */
    assert_float_equal(quota("0::/x\n", &group), 0.5, 0);
}

static void version_1(void **state)
{
    (void)state;
    static const char groups[] = "5:memory:/m\n3:cpuset:/s\n2:cpuacct,cpu:/job\n1:cpux:/t\n";
    uint64_t group = 0;
    put_cgroup_file("cpu/job", "cpu.cfs_quota_us", "-1\n");
    put_cgroup_file("cpu/job", "cpu.cfs_period_us", "100000\n");
    put_cgroup_file("cpu/t", "cpu.cfs_quota_us",
                    "1000\n"); /* of a controller that is not the CPU's */
    put_cgroup_file("cpu/t", "cpu.cfs_period_us", "1000\n");
    assert_float_equal(quota(groups, &group), 0, 0);
    put_cgroup_file("cpu/job", "cpu.cfs_quota_us", "250000\n");
    assert_float_equal(quota(groups, &group), 2.5, 0);
    put_cgroup_file("cpu", "cpu.cfs_quota_us", "75000\n");
    put_cgroup_file("cpu", "cpu.cfs_period_us", "50000\n");
    assert_float_equal(quota(groups, &group), 1.5, 0);
}

static void malformed_quota_is_no_quota(void **state)
{
    (void)state;
    uint64_t group = 77;
    static const char *const texts[] = {
        "", "\n", "max\n", "100000\n", "-5 100000\n", "0 100000\n", "100000 0\n", "many 100000\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        put_cgroup_file("a", "cpu.max", texts[i]);
        assert_float_equal(quota("0::/a\n", &group), 0, 0);
    }
    static const char *const memberships[] = {"", "\n", "0\n", "0:\n", "::\n", "1:cpu:\n"};
    for (size_t i = 0; i < sizeof memberships / sizeof memberships[0]; i++)
        assert_float_equal(quota(memberships[i], &group), 0, 0);
    double cpus = 3;
    assert_false(dpt_cgroup_quota("/nowhere/cgroup", root, &cpus, &group));
    assert_true(cpus == 3 && group == 77);
}

#define WITH_ROOT(test) cmocka_unit_test_setup_teardown(test, setup_cgroup, teardown_cgroup)

int main(void)
{
    const struct CMUnitTest tests[] = {WITH_ROOT(version_2), WITH_ROOT(roots), WITH_ROOT(version_1),
                                       WITH_ROOT(malformed_quota_is_no_quota)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
