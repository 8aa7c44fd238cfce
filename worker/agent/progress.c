/* One line for each change of state. */
#include "worker/agent/progress.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *nodes_are(uint32_t n)
{
    return n == 1 ? "node is" : "nodes are";
}

static void say_no_server(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                          char *line)
{
    if (progress->was_up && progress->all_done)
        (void)snprintf(line, DPT_PROGRESS_LINE_BYTES,
                       "all steps are done, but the last checkpoint and the end need the server at "
                       "%s, which is gone: start dpt-rdzv there",
                       progress->endpoint);
    else if (progress->was_up)
        (void)snprintf(line, DPT_PROGRESS_LINE_BYTES,
                       "the server at %s is gone; training goes on, looking for it",
                       progress->endpoint);
    else
        (void)snprintf(line, DPT_PROGRESS_LINE_BYTES,
                       "waiting for a server at %s (from %s; --rdzv-endpoint HOST:PORT changes it) "
                       "for at most %" PRId64 " s",
                       progress->endpoint, progress->source, view->timing.join_ms / 1000);
}

void dpt_progress_line(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                       uint32_t min_nodes, bool patient, char ret_line[DPT_PROGRESS_LINE_BYTES])
{
    enum { BYTES = DPT_PROGRESS_LINE_BYTES };
    ret_line[0] = '\0';
    if (view->ended)
        return;
    if (!view->server_up) {
        if (progress->was_up || !patient)
            say_no_server(progress, view, ret_line);
        return;
    }
    switch ((int)view->phase) {
    case DPT__SERVER_PHASE__SERVER_WAITING:
        if (progress->no_run)
            (void)snprintf(ret_line, BYTES,
                           "no config given and no run '%.63s' at %.64s yet: waiting for a worker "
                           "that brings it (--config FILE)",
                           progress->run, progress->endpoint);
        else if (view->n_nodes > 0 && view->n_nodes >= min_nodes)
            (void)snprintf(ret_line, BYTES, "%" PRIu32 " %s here; ranks are starting",
                           view->n_nodes, nodes_are(view->n_nodes));
        else if (view->n_nodes > 0)
            (void)snprintf(ret_line, BYTES, "waiting for nodes: %" PRIu32 " of %" PRIu32 " at %s",
                           view->n_nodes, min_nodes, progress->endpoint);
        break;
    case DPT__SERVER_PHASE__SERVER_SETTLING:
        (void)snprintf(ret_line, BYTES, "%" PRIu32 " %s here; last call for more", view->n_nodes,
                       nodes_are(view->n_nodes));
        break;
    case DPT__SERVER_PHASE__SERVER_PREPARE:
        (void)snprintf(ret_line, BYTES, "forming generation %" PRIu64, view->generation);
        break;
    case DPT__SERVER_PHASE__SERVER_RUNNING:
        (void)snprintf(ret_line, BYTES, "generation %" PRIu64 ": %s on %" PRIu32 " rank%s%s",
                       view->generation, progress->evaluates ? "evaluating" : "training",
                       view->world_size, view->world_size == 1 ? "" : "s",
                       view->leaving ? "; leaving at the next step boundary" : "");
        break;
    case DPT__SERVER_PHASE__SERVER_DRAINING:
        (void)snprintf(ret_line, BYTES, "%s; finishing",
                       progress->evaluates ? "evaluated" : "all steps are done");
        break;
    case DPT__SERVER_PHASE__SERVER_SPARE:
        (void)snprintf(ret_line, BYTES,
                       "generation %" PRIu64 " trains without this node, which stands by",
                       view->generation);
        break;
    case DPT__SERVER_PHASE__SERVER_EXPELLED:
        (void)snprintf(ret_line, BYTES, "expelled: state discarded, joining again");
        break;
    default: /* PLAN is a moment; the ends are told by the closing line */
        break;
    }
}

static void say_step(struct dpt_progress *progress, const struct dpt_agent_view *view,
                     int64_t steps, int64_t now_ms)
{
    if (view->step <= progress->step_said || view->tokens_per_s <= 0 ||
        now_ms - progress->step_said_ms < DPT_PROGRESS_STEP_EVERY_MS)
        return;
    (void)fprintf(progress->out, "step %" PRId64, view->step);
    if (steps > 0)
        (void)fprintf(progress->out, "/%" PRId64, steps);
    (void)fprintf(progress->out, "  loss %.4f  %.0f tokens/s  %" PRIu32 " rank%s\n",
                  (double)view->loss, (double)view->tokens_per_s, view->world_size,
                  view->world_size == 1 ? "" : "s");
    (void)fflush(progress->out);
    progress->step_said = view->step;
    progress->step_said_ms = now_ms;
}

static void say_evaluation(struct dpt_progress *progress, const struct dpt_agent_view *view)
{
    (void)fprintf(progress->out, "step %" PRId64 "  val_loss %.6f  perplexity %.4g\n",
                  view->val_step, view->val_loss, exp(view->val_loss));
    (void)fflush(progress->out);
    progress->val_said = view->val_step;
}

void dpt_progress_update(struct dpt_progress *progress, const struct dpt_agent_view *view,
                         uint32_t min_nodes, int64_t steps, int64_t now_ms)
{
    char line[DPT_PROGRESS_LINE_BYTES];
    if (progress->first_ms == 0)
        progress->first_ms = now_ms;
    progress->all_done = steps > 0 && view->step >= steps;
    bool patient = now_ms - progress->first_ms < DPT_PROGRESS_PATIENCE_MS;
    dpt_progress_line(progress, view, min_nodes, patient, line);
    if (line[0] != '\0' && strcmp(line, progress->said) != 0) {
        (void)fprintf(progress->out, "%s\n", line);
        (void)fflush(progress->out);
        memcpy(progress->said, line, sizeof line);
    }
    progress->was_up = progress->was_up || view->server_up;
    if (view->val_step > progress->val_said)
        say_evaluation(progress, view);
    if (view->step > 0 && !progress->evaluates)
        say_step(progress, view, steps, now_ms);
}
