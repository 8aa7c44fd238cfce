/* Facts of a machine from a folder with the files of /proc and /sys, and their judgement. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cpu/kernels.h"
#include "tests/worker/doctor/fake_sysfs.h"
#include "worker/doctor/machine.h"

#include <stdio.h>
#include <string.h>

static struct dpt_findings findings;

static const struct dpt_machine good = {.cpu = "CPU",
                                        .isa = "avx2",
                                        .cores = 8,
                                        .cores_online = 8,
                                        .numa_nodes = 1,
                                        .clock = "tsc",
                                        .memory = INT64_C(64) << 30,
                                        .available = INT64_C(60) << 30,
                                        .shm = INT64_C(32) << 30,
                                        .shm_free = INT64_C(32) << 30,
                                        .files = 1 << 20,
                                        .files_hard = 1 << 20,
                                        .locked = INT64_MAX,
                                        .send_buffer = 16 << 20,
                                        .receive_buffer = 16 << 20};
static const struct dpt_machine_devices rich = {.gpus = 8, .rdma = 8, .fastest_mbit = 100000};
static const struct dpt_machine_devices plain = {.fastest_mbit = -1};

/* Judges, and returns the only warning; fails if their number is not 1. */
static const struct dpt_finding *only_warning(const struct dpt_machine *machine,
                                              const struct dpt_machine_devices *devices)
{
    memset(&findings, 0, sizeof findings);
    dpt_machine_judge(machine, devices, &findings);
    assert_int_equal(findings.count[DPT_FINDING_WARN], 1);
    assert_int_equal(findings.count[DPT_FINDING_FAIL], 0);
    for (int i = 0; i < findings.n; i++)
        if (findings.item[i].level == DPT_FINDING_WARN)
            return &findings.item[i];
    return NULL;
}

static void good_machine_has_no_warning(void **state)
{
    (void)state;
    memset(&findings, 0, sizeof findings);
    dpt_machine_judge(&good, &rich, &findings);
    assert_int_equal(findings.count[DPT_FINDING_WARN], 0);
}

static void each_fault_is_one_warning_with_a_remedy(void **state)
{
    (void)state;
    struct dpt_machine m = good;
    (void)snprintf(m.isa, sizeof m.isa, "plain");
    assert_non_null(strstr(only_warning(&m, &rich)->remedy, "AVX2"));
    m = good;
    (void)snprintf(m.governor, sizeof m.governor, "powersave");
    assert_non_null(strstr(only_warning(&m, &rich)->remedy, "performance"));
    m = good;
    (void)snprintf(m.clock, sizeof m.clock, "hpet");
    assert_non_null(strstr(only_warning(&m, &rich)->remedy, "tsc"));
    m = good;
    m.files = 1024;
    assert_non_null(strstr(only_warning(&m, &rich)->remedy, "ulimit -n 4096"));
}

static void shared_memory_matters_to_gpus_only(void **state)
{
    (void)state;
    struct dpt_machine m = good;
    m.shm = INT64_C(64) << 20; /* Docker's default */
    assert_non_null(strstr(only_warning(&m, &rich)->remedy, "--shm-size"));
    memset(&findings, 0, sizeof findings);
    dpt_machine_judge(&m, &plain, &findings);
    assert_int_equal(findings.count[DPT_FINDING_WARN], 0);
}

static void locked_memory_matters_to_rdma_only(void **state)
{
    (void)state;
    struct dpt_machine m = good;
    m.locked = 8 << 20;
    assert_non_null(strstr(only_warning(&m, &rich)->remedy, "ulimit -l unlimited"));
    memset(&findings, 0, sizeof findings);
    dpt_machine_judge(&m, &plain, &findings);
    assert_int_equal(findings.count[DPT_FINDING_WARN], 0);
}

static void small_buffers_matter_to_fast_interfaces_only(void **state)
{
    (void)state;
    struct dpt_machine m = good;
    m.receive_buffer = 1 << 20;
    assert_non_null(strstr(only_warning(&m, &rich)->remedy, "tcp_rmem"));
    memset(&findings, 0, sizeof findings);
    dpt_machine_judge(&m, &plain, &findings);
    assert_int_equal(findings.count[DPT_FINDING_WARN], 0);
}

