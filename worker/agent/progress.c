/* Which line is printed when. */
#include "worker/agent/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SMOOTH 0.3 /* weight of the newest rate in the rate that predicts the time left */

static void print_always(const struct dpt_progress *progress, const char *line)
{
    progress->options.print(progress->options.terminal, line);
}

static void print(const struct dpt_progress *progress, const char *fmt, ...) DPT_PRINTF(2, 3);
static void print(const struct dpt_progress *progress, const char *fmt, ...)
{
    char line[DPT_TEXT_LINE_BYTES];
    va_list ap;
    if (progress->options.quiet)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    print_always(progress, line);
}

/* ---- the state in one line ---- */

/* Steps that only this process has wait for a server. */
static bool holds_steps(const struct dpt_agent_view *view)
{
    return !view->computing && view->unsaved_steps > 0;
}

/* What SIGTERM does with steps that only this process has. */
static void format_way_out(const struct dpt_agent_view *view, char *text, size_t bytes)
{
    if (view->rescue == DPT_AGENT_RESCUE_WHOLE)
        (void)snprintf(text, bytes, "or SIGTERM: saves what is held and ends");
    else if (view->rescue == DPT_AGENT_RESCUE_PART)
        (void)snprintf(text, bytes,
                       "or SIGTERM on all nodes within %g s: each saves its part and ends",
                       (double)view->timing.drain_ms / 1000);
    else
        (void)snprintf(text, bytes, "SIGTERM ends and loses them: checkpoint.dir names no folder");
}

static void format_no_server(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                             char *line)
{
    enum { BYTES = DPT_TEXT_LINE_BYTES };
    const char *endpoint = progress->options.endpoint;
    char way_out[96];
    format_way_out(view, way_out, sizeof way_out);
    if (progress->was_up && progress->all_done)
        (void)snprintf(line, BYTES,
                       "all steps are done, but the last checkpoint and the end need the server at "
                       "%.64s, which is gone: start dpt-rdzv there%s%s%s",
                       endpoint, view->unsaved_steps > 0 ? " (" : "",
                       view->unsaved_steps > 0 ? way_out : "", view->unsaved_steps > 0 ? ")" : "");
    else if (progress->was_up && holds_steps(view))
        (void)snprintf(line, BYTES,
                       "the server at %.64s is gone and training stands still: this node keeps "
                       "step %" PRId64 ", no checkpoint has the last %" PRId64
                       " steps, and it waits without limit: start dpt-rdzv there (%s)",
                       endpoint, view->step, view->unsaved_steps, way_out);
    else if (progress->was_up)
        (void)snprintf(line, BYTES, "the server at %s is gone; training goes on, reconnecting",
                       endpoint);
    else
        (void)snprintf(line, BYTES,
                       "waiting for a server at %s (from %s; --rdzv-endpoint HOST:PORT changes it) "
                       "for at most %" PRId64 " s%s%s",
                       endpoint, progress->options.source, view->timing.join_ms / 1000,
                       progress->why[0] != '\0' ? ": " : "", progress->why);
}

static bool is_forming(const struct dpt_agent_view *view)
{
    return view->phase == DPT__SERVER_PHASE__SERVER_WAITING ||
           view->phase == DPT__SERVER_PHASE__SERVER_SETTLING ||
           view->phase == DPT__SERVER_PHASE__SERVER_PREPARE ||
           view->phase == DPT__SERVER_PHASE__SERVER_PLAN;
}

