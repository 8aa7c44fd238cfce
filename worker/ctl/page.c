/* Tables for people. */
#include "worker/ctl/result.h"

#include "worker/ctl/words.h"
#include "worker/doctor/report.h"

#include <inttypes.h>
#include <string.h>

enum { CELL_BYTES = 24 };

/* A number, or "-" below 0. */
static const char *number_cell(int64_t number, char ret[CELL_BYTES])
{
    if (number < 0)
        (void)snprintf(ret, CELL_BYTES, "-");
    else
        (void)snprintf(ret, CELL_BYTES, "%" PRId64, number);
    return ret;
}

/* Seconds, or "-" below 0. */
static const char *seconds_cell(int64_t ms, char ret[CELL_BYTES])
{
    if (ms < 0)
        return number_cell(ms, ret);
    (void)snprintf(ret, CELL_BYTES, "%.1f", (double)ms / 1000);
    return ret;
}

static void print_run_row(const Dpt__RunInfo *run, FILE *out)
{
    char step[CELL_BYTES], saved[CELL_BYTES], nodes[CELL_BYTES], world[CELL_BYTES];
    char heard[CELL_BYTES];
    (void)snprintf(nodes, sizeof nodes, "%" PRIu32 "/%" PRIu32, run->n_nodes, run->max_nodes);
    (void)fprintf(out, "%-24s %-10s %11s %6s %10s %10s %8" PRId64 " %8s  %s\n", run->run,
                  dpt_ctl_run_word(run), nodes,
                  number_cell(run->world_size > 0 ? (int64_t)run->world_size : -1, world),
                  number_cell(run->step, step), number_cell(run->saved_step, saved),
                  run->step_ms_median, seconds_cell(run->heard_ms_ago, heard), run->user);
}

static void print_runs_title(FILE *out)
{
    (void)fprintf(out, "%-24s %-10s %11s %6s %10s %10s %8s %8s  %s\n", "run", "state", "nodes",
                  "ranks", "step", "saved", "step ms", "heard s", "user");
}

void dpt_ctl_print_runs(const Dpt__ControlReply *reply, FILE *out)
{
    if (reply->n_runs == 0)
        (void)fputs("the server has no run\n", out);
    else
        print_runs_title(out);
    for (size_t i = 0; i < reply->n_runs; i++)
        print_run_row(reply->runs[i], out);
}

void dpt_ctl_print_nodes(const Dpt__ControlReply *reply, bool further, FILE *out)
{
    if (reply->n_nodes == 0 && !further)
        (void)fputs("no node is here\n", out);
    else if (!further)
        (void)fprintf(out, "%-24s %-20s %-20s %-12s %-8s %5s %6s %10s %8s\n", "node", "run", "host",
                      "rack", "state", "ranks", "first", "step", "heard s");
    for (size_t i = 0; i < reply->n_nodes; i++) {
        const Dpt__NodeInfo *node = reply->nodes[i];
        char first[CELL_BYTES], step[CELL_BYTES];
        (void)fprintf(out, "%-24s %-20s %-20s %-12s %-8s %5" PRIu32 " %6s %10s ", node->node,
                      node->run, node->host_name[0] != '\0' ? node->host_name : "-",
                      node->rack[0] != '\0' ? node->rack : "-", dpt_ctl_node_word(node),
                      node->n_ranks, number_cell(node->first_rank, first),
                      number_cell(node->step, step));
        if (dpt_ctl_node_is_heard(node))
            (void)fprintf(out, "%8.1f%s\n", (double)node->heard_ms_ago / 1000,
                          node->connected ? "" : " (connection broken)");
        else
            (void)fprintf(out, "%8s\n", "-");
    }
}

void dpt_ctl_print_run(const Dpt__RunInfo *run, FILE *out)
{
    print_runs_title(out);
    print_run_row(run, out);
    (void)fprintf(
        out, "generation %" PRIu64 ", for %.1f s in this phase, %" PRIu32 " restarts left%s%s\n",
        run->generation, (double)run->phase_ms / 1000, run->restarts_left,
        run->cause[0] != '\0' ? "; formed because: " : "", run->cause);
    if (run->text[0] != '\0')
        (void)fprintf(out, "error: %s\n", run->text);
    (void)fputc('\n', out);
}

void dpt_ctl_print_ranks(const struct dpt_hang_view *view, FILE *out)
{
    const struct dpt_hang hang = {.view = view};
    (void)fputc('\n', out);
    dpt_report_print_ranks(&hang, out);
}

static void print_stacks(const Dpt__RankStatus *rank, FILE *out)
{
    if (rank->stacks[0] == '\0')
        (void)fprintf(out,
                      "    no stack: the process has not answered within some seconds; its agent "
                      "heard it %.1f s ago, the server heard its node %.1f s ago\n",
                      (double)rank->heard_ms_ago / 1000, (double)rank->node_ms_ago / 1000);
    for (const char *at = rank->stacks; *at != '\0';) {
        const char *end = strchr(at, '\n');
        const int bytes = end != NULL ? (int)(end - at) : (int)strlen(at);
        (void)fprintf(out, "    %.*s\n", bytes, at);
        at += bytes + (end != NULL);
    }
}

void dpt_ctl_print_dump(const Dpt__ServerState *answer, const struct dpt_hang_view *view, FILE *out)
{
    if (answer->reply->n_runs > 0)
        dpt_ctl_print_run(answer->reply->runs[0], out);
    dpt_ctl_print_ranks(view, out);
    for (int i = 0; i < view->n; i++) {
        char who[DPT_HANG_WHO_BYTES];
        dpt_hang_print_who(&view->rank[i], who);
        (void)fprintf(out, "%s\n", who);
        print_stacks(answer->status->ranks[i], out);
    }
}

void dpt_ctl_print_done(const struct dpt_ctl_done *done, FILE *out)
{
    (void)fprintf(out, "%s\n", done->text);
    if (done->folder[0] == '\0')
        return;
    (void)fputs(done->folder, out);
    if (done->folder_node[0] != '\0')
        (void)fprintf(out, " on node %s", done->folder_node);
    if (done->folder_host[0] != '\0')
        (void)fprintf(out, " (host %s)", done->folder_host);
    (void)fputc('\n', out);
}
