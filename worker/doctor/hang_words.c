/* The verdict on a run, in words (hang.h). */
#include "worker/doctor/hang.h"

#include <inttypes.h>
#include <string.h>

static const char section[] = "run";

static double as_seconds(int64_t ms)
{
    return (double)ms / 1000;
}

/* ---- a rank and its work ---- */

void dpt_hang_print_work(Dpt__RankWork work, int unit, int slot, char ret[DPT_HANG_WORK_BYTES])
{
    static const struct {
        const char *text, *of;
    } words[] = {
        [DPT__RANK_WORK__WORK_NONE] = {"not known", NULL},
        [DPT__RANK_WORK__WORK_SETUP] = {"loads config and data", NULL},
        [DPT__RANK_WORK__WORK_STANDBY] = {"waits for a command", NULL},
        [DPT__RANK_WORK__WORK_FORM] = {"forms a generation", NULL},
        [DPT__RANK_WORK__WORK_SAMPLES] = {"reads samples", NULL},
        [DPT__RANK_WORK__WORK_FORWARD] = {"forward", "unit"},
        [DPT__RANK_WORK__WORK_BACKWARD] = {"backward", "unit"},
        [DPT__RANK_WORK__WORK_AWAIT_WEIGHTS] = {"waits for the weights", "unit"},
        [DPT__RANK_WORK__WORK_AWAIT_BUFFER] = {"waits for a free buffer", "unit"},
        [DPT__RANK_WORK__WORK_AWAIT_GRADIENT] = {"waits for the gradient", "bucket"},
        [DPT__RANK_WORK__WORK_COMMIT] = {"waits in the all-gather of losses", NULL},
        [DPT__RANK_WORK__WORK_APPLY] = {"optimizer step", NULL},
        [DPT__RANK_WORK__WORK_VERIFY] = {"compares replicas", NULL},
        [DPT__RANK_WORK__WORK_EVALUATE] = {"evaluates", NULL},
        [DPT__RANK_WORK__WORK_SAVE] = {"begins a checkpoint", NULL},
        [DPT__RANK_WORK__WORK_LOG] = {"writes its log", NULL},
        [DPT__RANK_WORK__WORK_GATHER] = {"all-gather of the weights", "unit"},
        [DPT__RANK_WORK__WORK_SCATTER] = {"reduce-scatter of the gradient", "range"},
        [DPT__RANK_WORK__WORK_CROSS] = {"sums between nodes", "unit"},
        [DPT__RANK_WORK__WORK_SHARE] = {"all-gather of sums", "range"},
        [DPT__RANK_WORK__WORK_COPY] = {"copy of the state to its shadow", "unit"},
        [DPT__RANK_WORK__WORK_ALL_REDUCE] = {"all-reduce of the gradient", "bucket"},
        [DPT__RANK_WORK__WORK_REDUCE_SCATTER] = {"reduce-scatter of the gradient", "bucket"},
        [DPT__RANK_WORK__WORK_AWAIT_OWN] = {"waits for its own computation", "bucket"}};
    const size_t n = sizeof words / sizeof *words;
    const bool known = (size_t)work < n;
    char of[32] = "", at[32] = "";
    if (known && words[work].of && unit >= 0)
        (void)snprintf(of, sizeof of, ", %s %d", words[work].of, unit);
    if (known && slot >= 0 && work <= DPT__RANK_WORK__WORK_BACKWARD)
        (void)snprintf(at, sizeof at, ", slot %d", slot);
    (void)snprintf(ret, DPT_HANG_WORK_BYTES, "%s%s%s", known ? words[work].text : "not known", of,
                   at);
}

void dpt_hang_print_who(const struct dpt_hang_rank *rank, char ret[DPT_HANG_WHO_BYTES])
{
    char number[32] = "a process without a rank";
    if (rank->rank >= 0)
        (void)snprintf(number, sizeof number, "rank %d", rank->rank);
    (void)snprintf(ret, DPT_HANG_WHO_BYTES, "%s (node %s%s%s, local rank %" PRIu32 ")", number,
                   rank->node, rank->host[0] != '\0' ? ", host " : "", rank->host,
                   rank->local_rank);
}