/* The state while a generation is formed. */
static void format_forming(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                           uint32_t min_nodes, char *line)
{
    enum { BYTES = DPT_TEXT_LINE_BYTES };
    const char *stands_still =
        progress->trained_ms > 0 && !view->computing ? "training stands still; " : "";
    const char *nodes_are = view->n_nodes == 1 ? "node is" : "nodes are";
    if (view->phase == DPT__SERVER_PHASE__SERVER_SETTLING)
        (void)snprintf(line, BYTES, "%s%" PRIu32 " %s here; last call for more, %.1f s%s%s",
                       stands_still, view->n_nodes, nodes_are, (double)view->last_call_ms / 1000.0,
                       view->reason[0] != '\0' ? ": " : "", view->reason);
    else if (view->phase != DPT__SERVER_PHASE__SERVER_WAITING)
        (void)snprintf(line, BYTES, "%sforming generation %" PRIu64, stands_still,
                       view->generation);
    else if (progress->no_run)
        (void)snprintf(line, BYTES,
                       "no config given and no run '%.63s' at %.64s yet: waiting for a worker that "
                       "brings it (--config FILE)",
                       progress->options.run, progress->options.endpoint);
    else if (view->n_nodes > 0 && view->n_nodes >= min_nodes)
        (void)snprintf(line, BYTES, "%s%" PRIu32 " %s here, ranks are starting", stands_still,
                       view->n_nodes, nodes_are);
    else if (view->n_nodes > 0)
        (void)snprintf(line, BYTES, "%swaiting for nodes: %" PRIu32 " of %" PRIu32 " at %s",
                       stands_still, view->n_nodes, min_nodes, progress->options.endpoint);
}

/* "" when there is nothing to print: each generation that trains has its own line, the log tells an
 * expulsion, and the closing line tells the end. A node that leaves waits for its steps to be
 * saved, of which the log tells, and not for a generation. */
static void format_state(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                         const struct dpt_progress_run *run, int64_t now_ms, char *line)
{
    enum { BYTES = DPT_TEXT_LINE_BYTES };
    const int64_t patience_ms =
        progress->why[0] != '\0' ? DPT_PROGRESS_PATIENCE_MS : DPT_PROGRESS_LOOKING_MS;
    line[0] = '\0';
    if (view->ended)
        return;
    if (!view->server_up) {
        if (progress->was_up ? !view->leaving : now_ms - progress->first_ms >= patience_ms)
            format_no_server(progress, view, line);
    } else if (is_forming(view)) {
        if (!view->leaving)
            format_forming(progress, view, run->min_nodes, line);
    } else if (view->phase == DPT__SERVER_PHASE__SERVER_DRAINING) {
        (void)snprintf(line, BYTES, "%s; finishing",
                       run->evaluates ? "evaluated" : "all steps are done");
    } else if (view->phase == DPT__SERVER_PHASE__SERVER_SPARE) {
        (void)snprintf(line, BYTES, "generation %" PRIu64 ": this node is a spare",
                       view->generation);
    }
}

/* ---- printed now or held back ---- */

/* Only another node ends this state. */
static bool lacks_nodes(const struct dpt_agent_view *view, const struct dpt_progress_run *run)
{
    return view->phase == DPT__SERVER_PHASE__SERVER_WAITING && view->n_nodes < run->min_nodes;
}

/* The begin of a generation tells why it was formed. Before that a long formation has one line, and
 * one more if nodes are missing. Until training has begun here, a wait for others is printed at
 * once. */
static bool is_due(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                   const struct dpt_progress_run *run, int64_t now_ms)
{
    const bool has_trained = progress->trained_ms != 0;
    const bool lasts = now_ms - progress->state_ms >= DPT_PROGRESS_FORMING_MS;
    if (view->server_up && view->phase == DPT__SERVER_PHASE__SERVER_SPARE)
        return !has_trained || lasts;
    if (!view->server_up || !is_forming(view))
        return true;
    if (!has_trained)
        return progress->no_run || lacks_nodes(view, run) ||
               view->phase == DPT__SERVER_PHASE__SERVER_SETTLING || lasts;
    return now_ms - progress->forming_ms >= DPT_PROGRESS_FORMING_MS &&
           (!progress->forming_printed || lacks_nodes(view, run));
}

/* A person must act on it, so it is printed in spite of --quiet. */
static bool is_never_quiet(const struct dpt_progress *progress, const struct dpt_agent_view *view)
{
    return !view->server_up &&
           (holds_steps(view) || (!progress->was_up && progress->why[0] != '\0'));
}

