/* The summary of NCCL's log. The lines are written by hand in the forms that NCCL 2.4 to 2.28
 * print. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/tmp.h"
#include "worker/doctor/nccl_read.h"

#include <string.h>

static struct dpt_nccl_log log_;
static struct dpt_findings findings;
static struct dpt_err err;

static void add_lines(const char *const *lines, size_t n)
{
    memset(&log_, 0, sizeof log_);
    memset(&findings, 0, sizeof findings);
    for (size_t i = 0; i < n; i++)
        dpt_nccl_log_add(&log_, lines[i]);
    dpt_nccl_log_judge(&log_, &findings);
}
#define ADD_LINES(lines) add_lines(lines, sizeof(lines) / sizeof *(lines))

static const struct dpt_finding *line_with(const char *part)
{
    for (int i = 0; i < findings.n; i++)
        if (strstr(findings.item[i].text, part))
            return &findings.item[i];
    fail_msg("no line with '%s'", part);
    return NULL;
}

static const char *const two_machines[] = {
    "a:100:100 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
    "a:100:100 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal "
    "implementation",
    "NCCL version 2.19.3+cuda12.2",
    "a:100:110 [0] NCCL INFO NET/IB : No device found.",
    "a:100:110 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>",
    "a:100:110 [0] NCCL INFO Using network Socket",
    "2026-01-01 12:00:00 a step of training, no line of NCCL",
    "a:100:110 [0] NCCL INFO comm 0x1 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1000 commId 0x2 - "
    "Init START",
    "a:100:110 [0] NCCL INFO Channel 00/02 :    0   1   2   3",
    "a:100:110 [0] NCCL INFO Channel 01/02 :    0   1   2   3",
    "a:100:110 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->2",
    "a:100:110 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
    "a:100:110 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/IPC",
    "a:101:111 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/Socket/0",
    "b:200:210 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [receive] via NET/Socket/0",
    "b:200:210 [0] NCCL INFO Channel 00/0 : 2[0] -> 3[1] via SHM/direct/direct",
    "b:200:210 [0] NCCL INFO P2P is disabled between connected GPUs 0 and 1. You can repress this "
    "message with NCCL_IGNORE_DISABLED_P2P=1.",
    "a:100:110 [0] NCCL INFO 2 coll channels, 0 collnet channels, 0 nvls channels, 2 p2p channels, "
    "2 p2p channels per peer",
};

static void transports_rings_and_sizes_are_read(void **state)
{
    (void)state;
    ADD_LINES(two_machines);
    assert_string_equal(log_.version, "2.19.3+cuda12.2");
    assert_string_equal(log_.network, "Socket");
    assert_string_equal(log_.devices, "[0]eth0:10.0.0.1<0>");
    assert_string_equal(log_.bootstrap, "eth0:10.0.0.1<0>");
    assert_int_equal(log_.ranks, 4);
    assert_int_equal(log_.channels, 2);
    assert_int_equal(log_.rings, 2);
    assert_string_equal(log_.ring, "0 1 2 3");
    assert_string_equal(log_.tree, "[0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->2");
    assert_int_equal(log_.n_edges, 3);
    assert_int_equal(log_.edge[0].from, 0);
    assert_int_equal(log_.edge[0].to, 1);
    assert_int_equal(log_.edge[0].channels, 2);
    assert_string_equal(log_.edge[0].via, "P2P/IPC");
    assert_false(log_.edge[0].far);
    assert_string_equal(log_.edge[1].via, "NET/Socket/0"); /* the sender's line alone */
    assert_int_equal(log_.edge[1].channels, 1);
    assert_true(log_.edge[1].far);
    assert_int_equal(dpt_nccl_log_edges(&log_, "SHM"), 1);
}

static void reasons_of_fallbacks_are_explained(void **state)
{
    (void)state;
    ADD_LINES(two_machines);
    assert_int_equal(line_with("1 connection between machines by TCP")->level, DPT_FINDING_WARN);
    assert_int_equal(line_with("1 connection GPU to GPU")->level, DPT_FINDING_OK);
    assert_non_null(strstr(line_with("no InfiniBand or RoCE device")->remedy, "/dev/infiniband"));
    assert_int_equal(line_with("no peer access")->level, DPT_FINDING_WARN);
    assert_int_equal(line_with("no network plugin")->level, DPT_FINDING_INFO);
}

/* NCCL 2.4 to 2.11 print bus ids, and no number of channels behind the channel. */
static void older_lines_are_read(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "h:7:9 [0] NCCL INFO Channel 00 : 0[1a000] -> 1[3d000] via P2P/IPC",
        "h:7:9 [0] NCCL INFO Channel 00 :    0   1",
        "h:7:9 [0] NCCL INFO Channel 01 : 1[3d000] -> 0[1a000] via direct shared memory",
        "h:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.0.0.1<0>",
        "h:7:9 [0] NCCL INFO Channel 00 : 1[3d000] -> 2[1a000] [send] via NET/IB/0/GDRDMA",
    };
    ADD_LINES(lines);
    assert_int_equal(log_.n_edges, 3);
    assert_string_equal(log_.edge[1].via, "direct");
    assert_string_equal(log_.edge[2].via, "NET/IB/0/GDRDMA");
    assert_string_equal(log_.devices, "[0]mlx5_0:1/IB ; OOB eth0:10.0.0.1<0>");
    assert_string_equal(log_.ring, "0 1");
    assert_int_equal(line_with("between machines by RDMA")->level, DPT_FINDING_OK);
}

