/* GPUs, interfaces and RDMA devices from a folder with the files of sysfs, and from a double of
 * NVML. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/worker/doctor/fake_sysfs.h"
#include "worker/doctor/machine_page.h"

#include <stdio.h>
#include <string.h>

#define GPU_A "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:19:00.0"
#define GPU_B "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:01.0/0000:1a:00.0"
#define GPU_C "pci0000:97/0000:97:01.0/0000:98:00.0"
#define NIC   "pci0000:97/0000:97:03.0/0000:9b:00.0"

static struct fake_sysfs sysfs;
static struct dpt_gpus gpus;
static struct dpt_nics nics;
static struct dpt_findings findings;
static struct dpt_err err;

static int make_machine(void **state)
{
    (void)state;
    memset(&findings, 0, sizeof findings);
    fake_sysfs_make(&sysfs);
    fake_sysfs_pci(&sysfs, GPU_A, "0x10de", "0x030200", "0");
    fake_sysfs_pci(&sysfs, GPU_B, "0x10de", "0x030200", "0");
    fake_sysfs_pci(&sysfs, GPU_C, "0x10de", "0x030000", "1");
    fake_sysfs_pci(&sysfs, "pci0000:97/0000:97:05.0", "0x10de", "0x040300", "1"); /* its sound */
    fake_sysfs_pci(&sysfs, "pci0000:97/0000:97:06.0", "0x8086", "0x030000", "1");
    fake_sysfs_pci(&sysfs, NIC, "0x15b3", "0x020700", "1");
    fake_sysfs_write(&sysfs, "sys/devices/" NIC "/net/eth7/operstate", "up");
    fake_sysfs_write(&sysfs, "sys/devices/" NIC "/net/eth7/speed", "100000");
    fake_sysfs_write(&sysfs, "sys/devices/" NIC "/net/eth7/mtu", "1500");
    fake_sysfs_link(&sysfs, "sys/devices/" NIC "/net/eth7/device", "sys/devices/" NIC);
    fake_sysfs_link(&sysfs, "sys/class/net/eth7", "sys/devices/" NIC "/net/eth7");
    fake_sysfs_write(&sysfs, "sys/class/net/lo/operstate", "unknown");
    fake_sysfs_write(&sysfs, "sys/class/net/lo/mtu", "65536");
    fake_sysfs_write(&sysfs, "sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
    fake_sysfs_write(&sysfs, "sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)");
    fake_sysfs_write(&sysfs, "sys/class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet");
    fake_sysfs_link(&sysfs, "sys/class/infiniband/mlx5_0/device", "sys/devices/" NIC);
    return 0;
}

static int remove_machine(void **state)
{
    (void)state;
    fake_sysfs_remove(&sysfs);
    return 0;
}

/* The line with this subject; fails the test if there is none. */
static const struct dpt_finding *line_of(const char *subject)
{
    for (int i = 0; i < findings.n; i++)
        if (strcmp(findings.item[i].subject, subject) == 0)
            return &findings.item[i];
    fail_msg("no line about %s", subject);
    return NULL;
}

/* ---- the double of NVML ---- */

/* Four GPUs, of which the last is none of sysfs. GPU 0 and 1 are connected by `direct` NVLinks;
 * each of the three has `switched` links to switches. */
struct double_nvml {
    int direct, switched;
    int count_error, bus_error;
    int p2p; /* status between GPU 0 and 2 */
};

static int double_count(void *ctx, unsigned *ret)
{
    *ret = 4;
    return ((struct double_nvml *)ctx)->count_error;
}

static int double_bus(void *ctx, unsigned gpu, char ret[DPT_NVML_BUS_BYTES])
{
    static const char *const buses[] = {"00000000:19:00.0", "00000000:1A:00.0", "00000000:98:00.0",
                                        "00000001:19:00.0"};
    (void)snprintf(ret, DPT_NVML_BUS_BYTES, "%s", buses[gpu]);
    return ((struct double_nvml *)ctx)->bus_error;
}

static int double_name(void *ctx, unsigned gpu, char ret[DPT_NVML_NAME_BYTES])
{
    (void)ctx;
    (void)snprintf(ret, DPT_NVML_NAME_BYTES, "NVIDIA Double %u", gpu);
    return 0;
}

static int double_link_up(void *ctx, unsigned gpu, unsigned link, bool *ret)
{
    const struct double_nvml *nvml = ctx;
    const unsigned direct = gpu < 2 ? (unsigned)nvml->direct : 0;
    *ret = link < direct + (unsigned)nvml->switched;
    return gpu == 3 ? 3 : 0; /* NOT_SUPPORTED */
}