static void print_state(struct dpt_progress *progress, const struct dpt_agent_view *view,
                        const struct dpt_progress_run *run, int64_t now_ms)
{
    char line[DPT_TEXT_LINE_BYTES];
    format_state(progress, view, run, now_ms, line);
    if (progress->was_gone && view->server_up && !view->ended) {
        (void)snprintf(progress->printed, sizeof progress->printed, "the server at %.256s is back",
                       progress->options.endpoint);
        print(progress, "%s", progress->printed);
    }
    progress->was_gone = progress->was_up && !view->server_up;
    progress->was_up = progress->was_up || view->server_up;
    if (strcmp(line, progress->state) != 0) {
        memcpy(progress->state, line, sizeof line);
        progress->state_ms = now_ms;
    }
    const bool again = !view->server_up && now_ms - progress->printed_ms >= DPT_PROGRESS_AGAIN_MS;
    if (line[0] == '\0' || (!again && strcmp(line, progress->printed) == 0) ||
        !is_due(progress, view, run, now_ms))
        return;
    if (is_never_quiet(progress, view))
        print_always(progress, line);
    else
        print(progress, "%s", line);
    memcpy(progress->printed, line, sizeof line);
    progress->printed_ms = now_ms;
    progress->forming_printed = progress->forming_printed || (view->server_up && is_forming(view));
}

/* ---- a generation begins ---- */

static bool has_cause(const struct dpt_agent_view *view, const char *kind)
{
    return strcmp(view->cause_kind, kind) == 0;
}

static bool has_folder(const struct dpt_progress_run *run)
{
    return run->checkpoint_dir != NULL && run->checkpoint_dir[0] != '\0';
}

/* Where training starts or resumes. Steps that no checkpoint has come from other nodes' memory. */
static void print_begin(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                        const struct dpt_progress_run *run)
{
    char from[DPT_TEXT_LINE_BYTES / 2] = "", folder[DPT_TEXT_LINE_BYTES / 2] = "";
    const char *length = run->epochs > 0 ? "epochs" : "steps";
    const bool is_first_here = progress->trained_ms == 0;
    if (!run->evaluates && is_first_here && run->steps > 0 && view->resume_step >= run->steps) {
        print(progress,
              "generation %" PRIu64 ": already finished at step %" PRId64
              "; for more: --set train.%s=N --allow-change train.%s",
              view->generation, view->resume_step, length, length);
        return;
    }
    if (is_first_here && view->unsaved_steps == 0 && has_folder(run))
        (void)snprintf(folder, sizeof folder, " (checkpoint in %.900s)", run->checkpoint_dir);
    if (!run->evaluates && view->resume_step > 0)
        (void)snprintf(from, sizeof from, " from step %" PRId64 "%.950s", view->resume_step,
                       folder);
    print(progress, "generation %" PRIu64 ": %s on %" PRIu32 " rank%s%s%s", view->generation,
          run->evaluates ? "evaluating" : "training", view->world_size,
          view->world_size == 1 ? "" : "s", from,
          view->first != NULL || run->evaluates ? "" : "; steps are shown where rank 0 is");
}

static void print_recovery(const struct dpt_progress *progress, const struct dpt_agent_view *view)
{
    char line[DPT_TEXT_LINE_BYTES];
    const struct dpt_recovery_facts facts = {.cause = view->cause,
                                             .still_ms = view->still_ms,
                                             .steps_lost = view->steps_lost,
                                             .world_before = progress->world_size,
                                             .world_size = view->world_size};
    dpt_text_recovery(&facts, line);
    print(progress, "%s", line);
}

static void print_generation(struct dpt_progress *progress, const struct dpt_agent_view *view,
                             const struct dpt_progress_run *run, int64_t now_ms)
{
    if (!view->trains || view->generation == progress->generation)
        return;
    if (has_cause(view, "start") || run->evaluates)
        print_begin(progress, view, run);
    else
        print_recovery(progress, view);
    if (progress->trained_ms == 0) {
        progress->trained_ms = now_ms;
        progress->first_step = view->resume_step;
    } else { /* joins and leaves are no failures */
        progress->recoveries +=
            !has_cause(view, "start") && !has_cause(view, "joined") && !has_cause(view, "left");
        progress->steps_lost += view->steps_lost;
    }
    progress->printed[0] = '\0'; /* the state is news again */
    progress->generation = view->generation;
    progress->world_size = view->world_size;
    progress->tokens_per_s = 0;
    /* A node to which rank 0 has just moved prints the step of the world, too: the node that should
     * have printed it may have died before. */
    const int64_t stands_at = view->resume_step - !progress->was_first;
    if (progress->step_printed > stands_at || !progress->was_first)
        progress->step_printed = stands_at;
    if (progress->lines_to > view->resume_step || !progress->was_first)
        progress->lines_to = view->resume_step;
    progress->was_first = view->first != NULL;
}

