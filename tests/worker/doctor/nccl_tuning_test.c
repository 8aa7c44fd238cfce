/* NCCL's choices by size and its table of times. The lines are written by hand in the forms of the
 * format strings of NCCL 2.18 to 2.30. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/doctor/nccl_read.h"
#include "worker/doctor/report.h"

#include <stdlib.h>
#include <string.h>

static struct dpt_nccl_log log_;

static void add_lines(const char *const *lines, size_t n)
{
    memset(&log_, 0, sizeof log_);
    for (size_t i = 0; i < n; i++)
        dpt_nccl_log_add(&log_, lines[i]);
    dpt_nccl_log_end(&log_);
}
#define ADD_LINES(lines) add_lines(lines, sizeof(lines) / sizeof *(lines))

#define H "a:100:110 [0] NCCL INFO "
#define START                                                                                      \
    "a:100:110 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 4 cudaDev 0 - Init START"
#define PROTOCOLS                                                                                  \
    H "  Protocol    |             LL |          LL128 |         Simple |             LL |       " \
      "   "                                                                                        \
      "LL128 |         Simple |             LL |          LL128 |         Simple |"
#define NO_PAIRS "     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |"
#define BLOCK_1                                                                                    \
    H "  Algorithm   |                            Tree                  |                        " \
      "    "                                                                                       \
      "Ring                  |                   CollNetDirect                  |"
#define ROW(name, tree, ring) H name " |" tree ring NO_PAIRS
#define ALL_REDUCE_1                                                                               \
    ROW("    AllReduce", "     8.0/   2.0 |    16.0/   6.0 |    60.0/   5.0 |",                    \
        "     6.6/   4.0 |    18.0/   8.0 |    50.0/  10.0 |")

/* Two blocks of three algorithms, and from 2.23 a third with PAT, whose line of protocols has nine
 * names all the same. */
static const char *const table_lines[] = {
    START,
    BLOCK_1,
    PROTOCOLS,
    H " Max NThreads |            512 |            640 |            512 |            512 |         "
      "   "
      "640 |            512 |              0 |              0 |            640 |",
    ROW("    Broadcast", NO_PAIRS, "     5.0/   4.0 |    15.0/   8.0 |    40.0/  10.0 |"),
    ROW("       Reduce", NO_PAIRS, "     5.5/   4.0 |    15.5/   8.0 |    41.0/  10.0 |"),
    ROW("    AllGather", NO_PAIRS, "     6.0/   4.0 |    16.0/   8.0 |    42.0/  10.0 |"),
    ROW("ReduceScatter", NO_PAIRS, "     6.5/   4.0 |    17.0/   8.0 |    43.0/  10.0 |"),
    ALL_REDUCE_1,
    H
    "  Algorithm   |                    CollNetChain                  |                            "
    "NVLS                  |                        NVLSTree                  |",
    PROTOCOLS,
    H "    AllReduce |" NO_PAIRS "     0.0/   0.0 |     0.0/   0.0 |    25.0/  90.5 |" NO_PAIRS,
    H "  Algorithm   |                             PAT                  |",
    PROTOCOLS,
    H "    AllGather |     0.0/   0.0 |     0.0/   0.0 |    20.0/   7.0 |",
    "a:101:111 [1] NCCL INFO threadThresholds 8/8/64 | 32/8/64 | 512 | 512",
};

static void add_table(const char *const *lines, size_t n)
{
    add_lines(table_lines, sizeof table_lines / sizeof *table_lines);
    for (size_t i = 0; i < n; i++)
        dpt_nccl_log_add(&log_, lines[i]);
    dpt_nccl_log_end(&log_);
}
#define ADD_TABLE_AND(lines) add_table(lines, sizeof(lines) / sizeof *(lines))

static const struct dpt_nccl_choice *choice_at(int i)
{
    assert_true(i < log_.tuning.n_choices);
    return &log_.tuning.choice[i];
}

static void assert_choice(int i, const char *collective, uint64_t bytes, const char *algorithm,
                          const char *protocol)
{
    const struct dpt_nccl_choice *choice = choice_at(i);
    assert_string_equal(choice->collective, collective);
    assert_int_equal(choice->bytes, bytes);
    assert_true(choice->algorithm >= 0 && choice->protocol >= 0);
    assert_string_equal(dpt_nccl_algorithm_name(choice->algorithm), algorithm);
    assert_string_equal(dpt_nccl_protocol_name(choice->protocol), protocol);
}

