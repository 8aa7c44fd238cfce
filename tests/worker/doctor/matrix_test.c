/* The judgement on links between nodes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/doctor/matrix.h"

#include <stdio.h>
#include <string.h>

static struct dpt_matrix m;
static struct dpt_findings findings;

/* `n` nodes, all pairs with 1 GB/s and 100 us. */
static void make_even(int n)
{
    memset(&m, 0, sizeof m);
    memset(&findings, 0, sizeof findings);
    m.n = n;
    for (int a = 0; a < n; a++) {
        (void)snprintf(m.name[a], sizeof m.name[a], "n%d", a);
        for (int b = 0; b < n; b++)
            if (a != b)
                m.pair[a][b] = (struct dpt_pair){.state = DPT_PAIR_MEASURED,
                                                 .bytes_per_s = 1e9,
                                                 .rtt_us = 100,
                                                 .rtt_p99_us = 150};
    }
}

static const struct dpt_finding *line_of(const char *subject)
{
    for (int i = 0; i < findings.n; i++)
        if (strcmp(findings.item[i].subject, subject) == 0)
            return &findings.item[i];
    return NULL;
}

static void even_links_give_no_warning(void **state)
{
    (void)state;
    make_even(4);
    dpt_matrix_judge(&m, &findings);
    assert_int_equal(findings.count[DPT_FINDING_WARN] + findings.count[DPT_FINDING_FAIL], 0);
    assert_non_null(line_of("slowest"));
}

static void slow_pair_is_an_outlier_and_no_slow_node(void **state)
{
    (void)state;
    make_even(4);
    m.pair[1][3].bytes_per_s = 0.5e9;
    m.pair[3][1].bytes_per_s = 0.5e9;
    dpt_matrix_judge(&m, &findings);
    assert_null(line_of("slow node"));
    assert_null(line_of("asymmetry"));
    assert_int_equal(findings.count[DPT_FINDING_WARN], 2);
    assert_non_null(strstr(line_of("outlier")->text, "n1 -> n3: 0.500 GB/s (50 % of the median)"));
    assert_non_null(strstr(line_of("slowest")->text, "n1 -> n3"));
}

/* The limit is on sending alone: one line names the node, not three pairs. */
static void node_that_sends_slowly_is_named_once(void **state)
{
    (void)state;
    make_even(4);
    for (int to = 0; to < 4; to++)
        if (to != 2)
            m.pair[2][to].bytes_per_s = 0.1e9;
    dpt_matrix_judge(&m, &findings);
    assert_non_null(
        strstr(line_of("slow node")->text, "n2 sends to all others at 0.100 GB/s or less, 10"));
    assert_null(line_of("outlier"));
    int asymmetric = 0;
    for (int i = 0; i < findings.n; i++)
        asymmetric += strcmp(findings.item[i].subject, "asymmetry") == 0;
    assert_int_equal(asymmetric, 3);
    assert_non_null(strstr(line_of("asymmetry")->text, "n2 -> n0: 0.100 GB/s, back 1.000 GB/s"));
}

/* Of three nodes one sends slowly: the others receive one slow stream and one fast. */
static void receivers_of_a_slow_node_are_not_blamed(void **state)
{
    (void)state;
    make_even(3);
    m.pair[2][0].bytes_per_s = m.pair[2][1].bytes_per_s = 0.01e9;
    dpt_matrix_judge(&m, &findings);
    int slow_nodes = 0;
    for (int i = 0; i < findings.n; i++)
        slow_nodes += strcmp(findings.item[i].subject, "slow node") == 0;
    assert_int_equal(slow_nodes, 1);
    assert_non_null(strstr(line_of("slow node")->text, "n2 sends to all others"));
}

static void small_difference_of_directions_is_no_asymmetry(void **state)
{
    (void)state;
    make_even(2);
    m.pair[0][1].bytes_per_s = 1.24e9;
    dpt_matrix_judge(&m, &findings);
    assert_null(line_of("asymmetry"));
    make_even(2);
    m.pair[0][1].bytes_per_s = 1.26e9;
    dpt_matrix_judge(&m, &findings);
    assert_non_null(strstr(line_of("asymmetry")->text, "n1 -> n0"));
}