/* What the rank is in: the transfer if it waits for others, else the work of its main thread. */
static void print_present(const struct dpt_hang_rank *rank, char ret[DPT_HANG_WORK_BYTES])
{
    if (dpt_hang_waits_for_transfer(rank))
        dpt_hang_print_work(rank->comm, rank->comm_unit, -1, ret);
    else
        dpt_hang_print_work(rank->main, rank->main_unit, rank->main_slot, ret);
}

/* ---- lines ---- */

static void explain_state(const struct dpt_hang *hang, struct dpt_findings *findings)
{
    static const char *const phases[] = {"waits for nodes",
                                         "last call for nodes",
                                         "ends a generation",
                                         "forms a generation",
                                         "runs",
                                         "ends the run",
                                         "done",
                                         "failed"};
    const struct dpt_hang_view *view = hang->view;
    const bool known = (size_t)view->phase < sizeof phases / sizeof *phases;
    (void)dpt_findings_add(findings, DPT_FINDING_INFO, section, view->run,
                           "generation %" PRIu64 ", %s for %.1f s, %d rank%s%s%s%s%s",
                           view->generation, known ? phases[view->phase] : "in another phase",
                           as_seconds(view->phase_ms), view->n, view->n == 1 ? "" : "s",
                           view->cause[0] != '\0' ? "; newest cause: " : "", view->cause,
                           view->text[0] != '\0' ? "; " : "", view->text);
}

static void explain_waiting(const struct dpt_hang *hang, struct dpt_findings *findings)
{
    char work[DPT_HANG_WORK_BYTES], who[DPT_HANG_WHO_BYTES];
    if (!hang->waiting)
        return;
    print_present(hang->waiting, work);
    dpt_hang_print_who(hang->waiting, who);
    (void)dpt_findings_add(findings, DPT_FINDING_INFO, section, "waiting",
                           "%d rank%s wait%s; %s in: %s, step %" PRId64 ", for %.1f s",
                           hang->n_waiting, hang->n_waiting == 1 ? "" : "s",
                           hang->n_waiting == 1 ? "s" : "", who, work, hang->waiting->step + 1,
                           as_seconds(hang->waiting->main_ms));
}

static const char *remedy_for(enum dpt_hang_kind kind, Dpt__RankWork work)
{
    if (kind == DPT_HANG_NODE)
        return "look at this machine and its network (ping, dpt-doctor net); the server removes "
               "the node when its lease ends";
    if (kind == DPT_HANG_PROCESS)
        return "the process is stopped (kill -CONT), swaps, or is starved; its agent replaces it "
               "when its lease ends";
    switch (work) {
    case DPT__RANK_WORK__WORK_SAMPLES:
    case DPT__RANK_WORK__WORK_SAVE:
    case DPT__RANK_WORK__WORK_LOG:
        return "look at the disk or network folder of data and checkpoints (iostat, df, mount)";
    case DPT__RANK_WORK__WORK_FORWARD:
    case DPT__RANK_WORK__WORK_BACKWARD:
    case DPT__RANK_WORK__WORK_APPLY:
        return "look at the load of this machine (top, nvidia-smi): it is slower than the others, "
               "or a kernel hangs";
    default:
        return "look at the rank's log in log.dir/node-ID/rank-R.log";
    }
}

static void explain_blamed(const struct dpt_hang *hang, const struct dpt_hang_rank *rank,
                           struct dpt_findings *findings)
{
    char who[DPT_HANG_WHO_BYTES], work[DPT_HANG_WORK_BYTES] = "its work is not known";
    dpt_hang_print_who(rank, who);
    if (rank->known)
        dpt_hang_print_work(rank->main, rank->main_unit, rank->main_slot, work);
    struct dpt_finding *line = NULL;
    if (hang->kind == DPT_HANG_NODE)
        line =
            dpt_findings_add(findings, DPT_FINDING_FAIL, section, "behind",
                             "%s: its node is %s for %.1f s; last: %s, %" PRId64 " steps completed",
                             who, rank->connected ? "silent" : "not connected",
                             as_seconds(rank->node_ms), work, rank->step);
    else if (hang->kind == DPT_HANG_PROCESS)
        line = dpt_findings_add(findings, DPT_FINDING_FAIL, section, "behind",
                                "%s: the process is silent for %.1f s, its node is not; last: %s, "
                                "%" PRId64 " steps completed",
                                who, as_seconds(rank->heard_ms), work, rank->step);
    else
        line = dpt_findings_add(findings, DPT_FINDING_FAIL, section, "behind",
                                "%s: %s for %.1f s, %" PRId64 " steps completed", who, work,
                                as_seconds(rank->main_ms), rank->step);
    dpt_finding_set_remedy(line, "%s", remedy_for(hang->kind, rank->main));
}