static void assert_why(int i, double us, const char *why)
{
    char text[DPT_NCCL_WHY_BYTES];
    dpt_nccl_choice_why(&log_.tuning, choice_at(i), text);
    assert_string_equal(text, why);
    assert_float_equal(dpt_nccl_choice_us(&log_.tuning, choice_at(i)), us, 0.05);
}

static void table_of_times_is_read(void **state)
{
    (void)state;
    ADD_LINES(table_lines);
    assert_int_equal(log_.tuning.n_tables, 1);
    const struct dpt_nccl_table *table = &log_.tuning.table[0];
    assert_int_equal(table->ranks, 4);
    for (int a = 0; a < DPT_NCCL_ALGORITHMS; a++)
        assert_true(table->has[a]);
    assert_float_equal(table->cell[4][0][1].latency_us, 16.0, 1e-6);
    assert_float_equal(table->cell[4][0][1].gb_per_s, 6.0, 1e-6);
    assert_float_equal(table->cell[4][1][0].latency_us, 6.6, 1e-5);
    assert_float_equal(table->cell[4][4][2].gb_per_s, 90.5, 1e-5);
    assert_float_equal(table->cell[2][6][2].latency_us, 20.0, 1e-6);
    assert_float_equal(table->cell[0][1][2].latency_us, 40.0, 1e-6);
    assert_float_equal(table->cell[0][0][2].gb_per_s, 0.0, 1e-9);
    assert_int_equal(log_.tuning.n_owners, 1); /* rank 1 writes no table */
    assert_int_equal(log_.tuning.n_choices, 0);
}

/* NCCL 2.20 to 2.22, whose lines name no collective. */
static void choices_with_a_time_are_read(void **state)
{
    (void)state;
    static const char *const lines[] = {
        H "1048576 Bytes -> Algo 1 proto 2 time 154.857620",
        H "64 Bytes -> Algo 0 proto 0 time 8.032000",
        H "1048576 Bytes -> Algo 1 proto 2 time 154.857620",
        H "128 Bytes -> Algo 1 proto 0 time 3600000000.000000",
    };
    ADD_TABLE_AND(lines);
    assert_int_equal(log_.tuning.n_choices, 3);
    assert_choice(0, "", 64, "Tree", "LL");
    assert_why(0, 8.032, "least predicted time");
    assert_choice(1, "", 128, "Ring", "LL");
    assert_why(1, -1, "nothing that is enabled fits: NCCL's fallback");
    assert_choice(2, "", 1048576, "Ring", "Simple");
    assert_why(2, 154.858, "least predicted time");
    assert_int_equal(choice_at(2)->count, 2);
    assert_int_equal(choice_at(2)->channels, 0);
}

/* NCCL 2.23: the size is of all ranks. */
static void choices_with_a_collective_are_read(void **state)
{
    (void)state;
    static const char *const lines[] = {
        H "AllGather: 80000 Bytes -> Algo 6 proto 2 time 31.400000",
        H "AllReduce: 4096 Bytes -> Algo 1 proto 0 time 7.624000",
    };
    ADD_TABLE_AND(lines);
    assert_int_equal(log_.tuning.n_choices, 2);
    assert_choice(0, "AllGather", 80000, "PAT", "Simple");
    assert_why(0, 31.4,
               "by the table Ring LL takes 26.0 us, this 31.4 us: for reasons that the log lacks");
    assert_choice(1, "AllReduce", 4096, "Ring", "LL");
    assert_why(1, 7.624, "least predicted time; next Tree LL 10.0 us");
}

