/* The judgement on a matrix of links (matrix.h). */
#include "worker/doctor/matrix.h"

#include "base/median.h"

#include <stdlib.h>
#include <string.h>

static const char section[] = "links";

#define GB 1e9

static const struct dpt_pair *measured_pair(const struct dpt_matrix *m, int from, int to)
{
    const struct dpt_pair *pair = &m->pair[from][to];
    return from != to && pair->state == DPT_PAIR_MEASURED ? pair : NULL;
}

void dpt_matrix_medians(const struct dpt_matrix *m, struct dpt_matrix_medians *ret)
{
    static double rates[DPT_MATRIX_NODES_MAX * DPT_MATRIX_NODES_MAX];
    static double times[DPT_MATRIX_NODES_MAX * DPT_MATRIX_NODES_MAX];
    int n = 0;
    for (int from = 0; from < m->n; from++)
        for (int to = 0; to < m->n; to++) {
            const struct dpt_pair *pair = measured_pair(m, from, to);
            if (!pair)
                continue;
            rates[n] = pair->bytes_per_s;
            times[n++] = pair->rtt_us;
        }
    *ret = (struct dpt_matrix_medians){0};
    if (n > 0)
        *ret = (struct dpt_matrix_medians){
            .n = n, .bytes_per_s = dpt_median(rates, n), .rtt_us = dpt_median(times, n)};
}

/* ---- the slowest pair ---- */

static void name_slowest(const struct dpt_matrix *m, const struct dpt_matrix_medians *medians,
                         struct dpt_findings *findings)
{
    int from = -1, to = -1;
    for (int a = 0; a < m->n; a++)
        for (int b = 0; b < m->n; b++)
            if (measured_pair(m, a, b) &&
                (from < 0 || m->pair[a][b].bytes_per_s < m->pair[from][to].bytes_per_s)) {
                from = a;
                to = b;
            }
    if (from < 0)
        return;
    const struct dpt_pair *pair = &m->pair[from][to];
    (void)dpt_findings_add(findings, DPT_FINDING_INFO, section, "slowest",
                           "%s -> %s: %.3f GB/s, round trip %.0f us (median of all: %.3f GB/s, "
                           "%.0f us)",
                           m->name[from], m->name[to], pair->bytes_per_s / GB, pair->rtt_us,
                           medians->bytes_per_s / GB, medians->rtt_us);
}

/* ---- failures ---- */

/* One line for a node, not one for each of its pairs. The reason begins with the node. */
static void name_silent_nodes(const struct dpt_matrix *m, struct dpt_findings *findings)
{
    for (int node = 0; node < m->n; node++)
        if (m->silent[node][0] != '\0')
            dpt_finding_set_remedy(
                dpt_findings_add(findings, DPT_FINDING_FAIL, section, "no answer", "%s",
                                 m->silent[node]),
                "its pairs are left out; dpt-doctor net --listen must run there, and firewalls "
                "must let its port through");
}

/* The remedy stands once, below the first line. */
static void name_failures(const struct dpt_matrix *m, struct dpt_findings *findings)
{
    bool first = true;
    for (int a = 0; a < m->n; a++)
        for (int b = 0; b < m->n; b++) {
            if (a == b || m->pair[a][b].state != DPT_PAIR_FAILED || m->silent[a][0] != '\0' ||
                m->silent[b][0] != '\0')
                continue;
            struct dpt_finding *line =
                dpt_findings_add(findings, DPT_FINDING_FAIL, section, "no link", "%s -> %s: %s",
                                 m->name[a], m->name[b], m->pair[a][b].why);
            if (first)
                dpt_finding_set_remedy(
                    line, "ranks connect in both directions: open the port in the firewalls of "
                          "both, and for a run the ports of net.ipv4.ip_local_port_range");
            first = false;
        }
}

/* ---- asymmetry ---- */

static void name_asymmetries(const struct dpt_matrix *m, struct dpt_findings *findings)
{
    for (int a = 0; a < m->n; a++)
        for (int b = a + 1; b < m->n; b++) {
            const struct dpt_pair *there = measured_pair(m, a, b), *back = measured_pair(m, b, a);
            if (!there || !back)
                continue;
            const bool faster = there->bytes_per_s >= back->bytes_per_s;
            const double high = faster ? there->bytes_per_s : back->bytes_per_s;
            const double low = faster ? back->bytes_per_s : there->bytes_per_s;
            if (high < DPT_MATRIX_ASYMMETRY * low)
                continue;
            const int slow_from = faster ? b : a, slow_to = faster ? a : b;
            dpt_finding_set_remedy(
                dpt_findings_add(findings, DPT_FINDING_WARN, section, "asymmetry",
                                 "%s -> %s: %.3f GB/s, back %.3f GB/s", m->name[slow_from],
                                 m->name[slow_to], low / GB, high / GB),
                "an all-reduce waits for the slow direction: compare duplex and speed "
                "(ethtool), shaping (tc qdisc) and errors (ip -s link) of both nodes");
        }
}