static int double_link_bus(void *ctx, unsigned gpu, unsigned link, char ret[DPT_NVML_BUS_BYTES])
{
    const struct double_nvml *nvml = ctx;
    if (gpu < 2 && link < (unsigned)nvml->direct)
        return double_bus(ctx, 1 - gpu, ret);
    (void)snprintf(ret, DPT_NVML_BUS_BYTES, "00000000:C0:00.0");
    return 0;
}

static int double_p2p(void *ctx, unsigned gpu, unsigned other, int *ret)
{
    const struct double_nvml *nvml = ctx;
    *ret = gpu + other == 2 && gpu != other ? nvml->p2p : 0;
    return 0;
}

static struct dpt_nvml_calls calls_of(struct double_nvml *nvml)
{
    return (struct dpt_nvml_calls){.count = double_count,
                                   .bus = double_bus,
                                   .name = double_name,
                                   .link_up = double_link_up,
                                   .link_bus = double_link_bus,
                                   .p2p = double_p2p,
                                   .ctx = nvml};
}

static void expect_link(int a, int b, const char *word)
{
    char text[16];
    dpt_gpus_print_link(&gpus, a, b, text);
    assert_string_equal(text, word);
    dpt_gpus_print_link(&gpus, b, a, text);
    assert_string_equal(text, word);
}

/* ---- the double of CUDA: two of the three GPUs are visible, in another order ---- */

static int cuda_devices;
static bool cuda_peers;

static enum dpt_status double_cuda_count(int *ret, struct dpt_err *e)
{
    *ret = cuda_devices;
    return cuda_devices > 0 ? DPT_OK : dpt_fail(e, DPT_EUNSUPPORTED, "no CUDA in this build");
}

static enum dpt_status double_cuda_bus(int index, char *ret, struct dpt_err *e)
{
    static const char *const buses[] = {"0000:98:00.0", "0000:19:00.0", "0000:77:00.0"};
    (void)e;
    (void)snprintf(ret, DPT_PCI_BUS_BYTES, "%s", buses[index]);
    return DPT_OK;
}

static enum dpt_status double_cuda_peer(int from, int to, bool *ret, struct dpt_err *e)
{
    if (from > 1 || to > 1)
        return dpt_fail(e, DPT_EDEVICE, "a GPU that is not in sysfs is not asked for");
    *ret = cuda_peers;
    return DPT_OK;
}

static const struct dpt_cuda_calls double_cuda = {
    .count = double_cuda_count, .bus = double_cuda_bus, .peer = double_cuda_peer};

/* ---- the tests ---- */

static void gpus_are_found_by_vendor_and_class(void **state)
{
    (void)state;
    assert_int_equal(dpt_gpus_read(sysfs.root, &gpus, &err), DPT_OK);
    assert_int_equal(gpus.n, 3);
    assert_string_equal(gpus.gpu[0].pci.bus_id, "0000:19:00.0");
    assert_string_equal(gpus.gpu[2].pci.path, GPU_C);
    assert_int_equal(gpus.gpu[1].pci.numa, 0);
    assert_int_equal(gpus.gpu[2].pci.numa, 1);
    expect_link(0, 1, "PIX");
    expect_link(0, 2, "SYS");
    expect_link(0, 0, "X");
}

static void machine_without_pci_has_no_gpu(void **state)
{
    (void)state;
    fake_sysfs_remove(&sysfs);
    fake_sysfs_make(&sysfs);
    assert_int_equal(dpt_gpus_read(sysfs.root, &gpus, &err), DPT_OK);
    assert_int_equal(dpt_nics_read(sysfs.root, &nics, &err), DPT_OK);
    assert_int_equal(gpus.n + nics.n + nics.n_rdma, 0);
    dpt_gpus_judge(&gpus, "", &findings);
    assert_int_equal(findings.count[DPT_FINDING_WARN], 0);
}

static void nvlinks_between_two_gpus_are_counted(void **state)
{
    (void)state;
    struct double_nvml nvml = {.direct = 4};
    const struct dpt_nvml_calls calls = calls_of(&nvml);
    assert_int_equal(dpt_gpus_read(sysfs.root, &gpus, &err), DPT_OK);
    assert_int_equal(dpt_gpus_ask(&gpus, &calls, &err), DPT_OK);
    assert_true(gpus.asked);
    assert_string_equal(gpus.gpu[2].name, "NVIDIA Double 2");
    expect_link(0, 1, "NV4");
    expect_link(1, 2, "SYS");
}