/* NCCL 2.24 to 2.30: names, channels, and the size that one rank gives. */
static void choices_with_channels_are_explained_by_the_table(void **state)
{
    (void)state;
    static const char *const lines[] = {
        H "AllReduce: 1000000 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}",
        H "AllReduce: 8000 Bytes -> Algo TREE proto LL channel{Lo..Hi}={1..1}",
        H "AllGather: 100000 Bytes -> Algo PAT proto SIMPLE channel{Lo..Hi}={0..3}",
        H "ReduceScatter: 100 Bytes -> Algo COLLNET_CHAIN proto LL128 channel{Lo..Hi}={0..0}",
    };
    ADD_TABLE_AND(lines);
    assert_int_equal(log_.tuning.n_choices, 4);
    assert_choice(0, "AllGather", 100000, "PAT", "Simple"); /* 400,000 of 4 ranks */
    assert_why(
        0, 77.1,
        "by the table Ring LL128 takes 66.0 us, this 77.1 us: for reasons that the log lacks");
    assert_int_equal(choice_at(0)->channels, 4);
    assert_choice(1, "AllReduce", 8000, "Tree", "LL");
    assert_why(1, 12.0,
               "by the table Ring LL takes 8.6 us, this 12.0 us: for reasons that the log lacks");
    assert_int_equal(choice_at(1)->channels, 1);
    assert_choice(2, "AllReduce", 1000000, "NVLS", "Simple");
    assert_why(2, 36.0, "least predicted time; next Ring LL128 143.0 us");
    assert_int_equal(choice_at(2)->channels, 16);
    assert_choice(3, "ReduceScatter", 100, "CollNetChain", "LL128");
    assert_why(3, -1, "the table of the log does not enable it");
}

/* NCCL 2.27 and newer: kernels for registered windows. 2.28 has nWorks. 2.29 has the copy engine.
 */
static void kernels_of_registered_windows_are_read(void **state)
{
    (void)state;
    static const char *const lines[] = {
        H "AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL_R nchannels 8 nthreads 512",
        H "AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL_R nchannels 8 nthreads 512 "
          "nWorks 1",
        H "AllGather [Copy Engine]: 64 Bytes -> cudaMemcpy; CE synchronization with NVLS",
        H "AlltoAll [Hierarchical CE]: 32 Bytes -> RMA proxy + CE",
    };
    ADD_TABLE_AND(lines);
    assert_int_equal(log_.tuning.n_choices, 3);
    assert_string_equal(choice_at(0)->method, "Copy Engine");
    assert_string_equal(choice_at(1)->method, "AllReduce_AGxLL_R");
    assert_int_equal(choice_at(1)->channels, 8);
    assert_int_equal(choice_at(1)->count, 2);
    assert_why(1, -1, "the buffers are registered; the table is not asked");
    assert_string_equal(choice_at(2)->method, "Hierarchical CE");
    assert_string_equal(choice_at(2)->collective, "AlltoAll");
}

static void settings_of_the_environment_are_the_reason(void **state)
{
    (void)state;
    static const char *const lines[] = {
        START,
        H "NCCL_PROTO set by environment to ^LL128",
        H "NCCL_ALGO set by environment to Ring",
        BLOCK_1,
        PROTOCOLS,
        ROW("    AllReduce", NO_PAIRS, "     6.6/   4.0 |     0.0/   0.0 |     0.0/   0.0 |"),
        H "AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}",
        H "TUNER/Plugin: Using internal tuner plugin.",
    };
    ADD_LINES(lines);
    assert_why(0, 7.6,
               "NCCL_ALGO=Ring, NCCL_PROTO=^LL128 set by the environment; the only one that is "
               "enabled");
    assert_string_equal(log_.tuning.tuner, "");
    dpt_nccl_log_add(&log_, H "TUNER/Plugin: Using aws-ofi (v3)");
    assert_string_equal(log_.tuning.tuner, "aws-ofi (v3)");
}

/* Each process has tables of its own; a second table of it replaces the first. */
static void tables_belong_to_their_process(void **state)
{
    (void)state;
    static const char *const lines[] = {
        H "AllReduce: 8000 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
        "[2026-01-01 12:00:00] b:7:9 [0] NCCL INFO AllReduce: 8000 Bytes -> Algo RING proto LL "
        "channel{Lo..Hi}={0..0}",
        "[2026-01-01 12:00:00] b:7:9 [0] NCCL INFO AllGather: 8000 Bytes -> Algo RING proto LL "
        "channel{Lo..Hi}={0..0}",
        "a:100:110 [0] NCCL INFO comm 0x2 rank 0 nranks 2 cudaDev 0 - Init START",
        BLOCK_1,
        PROTOCOLS,
        ROW("    AllReduce", NO_PAIRS, "     3.0/   4.0 |     0.0/   0.0 |     0.0/   0.0 |"),
        "[2026-01-01 12:00:00] a:100:2150 [0] NCCL INFO AllReduce: 8000 Bytes -> Algo RING proto "
        "LL "
        "channel{Lo..Hi}={0..0}",
    };
    ADD_TABLE_AND(lines);
    assert_int_equal(log_.tuning.n_tables, 2);
    assert_int_equal(log_.tuning.table[1].ranks, 2);
    assert_int_equal(log_.tuning.n_choices, 4);
    assert_why(0, -1, "not known: the log has no table of its communicator");
    assert_why(1, -1, "not known: the log has no table of its communicator");
    assert_why(2, 8.6, "least predicted time; next Tree LL 12.0 us");
    assert_why(3, 5.0, "the only one that is enabled");
}