static void far_pair_is_an_outlier(void **state)
{
    (void)state;
    make_even(3);
    m.pair[0][2].rtt_us = 900;
    dpt_matrix_judge(&m, &findings);
    assert_int_equal(findings.count[DPT_FINDING_WARN], 1);
    assert_non_null(strstr(line_of("outlier")->text, "round trip 900 us (median 100 us)"));
}

/* Twice 10 us is within the noise of scheduling. */
static void short_times_are_no_outliers(void **state)
{
    (void)state;
    make_even(3);
    for (int a = 0; a < 3; a++)
        for (int b = 0; b < 3; b++)
            m.pair[a][b].rtt_us = 10;
    m.pair[0][2].rtt_us = 40;
    dpt_matrix_judge(&m, &findings);
    assert_int_equal(findings.count[DPT_FINDING_WARN], 0);
}

static void failed_pairs_fail_and_count_in_no_median(void **state)
{
    (void)state;
    struct dpt_matrix_medians medians;
    make_even(3);
    m.pair[0][1] = (struct dpt_pair){.state = DPT_PAIR_FAILED};
    (void)snprintf(m.pair[0][1].why, sizeof m.pair[0][1].why, "n1 does not answer");
    dpt_matrix_medians(&m, &medians);
    assert_int_equal(medians.n, 5);
    assert_true(medians.bytes_per_s > 0.99e9 && medians.bytes_per_s < 1.01e9);
    dpt_matrix_judge(&m, &findings);
    assert_int_equal(findings.count[DPT_FINDING_FAIL], 1);
    assert_non_null(strstr(line_of("no link")->text, "n0 -> n1: n1 does not answer"));
}

/* Each of its pairs failed, but one line is enough. A pair of other nodes that failed has its own.
 */
static void silent_node_is_one_line(void **state)
{
    (void)state;
    make_even(5);
    (void)snprintf(m.silent[2], sizeof m.silent[2], "n2: no answer in time");
    for (int i = 0; i < 5; i++)
        m.pair[i][2].state = m.pair[2][i].state = DPT_PAIR_FAILED;
    m.pair[0][1].state = DPT_PAIR_FAILED;
    dpt_matrix_judge(&m, &findings);
    assert_int_equal(findings.count[DPT_FINDING_FAIL], 2);
    assert_string_equal(line_of("no answer")->text, "n2: no answer in time");
    assert_non_null(strstr(line_of("no answer")->remedy, "net --listen"));
    assert_non_null(strstr(line_of("no link")->text, "n0 -> n1"));
}

static void nothing_measured_has_failures_only(void **state)
{
    (void)state;
    struct dpt_matrix_medians medians;
    make_even(2);
    m.pair[0][1].state = m.pair[1][0].state = DPT_PAIR_FAILED;
    dpt_matrix_medians(&m, &medians);
    assert_int_equal(medians.n, 0);
    dpt_matrix_judge(&m, &findings);
    assert_int_equal(findings.n, 2);
    assert_int_equal(findings.count[DPT_FINDING_FAIL], 2);
}

static void outliers_beyond_the_limit_are_counted(void **state)
{
    (void)state;
    make_even(20);
    for (int a = 0; a < 20; a++) /* two slow links of each node: no node is slow */
        for (int k = 1; k <= 2; k++)
            m.pair[a][(a + k) % 20].bytes_per_s = 0.2e9;
    dpt_matrix_judge(&m, &findings);
    int outliers = 0;
    for (int i = 0; i < findings.n; i++)
        outliers += strcmp(findings.item[i].subject, "outlier") == 0;
    assert_int_equal(outliers, DPT_MATRIX_OUTLIERS_MAX + 1);
    assert_non_null(strstr(findings.item[findings.n - 1].text, "24 more pairs"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(even_links_give_no_warning),
        cmocka_unit_test(slow_pair_is_an_outlier_and_no_slow_node),
        cmocka_unit_test(node_that_sends_slowly_is_named_once),
        cmocka_unit_test(receivers_of_a_slow_node_are_not_blamed),
        cmocka_unit_test(small_difference_of_directions_is_no_asymmetry),
        cmocka_unit_test(far_pair_is_an_outlier),
        cmocka_unit_test(short_times_are_no_outliers),
        cmocka_unit_test(failed_pairs_fail_and_count_in_no_median),
        cmocka_unit_test(silent_node_is_one_line),
        cmocka_unit_test(nothing_measured_has_failures_only),
        cmocka_unit_test(outliers_beyond_the_limit_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