static void explain_circle(const struct dpt_hang *hang, struct dpt_findings *findings)
{
    dpt_finding_set_remedy(
        dpt_findings_add(findings, DPT_FINDING_FAIL, section, "all wait",
                         "every rank waits for others, and no process and no node is silent: the "
                         "connections between ranks carry nothing, or ranks wait in different "
                         "transfers (table above); no step for %.1f s",
                         as_seconds(hang->view->still_ms)),
        "dpt-doctor net between these machines; a firewall or another MTU may drop data but not "
        "connections");
}

static void explain_unheard(const struct dpt_hang *hang, struct dpt_findings *findings)
{
    dpt_finding_set_remedy(
        dpt_findings_add(findings, DPT_FINDING_FAIL, section, "no node heard",
                         "the server hears no node of the run for %.1f s, which is more than a "
                         "lease: the server is cut off, or all nodes are gone",
                         as_seconds(hang->view->heard_ms)),
        "look at the machines and at the network of the server (ping, dpt-doctor net); if the "
        "nodes are gone, start workers: the server judges no node lost while it hears none");
}

static void explain_good(const struct dpt_hang *hang, struct dpt_findings *findings)
{
    const struct dpt_hang_view *view = hang->view;
    if (hang->kind == DPT_HANG_ADVANCES)
        (void)dpt_findings_add(findings, DPT_FINDING_OK, section, "advances",
                               "%" PRId64 " step%s while it was watched; a step takes %" PRId64
                               " ms (median)",
                               hang->steps, hang->steps == 1 ? "" : "s", view->step_ms_median);
    else if (hang->kind == DPT_HANG_NOT_YET)
        (void)dpt_findings_add(findings, DPT_FINDING_OK, section, "no hang yet",
                               "no step for %.1f s, and a step takes %" PRId64
                               " ms (median): watch longer (--seconds)",
                               as_seconds(view->still_ms), view->step_ms_median);
    else if (view->phase == DPT__SERVER_PHASE__SERVER_FAILED)
        (void)dpt_findings_add(findings, DPT_FINDING_WARN, section, "failed",
                               "the run has ended with an error: %s", view->text);
    else if (hang->kind == DPT_HANG_ENDED)
        (void)dpt_findings_add(findings, DPT_FINDING_OK, section, "ended", "the run has ended");
    else
        (void)dpt_findings_add(findings, DPT_FINDING_INFO, section, "no world",
                               "no generation runs now; the workers' terminals say what the run "
                               "waits for");
}

void dpt_hang_explain(const struct dpt_hang *hang, struct dpt_findings *findings)
{
    explain_state(hang, findings);
    if (!dpt_hang_is_bad(hang)) {
        explain_good(hang, findings);
        return;
    }
    explain_waiting(hang, findings);
    for (int i = 0; i < hang->n_blamed; i++)
        explain_blamed(hang, hang->blamed[i], findings);
    if (hang->kind == DPT_HANG_CIRCLE)
        explain_circle(hang, findings);
    if (hang->kind == DPT_HANG_UNHEARD) {
        explain_unheard(hang, findings);
        return; /* the server ends no generation while it hears no node */
    }
    if (hang->kind == DPT_HANG_UNKNOWN)
        dpt_finding_set_remedy(
            dpt_findings_add(findings, DPT_FINDING_FAIL, section, "not known",
                             "no step for %.1f s, and the ranks do not tell what they do",
                             as_seconds(hang->view->still_ms)),
            "install the same version of dpt on all nodes");
    if (hang->view->limit_ms > 0)
        (void)dpt_findings_add(findings, DPT_FINDING_INFO, section, "what follows",
                               "without a step the server ends this generation after %.1f s "
                               "(%.1f s are over), and the run goes on without a rank that does "
                               "not answer",
                               as_seconds(hang->view->limit_ms), as_seconds(hang->view->still_ms));
}