/* The end of another communicator does not change the ranks, nor does the start of the next one. */
static void ranks_are_those_of_the_start(void **state)
{
    (void)state;
    static const char *const lines[] = {
        START,
        "a:100:110 [0] NCCL INFO comm 0x9 rank 0 nranks 8 cudaDev 0 busId 1 - Destroy COMPLETE",
        BLOCK_1,
        PROTOCOLS,
        ALL_REDUCE_1,
        "a:100:110 [0] NCCL INFO comm 0x2 rank 0 nranks 2 cudaDev 0 - Init START",
    };
    ADD_LINES(lines);
    assert_int_equal(log_.tuning.n_tables, 1);
    assert_int_equal(log_.tuning.table[0].ranks, 4);
}

/* Without INIT the log has no number of ranks, which the size of an all-gather needs. */
static void unknown_ranks_give_no_prediction(void **state)
{
    (void)state;
    static const char *const lines[] = {
        BLOCK_1,
        PROTOCOLS,
        ROW("    AllGather", NO_PAIRS, "     6.0/   4.0 |    16.0/   8.0 |    42.0/  10.0 |"),
        ALL_REDUCE_1,
        H "AllGather: 4 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
        H "AllReduce: 4 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
    };
    ADD_LINES(lines);
    assert_why(0, -1, "not known: the log has no line with its number of ranks");
    assert_why(1, 6.6, "least predicted time; next Tree LL 8.0 us");
}

static void damaged_choices_are_passed_over(void **state)
{
    (void)state;
    static const char *const lines[] = {
        H " Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}",
        H "AllReduce: Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}",
        H "AllReduce: 99999999999999999999 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}",
        H "AllReduce: 8 Bytes -> ",
        H "AllReduce: 8 Bytes -> Algo RI",
        H "AllReduce: 8 Bytes -> Algo SPIRAL proto LL channel{Lo..Hi}={0..3}",
        H "AllReduce: 8 Bytes -> Algo RING proto L channel{Lo..Hi}={0..3}",
        H "AllReduce: 8 Bytes -> Algo RING proto LL",
        H "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3",
        H "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={3..0}",
        H "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}a:101:111 [1] NCCL INFO",
        H "AllReduce: 8 Bytes -> Algo 1 proto 2 time 154.8",
        H "AllReduce: 8 Bytes -> Algo 9 proto 2 time 154.857620",
        H "AllReduce: 8 Bytes -> Algo 1 proto 2 time nan",
        H "AllReduce: 8 Bytes -> Algo 1 proto 2 time -1.000000",
        H "AllReduce [Symmetric: 8 Bytes -> Kernel K nchannels 1 nthreads 5",
        H "AllReduce [Symmetric]: 8 Bytes -> Kernel K nchannels 1",
        H "AllReduce [Other]: 8 Bytes -> Kernel K nchannels 1 nthreads 5",
        H "All\tReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}",
    };
    ADD_TABLE_AND(lines);
    assert_int_equal(log_.tuning.n_choices, 0);
    assert_int_equal(log_.tuning.n_tables, 1);
}