static void links_to_switches_connect_all(void **state)
{
    (void)state;
    struct double_nvml nvml = {.switched = 18};
    const struct dpt_nvml_calls calls = calls_of(&nvml);
    assert_int_equal(dpt_gpus_read(sysfs.root, &gpus, &err), DPT_OK);
    assert_int_equal(dpt_gpus_ask(&gpus, &calls, &err), DPT_OK);
    expect_link(0, 1, "NV18");
    expect_link(0, 2, "NV18");
}

static void missing_peer_access_is_named_with_its_reason(void **state)
{
    (void)state;
    struct double_nvml nvml = {.p2p = 3};
    const struct dpt_nvml_calls calls = calls_of(&nvml);
    assert_int_equal(dpt_gpus_read(sysfs.root, &gpus, &err), DPT_OK);
    assert_int_equal(dpt_gpus_ask(&gpus, &calls, &err), DPT_OK);
    assert_int_equal(gpus.access[0][1], DPT_PEER_YES);
    assert_int_equal(gpus.access[0][2], DPT_PEER_PATH);
    dpt_gpus_judge(&gpus, "", &findings);
    const struct dpt_finding *line = line_of("peer access");
    assert_int_equal(line->level, DPT_FINDING_WARN);
    assert_non_null(strstr(line->text, "2 of 6 pairs have none; GPU0 to GPU2: no: the path"));
    assert_non_null(strstr(line->remedy, "IOMMU"));
    assert_non_null(strstr(line_of("paths")->text, "2 of 3 pairs"));
}

static void all_pairs_with_access_are_good(void **state)
{
    (void)state;
    struct double_nvml nvml = {.switched = 4};
    const struct dpt_nvml_calls calls = calls_of(&nvml);
    assert_int_equal(dpt_gpus_read(sysfs.root, &gpus, &err), DPT_OK);
    assert_int_equal(dpt_gpus_ask(&gpus, &calls, &err), DPT_OK);
    dpt_gpus_judge(&gpus, "", &findings);
    assert_int_equal(line_of("peer access")->level, DPT_FINDING_OK);
    assert_int_equal(findings.count[DPT_FINDING_WARN], 0);
}

static void cuda_counts_more_than_nvml(void **state)
{
    (void)state;
    struct double_nvml nvml = {.p2p = 0};
    const struct dpt_nvml_calls calls = calls_of(&nvml);
    assert_int_equal(dpt_gpus_read(sysfs.root, &gpus, &err), DPT_OK);
    cuda_devices = 0;
    assert_int_equal(dpt_gpus_ask_cuda(&gpus, &double_cuda, &err), DPT_EUNSUPPORTED);
    assert_int_equal(gpus.access[0][2], DPT_PEER_UNKNOWN);
    cuda_devices = 3;
    cuda_peers = true;
    assert_int_equal(dpt_gpus_ask_cuda(&gpus, &double_cuda, &err), DPT_OK);
    assert_int_equal(gpus.access[0][2], DPT_PEER_YES);
    assert_int_equal(gpus.access[0][1], DPT_PEER_UNKNOWN);
    assert_int_equal(dpt_gpus_ask(&gpus, &calls, &err), DPT_OK);
    cuda_peers = false; /* NVML says yes */
    assert_int_equal(dpt_gpus_ask_cuda(&gpus, &double_cuda, &err), DPT_OK);
    assert_int_equal(gpus.access[0][2], DPT_PEER_NO);
    assert_int_equal(gpus.access[2][0], DPT_PEER_NO);
    assert_int_equal(gpus.access[0][1], DPT_PEER_YES);
    gpus.access[0][2] = DPT_PEER_CHIPSET; /* the reason stays */
    assert_int_equal(dpt_gpus_ask_cuda(&gpus, &double_cuda, &err), DPT_OK);
    assert_int_equal(gpus.access[0][2], DPT_PEER_CHIPSET);
}

static void nvml_that_fails_leaves_pci_paths(void **state)
{
    (void)state;
    struct double_nvml nvml = {.count_error = 1};
    const struct dpt_nvml_calls calls = calls_of(&nvml);
    assert_int_equal(dpt_gpus_read(sysfs.root, &gpus, &err), DPT_OK);
    assert_int_equal(dpt_gpus_ask(&gpus, &calls, &err), DPT_EDEVICE);
    nvml = (struct double_nvml){.bus_error = 15};
    assert_int_equal(dpt_gpus_ask(&gpus, &calls, &err), DPT_EDEVICE);
    assert_non_null(strstr(err.text, "bus id of GPU 0 (error 15)"));
    assert_false(gpus.asked);
    expect_link(0, 1, "PIX");
    dpt_gpus_judge(&gpus, err.text, &findings);
    assert_int_equal(line_of("NVML")->level, DPT_FINDING_WARN);
    assert_int_equal(gpus.access[0][1], DPT_PEER_UNKNOWN);
}

