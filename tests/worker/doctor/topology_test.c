/* The path between two devices, by their folders in sysfs. The layouts are those of servers with
 * PCIe switches, and of virtual machines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/doctor/topology.h"

#include <stdio.h>

static struct dpt_pci_device device(const char *path, int numa)
{
    struct dpt_pci_device ret = {.numa = numa};
    (void)snprintf(ret.path, sizeof ret.path, "%s", path);
    return ret;
}

static void expect_path(const char *a, int numa_a, const char *b, int numa_b,
                        enum dpt_path_kind expected)
{
    const struct dpt_pci_device x = device(a, numa_a), y = device(b, numa_b);
    assert_string_equal(dpt_topology_word(dpt_topology_between(&x, &y)),
                        dpt_topology_word(expected));
    assert_int_equal(dpt_topology_between(&y, &x), expected);
}

/* Two devices below the downstream ports of one switch. */
static void one_switch_is_pix(void **state)
{
    (void)state;
    expect_path("pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:19:00.0", 0,
                "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:01.0/0000:1a:00.0", 0, DPT_PATH_PIX);
}

/* A switch below another: the way goes through several bridges, not through the host bridge. */
static void two_switches_below_one_port_are_pxb(void **state)
{
    (void)state;
    expect_path("pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0/"
                "0000:1b:00.0",
                0, "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:01.0/0000:1f:00.0", 0,
                DPT_PATH_PXB);
}

static void one_root_complex_is_phb(void **state)
{
    (void)state;
    expect_path("pci0000:16/0000:16:01.0/0000:17:00.0", 0, "pci0000:16/0000:16:02.0/0000:1a:00.0",
                0, DPT_PATH_PHB);
    /* Devices of a virtual machine are below the host bridge itself. */
    expect_path("pci0000:00/0000:00:05.0", -1, "pci0000:00/0000:00:06.0", -1, DPT_PATH_PHB);
}

static void numa_nodes_decide_between_root_complexes(void **state)
{
    (void)state;
    expect_path("pci0000:16/0000:16:01.0/0000:17:00.0", 0, "pci0000:64/0000:64:01.0/0000:65:00.0",
                0, DPT_PATH_NODE);
    expect_path("pci0000:16/0000:16:01.0/0000:17:00.0", 0, "pci0000:97/0000:97:01.0/0000:98:00.0",
                1, DPT_PATH_SYS);
    /* One bus number is the beginning of another. */
    expect_path("pci0000:1/0000:01:00.0", 0, "pci0000:16/0000:16:01.0", 0, DPT_PATH_NODE);
}

static void folders_before_the_host_bridge_do_not_count(void **state)
{
    (void)state;
    expect_path("LNXSYSTM:00/VMBUS:00/0001/pci0001:00/0001:00:00.0", 0,
                "LNXSYSTM:00/VMBUS:00/0002/pci0002:00/0002:00:00.0", 0, DPT_PATH_NODE);
    expect_path("LNXSYSTM:00/pci0001:00/0001:00:00.0", 0, "LNXSYSTM:00/pci0001:00/0001:00:01.0", 0,
                DPT_PATH_PHB);
}

static void devices_outside_of_the_tree_are_unknown(void **state)
{
    (void)state;
    expect_path("virtual/net/veth0", -1, "pci0000:00/0000:00:05.0", -1, DPT_PATH_UNKNOWN);
    expect_path("", -1, "", -1, DPT_PATH_UNKNOWN);
}

static void same_device_is_itself(void **state)
{
    (void)state;
    expect_path("pci0000:00/0000:00:05.0", 0, "pci0000:00/0000:00:05.0", 0, DPT_PATH_SELF);
    assert_string_equal(dpt_topology_word(DPT_PATH_SELF), "X");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_switch_is_pix),
        cmocka_unit_test(two_switches_below_one_port_are_pxb),
        cmocka_unit_test(one_root_complex_is_phb),
        cmocka_unit_test(numa_nodes_decide_between_root_complexes),
        cmocka_unit_test(folders_before_the_host_bridge_do_not_count),
        cmocka_unit_test(devices_outside_of_the_tree_are_unknown),
        cmocka_unit_test(same_device_is_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
