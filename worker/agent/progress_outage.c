/* The line while no server answers: of one that is away, is silent, does not take this machine's
 * keys, or was never reached. */
#include "worker/agent/progress_outage.h"

#include <inttypes.h>
#include <stdio.h>

enum { BYTES = DPT_TEXT_LINE_BYTES, PART_BYTES = 256 };

bool dpt_progress_holds_steps(const struct dpt_agent_view *view)
{
    return !view->computing && view->unsaved_steps > 0;
}

bool dpt_progress_waits_with_steps(const struct dpt_agent_view *view)
{
    return !view->computing && (view->unsaved_steps > 0 || view->steps_elsewhere > 0);
}

/* Writes what SIGTERM does with the steps that only this node has. */
static void format_way_out(const struct dpt_agent_view *view, char ret[PART_BYTES])
{
    if (view->rescue == DPT_AGENT_RESCUE_COMPLETE)
        (void)snprintf(ret, PART_BYTES, "or SIGTERM: saves what is held and ends");
    else if (view->rescue == DPT_AGENT_RESCUE_PART)
        (void)snprintf(ret, PART_BYTES,
                       "or SIGTERM on all nodes within %g s: each saves its part and ends",
                       (double)view->timing.drain_ms / 1000);
    else
        (void)snprintf(ret, PART_BYTES,
                       "SIGTERM ends and loses them: checkpoint.dir names no folder");
}

/* What a node that does not compute and holds no unsaved step does. */
static const char *idle_text(const struct dpt_progress *progress, const struct dpt_agent_view *view)
{
    if (view->paused)
        return "the run stays paused";
    if (progress->trained_ms == 0 || view->phase == DPT__SERVER_PHASE__SERVER_SPARE)
        return "nothing trains here";
    return "training is paused";
}

/* Such a server ends this node: core_stage.c. */
static void format_denied(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                          char *line)
{
    const int64_t join_s = view->timing.join_ms / 1000;
    char held[PART_BYTES] = "it ends";
    if (dpt_progress_holds_steps(view) && view->rescue == DPT_AGENT_RESCUE_NONE)
        (void)snprintf(held, sizeof held,
                       "it ends, and the last %" PRId64 " steps here, which no checkpoint has, are "
                       "lost: checkpoint.dir names no folder",
                       view->unsaved_steps);
    else if (dpt_progress_holds_steps(view))
        (void)snprintf(held, sizeof held,
                       "it saves its step %" PRId64 ", because no checkpoint has the last %" PRId64
                       " steps, and ends",
                       view->step, view->unsaved_steps);
    if (view->computing)
        (void)snprintf(line, BYTES, "training goes on without the server: %.1000s",
                       progress->denial);
    else
        (void)snprintf(line, BYTES,
                       "%s, and this node waits to be let in again, for %" PRId64
                       " s in all; then %s: %.1000s",
                       idle_text(progress, view), join_s, held, progress->denial);
}

/* A server that has answered before. */
static void format_lost(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                        char *line)
{
    const bool silent = progress->why[0] != '\0';
    const char *endpoint = progress->options.endpoint;
    const char *what = silent ? "takes connections but does not answer" : "is gone";
    const char *cure = silent ? DPT_CLIENT_SEE_LOG : "start dpt-rdzv there";
    const bool unsaved = view->unsaved_steps > 0;
    char way_out[PART_BYTES];
    format_way_out(view, way_out);
    if (progress->all_done)
        (void)snprintf(line, BYTES,
                       "all steps are done, but the last checkpoint and the end need the server at "
                       "%.64s, which %s: %s%s%s%s",
                       endpoint, what, cure, unsaved ? " (" : "", unsaved ? way_out : "",
                       unsaved ? ")" : "");
    else if (dpt_progress_holds_steps(view))
        (void)snprintf(line, BYTES,
                       "the server at %.64s %s and training is paused: this node keeps "
                       "step %" PRId64 ", no checkpoint has the last %" PRId64
                       " steps, and it waits without limit: %s (%s)",
                       endpoint, what, view->step, view->unsaved_steps, cure, way_out);
    else if (!view->computing && view->steps_elsewhere > 0)
        (void)snprintf(line, BYTES,
                       "the server at %.64s %s and training is paused: the last %" PRId64
                       " steps died with rank processes here, no checkpoint has them, other nodes "
                       "keep them, and this node waits without limit: %s (or SIGTERM: it ends)",
                       endpoint, what, view->steps_elsewhere, cure);
    else if (!view->computing)
        (void)snprintf(
            line, BYTES, "the server at %.256s %s; %s, reconnecting for at most %" PRId64 " s: %s",
            endpoint, what, idle_text(progress, view), view->timing.join_ms / 1000, cure);
    else if (silent)
        (void)snprintf(line, BYTES, "the server at %.256s %s; training goes on: %s", endpoint, what,
                       cure);
    else
        (void)snprintf(line, BYTES, "the server at %s is gone; training goes on, reconnecting",
                       endpoint);
}

void dpt_progress_outage_text(const struct dpt_progress *progress,
                              const struct dpt_agent_view *view, char ret[DPT_TEXT_LINE_BYTES])
{
    if (progress->was_heard && progress->denial[0] != '\0')
        format_denied(progress, view, ret);
    else if (progress->was_heard)
        format_lost(progress, view, ret);
    else
        (void)snprintf(ret, BYTES,
                       "waiting for a server at %s (from %s; --rdzv-endpoint HOST:PORT changes it) "
                       "for at most %" PRId64 " s%s%s",
                       progress->options.endpoint, progress->options.source,
                       view->timing.join_ms / 1000, progress->why[0] != '\0' ? ": " : "",
                       progress->why);
}