static void facts_come_from_the_files(void **state)
{
    (void)state;
    struct fake_sysfs root;
    struct dpt_machine m;
    fake_sysfs_make(&root);
    fake_sysfs_write(&root, "proc/cpuinfo",
                     "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx2 fma f16c "
                     "avx512f avx512vl avx512dq avx512bw");
    fake_sysfs_write(&root, "proc/meminfo",
                     "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:    8192 kB");
    fake_sysfs_write(&root, "proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304");
    fake_sysfs_write(&root, "proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456");
    fake_sysfs_write(&root, "sys/devices/system/clocksource/clocksource0/current_clocksource",
                     "acpi_pm");
    dpt_machine_read(root.root, &m);
    assert_string_equal(m.cpu, "Some CPU @ 2 GHz");
    assert_string_equal(m.isa, "avx512");
    assert_string_equal(m.clock, "acpi_pm");
    assert_string_equal(m.governor, "");
    assert_int_equal(m.memory, 16 << 20);
    assert_int_equal(m.available, 8 << 20);
    assert_int_equal(m.shm, -1);
    /* Those of this process say nothing about the machine of the files. */
    assert_int_equal(m.cores, 0);
    assert_int_equal(m.files, -1);
    assert_int_equal(m.locked, -1);
    assert_int_equal(m.send_buffer, 4194304);
    assert_int_equal(m.receive_buffer, 6291456);
    fake_sysfs_remove(&root);
}

/* An empty copy of another machine's files: nothing is known, and nothing of this machine is told.
 */
static void absent_files_give_no_judgement(void **state)
{
    (void)state;
    struct fake_sysfs root;
    struct dpt_machine m;
    fake_sysfs_make(&root);
    dpt_machine_read(root.root, &m);
    fake_sysfs_remove(&root);
    memset(&findings, 0, sizeof findings);
    dpt_machine_judge(&m, &plain, &findings);
    assert_int_equal(findings.count[DPT_FINDING_WARN], 0);
    for (int i = 0; i < findings.n; i++) {
        assert_int_not_equal(strncmp(findings.item[i].subject, "ulimit", 6), 0);
        assert_null(strstr(findings.item[i].text, "MiB"));
        assert_null(strstr(findings.item[i].text, "GiB"));
        assert_null(strstr(findings.item[i].text, "cores"));
    }
}

static void instructions_are_whole_words(void **state)
{
    (void)state;
    assert_string_equal(dpt_machine_isa("avx2 fma f16c"), "avx2");
    assert_string_equal(dpt_machine_isa("avx2 fma"), "plain");
    assert_string_equal(dpt_machine_isa("xavx2 avx22 fma f16c"), "plain");
    assert_string_equal(dpt_machine_isa("avx2 fma f16c avx512f avx512vl avx512dq"), "avx2");
    assert_string_equal(dpt_machine_isa(""), "plain");
}

/* The kernels decide by CPUID, this program by /proc/cpuinfo. */
static void instructions_are_those_of_the_kernels(void **state)
{
    (void)state;
    struct dpt_machine m;
    int n = 0;
    while (dpt_cpu_kernels_at(n))
        n++;
    dpt_machine_read("", &m);
    assert_string_equal(m.isa, dpt_cpu_isa_name((enum dpt_cpu_isa)(n - 1)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_machine_has_no_warning),
        cmocka_unit_test(each_fault_is_one_warning_with_a_remedy),
        cmocka_unit_test(shared_memory_matters_to_gpus_only),
        cmocka_unit_test(locked_memory_matters_to_rdma_only),
        cmocka_unit_test(small_buffers_matter_to_fast_interfaces_only),
        cmocka_unit_test(facts_come_from_the_files),
        cmocka_unit_test(absent_files_give_no_judgement),
        cmocka_unit_test(instructions_are_whole_words),
        cmocka_unit_test(instructions_are_those_of_the_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
