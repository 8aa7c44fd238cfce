/* Tables for people (report.h). */
#include "worker/doctor/report.h"

#include <inttypes.h>
#include <string.h>

enum { CELL_BYTES = 16, NAME_COLUMNS_MAX = 28, EDGES_SHOWN_MAX = 32 };

/* ---- GPUs ---- */

static void print_row_of_nics(const struct dpt_gpus *gpus, const struct dpt_nics *nics, int row,
                              FILE *out)
{
    for (int i = 0; i < nics->n_rdma; i++)
        (void)fprintf(
            out, " %6s",
            dpt_topology_word(dpt_topology_between(&gpus->gpu[row].pci, &nics->rdma[i].pci)));
}

void dpt_report_print_gpus(const struct dpt_gpus *gpus, const struct dpt_nics *nics, FILE *out)
{
    if (gpus->n == 0)
        return;
    (void)fprintf(out, "\ntopology\n  %6s", "");
    for (int i = 0; i < gpus->n; i++) {
        char name[CELL_BYTES];
        (void)snprintf(name, sizeof name, "GPU%d", i);
        (void)fprintf(out, " %6s", name);
    }
    for (int i = 0; i < nics->n_rdma; i++)
        (void)fprintf(out, " %6.6s", nics->rdma[i].name);
    (void)fprintf(out, "   NUMA\n");
    for (int row = 0; row < gpus->n; row++) {
        char name[CELL_BYTES], cell[CELL_BYTES];
        (void)snprintf(name, sizeof name, "GPU%d", row);
        (void)fprintf(out, "  %6s", name);
        for (int i = 0; i < gpus->n; i++) {
            dpt_gpus_print_link(gpus, row, i, cell);
            (void)fprintf(out, " %6s", cell);
        }
        print_row_of_nics(gpus, nics, row, out);
        if (gpus->gpu[row].pci.numa >= 0)
            (void)fprintf(out, "   %4d\n", gpus->gpu[row].pci.numa);
        else
            (void)fprintf(out, "   %4s\n", "-");
    }
    (void)fprintf(out,
                  "  X itself, NV# that many NVLinks, PIX at most one PCIe bridge, PXB several "
                  "bridges, PHB the host bridge,\n  NODE several host bridges of a NUMA node, "
                  "SYS the link between NUMA nodes\n");
}

/* ---- the matrix ---- */

static int name_columns(const struct dpt_matrix *m)
{
    size_t longest = 4;
    for (int i = 0; i < m->n; i++)
        longest = strlen(m->name[i]) > longest ? strlen(m->name[i]) : longest;
    return longest < NAME_COLUMNS_MAX ? (int)longest : NAME_COLUMNS_MAX;
}

static void print_cell(const struct dpt_pair *pair, bool self, bool latency, FILE *out)
{
    if (self)
        (void)fprintf(out, " %12s", "-");
    else if (pair->state == DPT_PAIR_OPEN)
        (void)fprintf(out, " %12s", ".");
    else if (pair->state == DPT_PAIR_FAILED)
        (void)fprintf(out, " %12s", "FAIL");
    else if (latency)
        (void)fprintf(out, " %5.0f /%5.0f", pair->rtt_us, pair->rtt_p99_us);
    else
        (void)fprintf(out, " %12.3f", pair->bytes_per_s / 1e9);
}

static void print_table(const struct dpt_matrix *m, const char *title, bool latency, FILE *out)
{
    const int columns = name_columns(m);
    (void)fprintf(out, "%s\n  %-*s", title, columns + 4, "");
    for (int to = 0; to < m->n; to++)
        (void)fprintf(out, " %12d", to);
    (void)fputc('\n', out);
    for (int from = 0; from < m->n; from++) {
        (void)fprintf(out, "  %2d  %-*.*s", from, columns, columns, m->name[from]);
        for (int to = 0; to < m->n; to++)
            print_cell(&m->pair[from][to], from == to, latency, out);
        (void)fputc('\n', out);
    }
}