/* Rows that are cut, or whose head is missing, give no times of another algorithm. */
static void damaged_tables_are_passed_over(void **state)
{
    (void)state;
    static const char *const lines[] = {
        ALL_REDUCE_1, /* without a head */
        BLOCK_1,
        PROTOCOLS,
        H "    AllReduce |     8.0/   2.0 |    16.0/   6.0 |",
        H "    Broadcast |     x.0/   2.0 |    16.0/   6.0 |     1.0/   1.0 |" NO_PAIRS NO_PAIRS,
        H "       Reduce |     1.0/   nan |    16.0/   6.0 |     1.0/   1.0 |" NO_PAIRS NO_PAIRS,
        H "   AllShuffle |     1.0/   1.0 |    16.0/   6.0 |     1.0/   1.0 |" NO_PAIRS NO_PAIRS,
        ROW("    AllGather", NO_PAIRS, "     6.0/   4.0 |    16.0/   8.0 |    42.0/  10.0 |"),
        /* The head of the second block is missing. */
        H "    AllGather |     9.0/   9.0 |     9.0/   9.0 |     9.0/   9.0 |" NO_PAIRS NO_PAIRS,
        H "ReduceScatter |     9.0/   9.0 |     9.0/   9.0 |     9.0/   9.0 |" NO_PAIRS NO_PAIRS,
        PROTOCOLS,
        ROW("ReduceScatter", NO_PAIRS, "     9.0/   9.0 |     9.0/   9.0 |     9.0/   9.0 |"),
    };
    ADD_LINES(lines);
    assert_int_equal(log_.tuning.n_tables, 1);
    const struct dpt_nccl_table *table = &log_.tuning.table[0];
    for (int c = 0; c < DPT_NCCL_COLLECTIVES; c++)
        for (int a = 0; a < DPT_NCCL_ALGORITHMS; a++)
            for (int p = 0; p < DPT_NCCL_PROTOCOLS; p++)
                assert_int_equal(table->cell[c][a][p].gb_per_s > 0, c == 2 && a == 1);
    static const char *const head[] = {BLOCK_1, PROTOCOLS};
    ADD_LINES(head);
    assert_int_equal(log_.tuning.n_tables, 0);
    static const char *const without_algorithms[] = {
        BLOCK_1,
        PROTOCOLS,
        ROW("    AllGather", NO_PAIRS, "     6.0/   4.0 |    16.0/   8.0 |    42.0/  10.0 |"),
        PROTOCOLS,
        ROW("ReduceScatter", NO_PAIRS, "     9.0/   9.0 |     9.0/   9.0 |     9.0/   9.0 |"),
    };
    ADD_LINES(without_algorithms);
    assert_int_equal(log_.tuning.n_tables, 1);
    assert_true(log_.tuning.table[0].cell[2][1][0].gb_per_s > 0);
    assert_false(log_.tuning.table[0].cell[3][1][0].gb_per_s > 0);
}

static void choices_beyond_the_limit_are_counted(void **state)
{
    (void)state;
    char line[128];
    memset(&log_, 0, sizeof log_);
    for (int i = DPT_NCCL_CHOICES_MAX + 7; i > 0; i--) {
        (void)snprintf(line, sizeof line, H "%d Bytes -> Algo 1 proto 0 time 1.000000", i * 8);
        dpt_nccl_log_add(&log_, line);
    }
    assert_int_equal(log_.tuning.n_choices, DPT_NCCL_CHOICES_MAX);
    assert_int_equal(log_.tuning.choices_left_out, 7);
    for (int i = 1; i < log_.tuning.n_choices; i++)
        assert_true(choice_at(i - 1)->bytes < choice_at(i)->bytes);
}

static void tables_beyond_the_limit_are_counted(void **state)
{
    (void)state;
    char line[128];
    memset(&log_, 0, sizeof log_);
    for (int i = 0; i < DPT_NCCL_OWNERS_MAX + 7; i++) {
        const int process = i < DPT_NCCL_OWNERS_MAX / 2 ? 0 : i; /* one writes many */
        (void)snprintf(line, sizeof line, "a:%d:1 [0] NCCL INFO   Algorithm   | Ring |", process);
        dpt_nccl_log_add(&log_, line);
        (void)snprintf(line, sizeof line, "a:%d:1 [0] NCCL INFO   Protocol | LL | LL128 | Simple |",
                       process);
        dpt_nccl_log_add(&log_, line);
        (void)snprintf(line, sizeof line,
                       "a:%d:1 [0] NCCL INFO AllReduce | %d.0/ 1.0 | 0.0/ 0.0 | 0.0/ 0.0 |",
                       process, i);
        dpt_nccl_log_add(&log_, line);
    }
    dpt_nccl_log_end(&log_);
    assert_int_equal(log_.tuning.n_tables, DPT_NCCL_TABLES_MAX);
    assert_int_equal(log_.tuning.tables_left_out, DPT_NCCL_OWNERS_MAX + 7 - DPT_NCCL_TABLES_MAX);
    assert_true(log_.tuning.n_owners <= DPT_NCCL_OWNERS_MAX);
}