/* ---- steps ---- */

static void fill_step(struct dpt_progress *progress, const Dpt__StepRecord *step,
                      const struct dpt_progress_run *run, int64_t now_ms)
{
    double *rate = &progress->tokens_per_s;
    if (step->tokens_per_s > 0)
        *rate = *rate > 0 ? *rate + SMOOTH * (step->tokens_per_s - *rate) : step->tokens_per_s;
    const double left_tokens = (double)(run->steps - step->step) * (double)run->tokens_per_step;
    progress->live.step =
        (struct dpt_step_facts){.step = step->step,
                                .steps = run->steps,
                                .loss = step->loss,
                                .lr = step->lr,
                                .grad_norm = step->grad_norm,
                                .tokens_per_s = step->tokens_per_s > 0 ? step->tokens_per_s : *rate,
                                .of_images = run->of_images,
                                .world_size = step->world_size,
                                .elapsed_ms = now_ms - progress->trained_ms,
                                .eta_ms = *rate > 0 ? (int64_t)(left_tokens / *rate * 1e3) : -1};
}

/* Ranks also report the newest step, at which no line is due. */
static bool has_a_line(const struct dpt_progress_run *run, int64_t step)
{
    return run->log_every <= 0 || step % run->log_every == 0 || step == run->steps;
}

/* Names the lines before `step` that died with the process that should have sent them: another rank
 * has written them to the run's log. */
static void print_gap(struct dpt_progress *progress, const struct dpt_progress_run *run,
                      int64_t step)
{
    const int64_t every = run->log_every > 0 ? run->log_every : 1;
    const int64_t first = (progress->lines_to / every + 1) * every;
    const int64_t last = run->log_every > 0 ? (step - 1) / every * every : 0;
    if (first == last)
        print(progress, "(step %" PRId64 " is in metrics.jsonl)", first);
    else if (first < last)
        print(progress, "(steps %" PRId64 "-%" PRId64 " are in metrics.jsonl)", first, last);
    progress->lines_to = step;
}

static void print_epoch(const struct dpt_progress *progress, const Dpt__StepRecord *step,
                        const struct dpt_progress_run *run)
{
    char line[DPT_TEXT_LINE_BYTES];
    const int64_t begins = (step->epoch - 1) * run->epoch_steps + 1;
    dpt_text_epoch(step, run->epochs, step->epoch_first_step <= begins, line);
    print(progress, "%s", line);
}

static void print_steps(struct dpt_progress *progress, const Dpt__RankToAgent *first,
                        const struct dpt_progress_run *run, int64_t now_ms)
{
    char line[DPT_TEXT_LINE_BYTES];
    struct dpt_live_facts *live = &progress->live;
    bool is_news = first->saved_step != live->checkpoint;
    for (size_t i = 0; i < first->n_steps; i++) {
        const Dpt__StepRecord *step = first->steps[i];
        if (step->step <= progress->step_printed)
            continue;
        const bool has_line = progress->options.show == NULL && has_a_line(run, step->step);
        if (has_line)
            print_gap(progress, run, step->step);
        fill_step(progress, step, run, now_ms);
        progress->step_printed = step->step;
        is_news = true;
        if (has_line) {
            dpt_text_step(&live->step, line);
            print(progress, "%s", line);
        }
        if (step->epoch > 0)
            print_epoch(progress, step, run);
    }
    live->checkpoint = first->saved_step;
    if (progress->options.show != NULL && is_news && live->step.step > 0)
        progress->options.show(progress->options.terminal, live);
}