void dpt_report_print_matrix(const struct dpt_matrix *matrix, FILE *out)
{
    print_table(matrix, "bandwidth in GB/s, from row to column", false, out);
    (void)fputc('\n', out);
    print_table(matrix, "round trip in us, median / 99th percentile", true, out);
    (void)fputc('\n', out);
}

/* ---- NCCL ---- */

static void print_nccl_fact(const char *name, const char *text, FILE *out)
{
    if (text[0] != '\0')
        (void)fprintf(out, "  %-12s %s\n", name, text);
}

void dpt_report_print_nccl(const struct dpt_nccl_log *log, FILE *out)
{
    (void)fprintf(out, "\nNCCL (%zu lines of its log)\n", log->lines);
    print_nccl_fact("version", log->version, out);
    print_nccl_fact("network", log->network, out);
    print_nccl_fact("devices", log->devices, out);
    print_nccl_fact("bootstrap", log->bootstrap, out);
    if (log->ranks > 0 || log->channels > 0)
        (void)fprintf(out, "  %-12s %d ranks, %d channels\n", "size", log->ranks, log->channels);
    print_nccl_fact("ring 0", log->ring, out);
    print_nccl_fact("trees", log->tree, out);
    for (int i = 0; i < log->n_edges && i < EDGES_SHOWN_MAX; i++) {
        const struct dpt_nccl_edge *edge = &log->edge[i];
        (void)fprintf(out, "  %3d -> %-5d %-20s %d channel%s\n", edge->from, edge->to, edge->via,
                      edge->channels, edge->channels == 1 ? "" : "s");
    }
    const int more =
        log->edges_left_out + (log->n_edges > EDGES_SHOWN_MAX ? log->n_edges - EDGES_SHOWN_MAX : 0);
    if (more > 0)
        (void)fprintf(out, "  %d more connections; --json has %d\n", more, log->n_edges);
    dpt_report_print_tuning(&log->tuning, out);
}

/* ---- ranks ---- */

static const char *phase_word(Dpt__RankPhase phase)
{
    static const char *const words[] = {"starting", "standby",  "running", "quiesced",
                                        "ready",    "finished", "dead"};
    return (size_t)phase < sizeof words / sizeof *words ? words[phase] : "?";
}

void dpt_report_print_ranks(const struct dpt_hang *hang, FILE *out)
{
    const struct dpt_hang_view *view = hang->view;
    (void)fprintf(out, "  %5s %-16s %-9s %9s %9s  %s\n", "rank", "node", "phase", "steps",
                  "heard s", "main thread; communication thread");
    for (int i = 0; i < view->n; i++) {
        const struct dpt_hang_rank *rank = &view->rank[i];
        char number[CELL_BYTES] = "-", own[DPT_HANG_WORK_BYTES], comm[DPT_HANG_WORK_BYTES];
        if (rank->rank >= 0)
            (void)snprintf(number, sizeof number, "%d", rank->rank);
        dpt_hang_print_work(rank->main, rank->main_unit, rank->main_slot, own);
        dpt_hang_print_work(rank->comm, rank->comm_unit, -1, comm);
        (void)fprintf(out, "  %5s %-16.16s %-9s %9" PRId64 " %9.1f  ", number, rank->node,
                      phase_word(rank->phase), rank->step, (double)rank->heard_ms / 1000);
        if (!rank->known)
            (void)fprintf(out, "not known\n");
        else if (rank->comm == DPT__RANK_WORK__WORK_NONE)
            (void)fprintf(out, "%s (%.1f s)\n", own, (double)rank->main_ms / 1000);
        else
            (void)fprintf(out, "%s (%.1f s); %s (%.1f s)\n", own, (double)rank->main_ms / 1000,
                          comm, (double)rank->comm_ms / 1000);
    }
    if (view->left_out > 0)
        (void)fprintf(out, "  %d more processes\n", view->left_out);
    (void)fputc('\n', out);
}