static void settings_of_the_environment_are_named(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "h:7:9 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.",
        "h:8:9 [1] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.",
        "h:7:9 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth1",
        "h:7:9 [0] NCCL INFO NCCL_ALGO set by environment to Ring",
    };
    ADD_LINES(lines);
    assert_int_equal(log_.n_reasons, 3);
    assert_int_equal(log_.reason[0].count, 2);
    assert_non_null(strstr(line_with("turns peer access off")->remedy, "unset NCCL_P2P_DISABLE"));
    assert_int_equal(line_with("names the interface")->level, DPT_FINDING_INFO);
}

static void unknown_warnings_are_passed_on(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "h:7:9 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer b",
        "h:7:9 [0] NCCL INFO a line that says NCCL WARN inside",
    };
    ADD_LINES(lines);
    assert_int_equal(log_.n_reasons, 1);
    assert_true(log_.reason[0].bad);
    assert_non_null(strstr(log_.reason[0].text, "Connection closed by remote peer b"));
}

/* Lines that are cut or contain something else neither crash nor give a connection. */
static void damaged_lines_give_no_connection(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "h:7:9 [0] NCCL INFO Channel 00/0 : ",
        "h:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> ",
        "h:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via ",
        "h:7:9 [0] NCCL INFO Channel 00/0 : x[0] -> 1[1] via P2P",
        "h:7:9 [0] NCCL INFO Channel 00/0 : 99999999999999999999[0] -> 1[1] via P2P",
        "h:7:9 [0] NCCL INFO Channel  via ",
        "h:7:9 [0] NCCL INFO  coll channels",
        "NCCL INFO ",
        "",
    };
    ADD_LINES(lines);
    assert_int_equal(log_.n_edges, 0);
    assert_int_equal(log_.channels, 0);
    assert_int_equal(log_.n_reasons, 0);
}

static void connections_beyond_the_limit_are_counted(void **state)
{
    (void)state;
    char line[128];
    memset(&log_, 0, sizeof log_);
    for (int i = 0; i < DPT_NCCL_EDGES_MAX + 7; i++) {
        (void)snprintf(line, sizeof line,
                       "h:1:1 [0] NCCL INFO Channel 00/0 : %d[0] -> %d[0] via P2P/CUMEM", i, i + 1);
        dpt_nccl_log_add(&log_, line);
    }
    assert_int_equal(log_.n_edges, DPT_NCCL_EDGES_MAX);
    assert_int_equal(log_.edges_left_out, 7);
}

static void files_are_read_line_by_line(void **state)
{
    (void)state;
    char folder[256], path[300];
    assert_true(test_make_dir(folder, sizeof folder, "nccl"));
    (void)snprintf(path, sizeof path, "%s/log", folder);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    for (int i = 0; i < 10000; i++) /* one line of several buffers */
        assert_true(fputs("0123456789", file) >= 0);
    assert_true(fprintf(file, "NCCL INFO Using network IB\r\n") > 0);
    assert_true(fprintf(file, "h:1:1 [0] NCCL INFO Using network Socket\r\n") > 0);
    assert_true(fprintf(file, "h:1:1 [0] NCCL INFO Trees x") > 0); /* without an end */
    assert_int_equal(fclose(file), 0);
    assert_int_equal(dpt_nccl_log_read(path, &log_, &err), DPT_OK);
    assert_string_equal(log_.network, "Socket");
    assert_string_equal(log_.tree, "x");
    file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fprintf(file, "no line of the library\n") > 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(dpt_nccl_log_read(path, &log_, &err), DPT_ECORRUPT);
    assert_non_null(strstr(err.text, "NCCL_DEBUG=INFO"));
    assert_int_equal(remove(path), 0);
    assert_int_equal(dpt_nccl_log_read(path, &log_, &err), DPT_ENOENT);
    assert_int_equal(dpt_nccl_log_read(folder, &log_, &err), DPT_EIO); /* a folder */
    assert_int_equal(remove(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transports_rings_and_sizes_are_read),
        cmocka_unit_test(reasons_of_fallbacks_are_explained),
        cmocka_unit_test(older_lines_are_read),
        cmocka_unit_test(settings_of_the_environment_are_named),
        cmocka_unit_test(unknown_warnings_are_passed_on),
        cmocka_unit_test(damaged_lines_give_no_connection),
        cmocka_unit_test(connections_beyond_the_limit_are_counted),
        cmocka_unit_test(files_are_read_line_by_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