/* The page and the JSON have the choices and the table. */
static void page_and_json_have_the_choices(void **state)
{
    (void)state;
    static const char *const lines[] = {
        H "AllReduce: 8000 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}",
        H "AllGather [Copy Engine]: 64 Bytes -> cudaMemcpy",
    };
    ADD_TABLE_AND(lines);
    char *page = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&page, &bytes);
    assert_non_null(out);
    dpt_report_print_nccl(&log_, out);
    assert_int_equal(fclose(out), 0);
    assert_non_null(strstr(page,
                           "  AllReduce             8000  Ring LL                     2       1 "
                           "         8.6  least predicted time; next Tree LL 12.0 us\n"));
    assert_non_null(strstr(page,
                           "  AllGather               64  Copy Engine                 -       1 "
                           "           -  the buffers are registered"));
    assert_non_null(strstr(page, "bandwidth in GB/s, 4 ranks\n"));
    assert_non_null(strstr(page,
                           "  NVLS Simple                         -                -          "
                           "      -                -     25.0/   90.5\n"));
    assert_null(strstr(page, "CollNetDirect"));
    free(page);
    json_t *whole = dpt_report_json_nccl(&log_);
    json_t *json = json_object_get(whole, "tuning");
    json_t *choice = json_array_get(json_object_get(json, "choices"), 1);
    assert_string_equal(json_string_value(json_object_get(choice, "algorithm")), "Ring");
    assert_string_equal(json_string_value(json_object_get(choice, "protocol")), "LL");
    assert_int_equal(json_integer_value(json_object_get(choice, "bytes")), 8000);
    assert_int_equal(json_integer_value(json_object_get(choice, "channels")), 2);
    assert_float_equal(json_real_value(json_object_get(choice, "predicted_us")), 8.6, 0.01);
    json_t *table = json_array_get(json_object_get(json, "tables"), 0);
    assert_int_equal(json_integer_value(json_object_get(table, "ranks")), 4);
    assert_int_equal(json_array_size(json_object_get(table, "times")), 20);
    json_decref(whole);
}

/* A log without the lines has a remedy. */
static void missing_lines_have_a_remedy(void **state)
{
    (void)state;
    static struct dpt_findings findings;
    static const char *const lines[] = {H "Using network Socket"};
    memset(&findings, 0, sizeof findings);
    ADD_LINES(lines);
    dpt_nccl_log_judge(&log_, &findings);
    assert_non_null(strstr(findings.item[findings.n - 1].remedy, "NCCL_DEBUG_SUBSYS=INIT"));
    static const char *const choices[] = {H "64 Bytes -> Algo 0 proto 0 time 8.032000"};
    memset(&findings, 0, sizeof findings);
    ADD_LINES(choices);
    dpt_nccl_log_judge(&log_, &findings);
    for (int i = 0; i < findings.n; i++)
        assert_null(strstr(findings.item[i].remedy, "NCCL_DEBUG_SUBSYS=INIT"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_of_times_is_read),
        cmocka_unit_test(choices_with_a_time_are_read),
        cmocka_unit_test(choices_with_a_collective_are_read),
        cmocka_unit_test(choices_with_channels_are_explained_by_the_table),
        cmocka_unit_test(kernels_of_registered_windows_are_read),
        cmocka_unit_test(settings_of_the_environment_are_the_reason),
        cmocka_unit_test(tables_belong_to_their_process),
        cmocka_unit_test(ranks_are_those_of_the_start),
        cmocka_unit_test(unknown_ranks_give_no_prediction),
        cmocka_unit_test(damaged_choices_are_passed_over),
        cmocka_unit_test(damaged_tables_are_passed_over),
        cmocka_unit_test(choices_beyond_the_limit_are_counted),
        cmocka_unit_test(tables_beyond_the_limit_are_counted),
        cmocka_unit_test(page_and_json_have_the_choices),
        cmocka_unit_test(missing_lines_have_a_remedy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