static void interfaces_have_speed_and_numa_node(void **state)
{
    (void)state;
    assert_int_equal(dpt_gpus_read(sysfs.root, &gpus, &err), DPT_OK);
    assert_int_equal(dpt_nics_read(sysfs.root, &nics, &err), DPT_OK);
    assert_int_equal(nics.n, 2);
    const struct dpt_nic *eth = &nics.nic[0], *lo = &nics.nic[1];
    assert_string_equal(eth->name, "eth7");
    assert_true(eth->up && !eth->is_virtual);
    assert_int_equal(eth->mbit, 100000);
    assert_int_equal(eth->pci.numa, 1);
    assert_true(lo->up && lo->is_virtual);
    assert_int_equal(lo->mbit, -1);
    assert_int_equal(lo->pci.numa, -1);
    dpt_nics_judge(&nics, &gpus, &findings);
    assert_non_null(strstr(line_of("eth7")->text, "100.0 Gbit/s (12.50 GB/s), MTU 1500, NUMA"));
    assert_non_null(strstr(line_of("eth7")->remedy, "mtu 9000"));
}

static void rdma_device_names_its_interface_and_nearest_gpu(void **state)
{
    (void)state;
    assert_int_equal(dpt_gpus_read(sysfs.root, &gpus, &err), DPT_OK);
    assert_int_equal(dpt_nics_read(sysfs.root, &nics, &err), DPT_OK);
    assert_int_equal(nics.n_rdma, 1);
    assert_true(nics.rdma[0].active);
    assert_string_equal(nics.rdma[0].net, "eth7");
    dpt_nics_judge(&nics, &gpus, &findings);
    assert_non_null(strstr(line_of("mlx5_0")->text, "RDMA over Ethernet, 100 Gb/sec (4X EDR), 4: "
                                                    "ACTIVE, interface eth7, PHB to GPU2"));
}

static void rdma_port_that_is_down_is_a_warning(void **state)
{
    (void)state;
    fake_sysfs_write(&sysfs, "sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN");
    memset(&gpus, 0, sizeof gpus);
    assert_int_equal(dpt_nics_read(sysfs.root, &nics, &err), DPT_OK);
    dpt_nics_judge(&nics, &gpus, &findings);
    assert_int_equal(line_of("mlx5_0")->level, DPT_FINDING_WARN);
}

static void slow_interface_is_a_warning(void **state)
{
    (void)state;
    fake_sysfs_write(&sysfs, "sys/devices/" NIC "/net/eth7/speed", "100");
    memset(&gpus, 0, sizeof gpus);
    assert_int_equal(dpt_nics_read(sysfs.root, &nics, &err), DPT_OK);
    dpt_nics_judge(&nics, &gpus, &findings);
    assert_int_equal(line_of("eth7")->level, DPT_FINDING_WARN);
    assert_non_null(strstr(line_of("eth7")->remedy, "ethtool eth7"));
}

static void interface_is_found_by_its_address(void **state)
{
    (void)state;
    memset(&nics, 0, sizeof nics);
    nics.n = 2;
    (void)snprintf(nics.nic[0].addresses, sizeof nics.nic[0].addresses, "10.0.0.11, fd00::1");
    (void)snprintf(nics.nic[1].addresses, sizeof nics.nic[1].addresses, "10.0.0.1");
    assert_ptr_equal(dpt_nics_with_address(&nics, "10.0.0.1"), &nics.nic[1]);
    assert_ptr_equal(dpt_nics_with_address(&nics, "fd00::1"), &nics.nic[0]);
    assert_null(dpt_nics_with_address(&nics, "10.0.0.2"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_machine, remove_machine)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(gpus_are_found_by_vendor_and_class),
        TEST(machine_without_pci_has_no_gpu),
        TEST(nvlinks_between_two_gpus_are_counted),
        TEST(links_to_switches_connect_all),
        TEST(missing_peer_access_is_named_with_its_reason),
        TEST(all_pairs_with_access_are_good),
        TEST(cuda_counts_more_than_nvml),
        TEST(nvml_that_fails_leaves_pci_paths),
        TEST(interfaces_have_speed_and_numa_node),
        TEST(rdma_device_names_its_interface_and_nearest_gpu),
        TEST(rdma_port_that_is_down_is_a_warning),
        TEST(slow_interface_is_a_warning),
        TEST(interface_is_found_by_its_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