/* A run that only evaluates prints its evaluations in spite of --quiet. */
static void print_evaluation(struct dpt_progress *progress, const struct dpt_agent_evaluation *val,
                             const struct dpt_progress_run *run)
{
    const bool was_quiet = progress->options.quiet;
    progress->options.quiet = was_quiet && !run->evaluates;
    if (val->samples == 0) {
        print(progress, "step %" PRId64 "  val_loss %.6f  perplexity %.4g", val->step, val->loss,
              exp(val->loss));
    } else {
        char share[DPT_TEXT_NUMBER_BYTES];
        dpt_text_share(val->right, val->samples, share);
        print(progress, "step %" PRId64 "  val_loss %.6f", val->step, val->loss);
        print(progress, "Evaluation accuracy: %s", share);
    }
    progress->options.quiet = was_quiet;
    progress->val_printed = val->step;
    progress->live.val = *val;
}

/* ---- the end ---- */

/* The last node leaves a run before its end: where the run can resume, and on the node of rank 0
 * what is known of the run so far. */
static void print_left(struct dpt_progress *progress, const struct dpt_agent_view *view,
                       const struct dpt_progress_run *run, int64_t now_ms)
{
    char line[DPT_TEXT_LINE_BYTES], rows[DPT_TEXT_SUMMARY_BYTES];
    const bool alone =
        view->leaving && view->n_nodes <= 1 && view->phase == DPT__SERVER_PHASE__SERVER_RELEASED;
    if (!view->ended || progress->left_printed || !alone || run->evaluates ||
        progress->held_step <= 0 || progress->unsaved_steps > 0)
        return;
    progress->left_printed = true;
    const bool named = has_folder(run);
    (void)snprintf(line, sizeof line, "step %" PRId64 " is saved%s%.1024s%s", progress->held_step,
                   named ? " (checkpoint in " : "", named ? run->checkpoint_dir : "",
                   named ? ")" : "");
    print_always(progress, line);
    if (!progress->was_first || progress->trained_ms == 0)
        return;
    progress->live.step.elapsed_ms = now_ms - progress->trained_ms;
    const struct dpt_left_facts facts = {.live = &progress->live,
                                         .step = progress->held_step,
                                         .steps = run->steps,
                                         .steps_made = progress->held_step - progress->first_step,
                                         .samples_per_step = run->samples_per_step,
                                         .recoveries = progress->recoveries,
                                         .steps_lost = progress->steps_lost};
    dpt_text_left(&facts, rows);
    print_always(progress, rows);
}

static void note_state(struct dpt_progress *progress, const struct dpt_agent_view *view,
                       const struct dpt_progress_run *run, int64_t now_ms)
{
    if (progress->first_ms == 0)
        progress->first_ms = now_ms;
    progress->all_done = run->steps > 0 && view->step >= run->steps;
    if (view->phase == DPT__SERVER_PHASE__SERVER_SPARE)
        progress->world_size = 0; /* the world may change without this node */
    if (!is_forming(view)) {
        progress->forming_ms = 0;
        progress->forming_printed = false;
    } else if (progress->forming_ms == 0) {
        progress->forming_ms = now_ms;
    }
    if (view->step >= 0) { /* else the ranks have ended */
        progress->held_step = view->step;
        progress->unsaved_steps = view->unsaved_steps;
    }
}

void dpt_progress_update(struct dpt_progress *progress, const struct dpt_agent_view *view,
                         const struct dpt_progress_run *run, int64_t now_ms)
{
    note_state(progress, view, run, now_ms);
    print_generation(progress, view, run, now_ms);
    print_state(progress, view, run, now_ms);
    if (view->leaving && !progress->leaving_printed && view->trains && !view->ended) {
        print(progress, "leaving at the next step boundary");
        progress->leaving_printed = true;
    }
    if (view->first != NULL && !run->evaluates)
        print_steps(progress, view->first, run, now_ms);
    if (view->val.step > progress->val_printed && (view->first != NULL || run->evaluates))
        print_evaluation(progress, &view->val, run);
    print_left(progress, view, run, now_ms);
}