/* ---- outliers ---- */

/* The bandwidth of the fastest link from (or to) a node; 0: fewer than two were measured, and one
 * alone blames no node. */
static double fastest_link(const struct dpt_matrix *m, int node, bool sends)
{
    double fastest = 0;
    int n = 0;
    for (int other = 0; other < m->n; other++) {
        const struct dpt_pair *pair =
            sends ? measured_pair(m, node, other) : measured_pair(m, other, node);
        if (!pair)
            continue;
        n++;
        fastest = pair->bytes_per_s > fastest ? pair->bytes_per_s : fastest;
    }
    return n >= 2 ? fastest : 0;
}

/* Names nodes all of whose links in one direction are slow. */
static void name_slow_nodes(const struct dpt_matrix *m, const struct dpt_matrix_medians *medians,
                            bool slow[2][DPT_MATRIX_NODES_MAX], struct dpt_findings *findings)
{
    for (int node = 0; node < m->n; node++)
        for (int sends = 0; sends < 2; sends++) {
            const double rate = fastest_link(m, node, sends == 1);
            slow[sends][node] = rate > 0 && rate < DPT_MATRIX_SLOW * medians->bytes_per_s;
            if (!slow[sends][node])
                continue;
            dpt_finding_set_remedy(
                dpt_findings_add(findings, DPT_FINDING_WARN, section, "slow node",
                                 "%s %s all others at %.3f GB/s or less, %.0f %% of the "
                                 "median",
                                 m->name[node], sends ? "sends to" : "receives from", rate / GB,
                                 100 * rate / medians->bytes_per_s),
                "check its interface (dpt-doctor there), cable and switch port; the run is as "
                "fast as this node, or leave it out");
        }
}

static void name_outliers(const struct dpt_matrix *m, const struct dpt_matrix_medians *medians,
                          bool slow[2][DPT_MATRIX_NODES_MAX], struct dpt_findings *findings)
{
    int named = 0, more = 0;
    for (int a = 0; a < m->n; a++)
        for (int b = 0; b < m->n; b++) {
            const struct dpt_pair *pair = measured_pair(m, a, b);
            if (!pair)
                continue;
            const bool is_slow = pair->bytes_per_s < DPT_MATRIX_SLOW * medians->bytes_per_s &&
                                 !slow[1][a] && !slow[0][b];
            const bool is_far = pair->rtt_us > DPT_MATRIX_FAR * medians->rtt_us &&
                                pair->rtt_us > medians->rtt_us + DPT_MATRIX_FAR_US;
            if (!is_slow && !is_far)
                continue;
            if (named == DPT_MATRIX_OUTLIERS_MAX) {
                more++;
                continue;
            }
            named++;
            (void)dpt_findings_add(findings, DPT_FINDING_WARN, section, "outlier",
                                   "%s -> %s: %.3f GB/s (%.0f %% of the median), round trip %.0f "
                                   "us (median %.0f us)",
                                   m->name[a], m->name[b], pair->bytes_per_s / GB,
                                   100 * pair->bytes_per_s / medians->bytes_per_s, pair->rtt_us,
                                   medians->rtt_us);
        }
    if (more > 0)
        (void)dpt_findings_add(findings, DPT_FINDING_WARN, section, "outlier",
                               "%d more pairs are as slow", more);
}

void dpt_matrix_judge(const struct dpt_matrix *m, struct dpt_findings *findings)
{
    bool slow[2][DPT_MATRIX_NODES_MAX]; /* [it receives, it sends] */
    struct dpt_matrix_medians medians;
    dpt_matrix_medians(m, &medians);
    name_silent_nodes(m, findings);
    name_failures(m, findings);
    name_slowest(m, &medians, findings);
    name_asymmetries(m, findings);
    if (medians.n < 2)
        return; /* nothing to compare */
    name_slow_nodes(m, &medians, slow, findings);
    name_outliers(m, &medians, slow, findings);
}
