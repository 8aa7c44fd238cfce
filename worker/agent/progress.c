/* Decides which line is printed when (progress.h). */
#include "worker/agent/progress.h"

#include "base/sample.h"
#include "worker/agent/progress_outage.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Weight of the newest rate in the average rate that predicts the remaining time. */
#define SMOOTH 0.3

enum print_when { UNLESS_QUIET, ALWAYS };

static DPT_PRINTF(3, 4) void print_line(const struct dpt_progress *progress, enum print_when when,
                                        const char *fmt, ...)
{
    char line[DPT_TEXT_LINE_BYTES];
    va_list ap;
    if (progress->options.quiet && when == UNLESS_QUIET)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    progress->options.print(progress->options.terminal, line);
}

/* ---- the state in one line ---- */

/* Whether a server answers over the connection that stands. */
static bool has_server(const struct dpt_progress *progress, const struct dpt_agent_view *view)
{
    return view->server_up && progress->answers;
}

static bool is_forming(const struct dpt_agent_view *view)
{
    return view->phase == DPT__SERVER_PHASE__SERVER_WAITING ||
           view->phase == DPT__SERVER_PHASE__SERVER_SETTLING ||
           view->phase == DPT__SERVER_PHASE__SERVER_PREPARE ||
           view->phase == DPT__SERVER_PHASE__SERVER_PLAN;
}

/* Writes the state while a generation is formed. */
static void format_forming(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                           uint32_t min_nodes, char *line)
{
    enum { BYTES = DPT_TEXT_LINE_BYTES };
    const char *paused = progress->trained_ms > 0 && !view->computing ? "training is paused; " : "";
    const char *nodes_are = view->n_nodes == 1 ? "node is" : "nodes are";
    if (view->phase == DPT__SERVER_PHASE__SERVER_SETTLING)
        (void)snprintf(line, BYTES, "%s%" PRIu32 " %s here; last call for more, %.1f s%s%s", paused,
                       view->n_nodes, nodes_are, (double)view->last_call.length_ms / 1000.0,
                       view->last_call.reason[0] != '\0' ? ": " : "", view->last_call.reason);
    else if (view->phase != DPT__SERVER_PHASE__SERVER_WAITING)
        (void)snprintf(line, BYTES, "%sforming generation %" PRIu64, paused, view->generation);
    else if (view->paused)
        (void)snprintf(line, BYTES,
                       "paused by an operator after step %" PRId64
                       " (dpt-ctl resume lets it go on)",
                       view->step > 0 ? view->step : 0);
    else if (progress->no_run)
        (void)snprintf(line, BYTES,
                       "no config given and no run '%.63s' at %.64s yet: waiting for a worker that "
                       "brings it (--config FILE)",
                       progress->options.run, progress->options.endpoint);
    else if (view->n_nodes > 0 && view->n_nodes >= min_nodes)
        (void)snprintf(line, BYTES, "%s%" PRIu32 " %s here, ranks are starting", paused,
                       view->n_nodes, nodes_are);
    else if (view->n_nodes > 0)
        (void)snprintf(line, BYTES, "%swaiting for nodes: %" PRIu32 " of %" PRIu32 " at %s", paused,
                       view->n_nodes, min_nodes, progress->options.endpoint);
}

/* Writes the line of state; "" if there is nothing to print: a generation that trains has another
 * line, the log has the expulsion, and the closing line has the end. The log also has the steps
 * that a leaving node waits for. */
static void format_state(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                         const struct dpt_config *config, int64_t now_ms, char *line)
{
    enum { BYTES = DPT_TEXT_LINE_BYTES };
    const int64_t patience_ms =
        progress->why[0] != '\0' ? DPT_PROGRESS_PATIENCE_MS : DPT_PROGRESS_LOOKING_MS;
    const bool has_just_connected = view->server_up && progress->why[0] == '\0';
    line[0] = '\0';
    if (view->ended)
        return;
    if (!has_server(progress, view)) {
        if (!has_just_connected &&
            (progress->was_heard ? !view->leaving && !view->ending
                                 : now_ms - progress->first_ms >= patience_ms))
            dpt_progress_outage_text(progress, view, line);
    } else if (is_forming(view)) {
        if (!view->leaving)
            format_forming(progress, view, (uint32_t)config->cluster.nnodes_min, line);
    } else if (view->phase == DPT__SERVER_PHASE__SERVER_DRAINING) {
        (void)snprintf(line, BYTES, "%s; finishing",
                       config->train.eval_only ? "evaluated" : "all steps are done");
    } else if (view->phase == DPT__SERVER_PHASE__SERVER_SPARE) {
        (void)snprintf(line, BYTES, "generation %" PRIu64 ": this node is a spare",
                       view->generation);
    }
}

/* ---- printed now or held back ---- */

/* Whether the run waits for another node. */
static bool lacks_nodes(const struct dpt_agent_view *view, const struct dpt_config *config)
{
    return view->phase == DPT__SERVER_PHASE__SERVER_WAITING &&
           view->n_nodes < (uint32_t)config->cluster.nnodes_min;
}

/* Whether the line of state is printed now. The line of a generation's start gives the cause;
 * before that line, a long formation has one line, and one more if nodes are missing. Until
 * training has begun on this node, a wait for others is printed at once. */
static bool state_line_is_due(const struct dpt_progress *progress,
                              const struct dpt_agent_view *view, const struct dpt_config *config,
                              int64_t now_ms)
{
    const bool has_trained = progress->trained_ms != 0;
    const bool lasts = now_ms - progress->state_ms >= DPT_PROGRESS_FORMING_MS;
    if (!has_server(progress, view))
        return !progress->was_heard || progress->gone_printed ||
               now_ms - progress->state_ms >=
                   (progress->awaits_new_key ? DPT_PROGRESS_NEW_KEY_MS : DPT_PROGRESS_PATIENCE_MS);
    if (view->phase == DPT__SERVER_PHASE__SERVER_SPARE)
        return !has_trained || lasts;
    if (!is_forming(view))
        return true;
    if (!has_trained)
        return progress->no_run || lacks_nodes(view, config) ||
               view->phase == DPT__SERVER_PHASE__SERVER_SETTLING || lasts;
    return now_ms - progress->forming_ms >= DPT_PROGRESS_FORMING_MS &&
           (!progress->forming_printed || lacks_nodes(view, config));
}

/* A line that asks for an action is printed in spite of --quiet. */
static enum print_when when_to_print(const struct dpt_progress *progress,
                                     const struct dpt_agent_view *view)
{
    const bool never_reached = !progress->was_heard && progress->why[0] != '\0';
    const bool asks =
        dpt_progress_waits_with_steps(view) || never_reached || progress->denial[0] != '\0';
    return !has_server(progress, view) && asks ? ALWAYS : UNLESS_QUIET;
}

static void print_state(struct dpt_progress *progress, const struct dpt_agent_view *view,
                        const struct dpt_config *config, int64_t now_ms)
{
    char line[DPT_TEXT_LINE_BYTES];
    const bool here = has_server(progress, view);
    format_state(progress, view, config, now_ms, line);
    if (progress->gone_printed && here && !view->ended) {
        (void)snprintf(progress->printed, sizeof progress->printed, "the server at %.256s is back",
                       progress->options.endpoint);
        print_line(progress, UNLESS_QUIET, "%s", progress->printed);
    }
    progress->gone_printed = progress->gone_printed && !here;
    progress->was_heard = progress->was_heard || here;
    if (strcmp(line, progress->state) != 0) {
        memcpy(progress->state, line, sizeof line);
        progress->state_ms = now_ms;
    }
    const bool again = !here && now_ms - progress->printed_ms >= DPT_PROGRESS_AGAIN_MS;
    if (line[0] == '\0' || (!again && strcmp(line, progress->printed) == 0) ||
        !state_line_is_due(progress, view, config, now_ms))
        return;
    print_line(progress, when_to_print(progress, view), "%s", line);
    memcpy(progress->printed, line, sizeof line);
    progress->printed_ms = now_ms;
    progress->forming_printed = progress->forming_printed || (here && is_forming(view));
    progress->gone_printed = progress->was_heard && !here;
}

/* ---- the start of a generation ---- */

static bool has_cause(const struct dpt_agent_view *view, const char *kind)
{
    return strcmp(view->cause_kind, kind) == 0;
}

static bool has_folder(const struct dpt_config *config)
{
    return config->checkpoint.dir[0] != '\0';
}

/* Prints the step from which training starts or resumes. Steps that no checkpoint has come from the
 * memory of other nodes. */
static void print_begin(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                        const struct dpt_config *config)
{
    char from[DPT_TEXT_LINE_BYTES / 2] = "", folder[DPT_TEXT_LINE_BYTES / 2] = "";
    const char *length = config->train.epochs > 0 ? "epochs" : "steps";
    const bool is_first_here = progress->trained_ms == 0;
    if (!config->train.eval_only && is_first_here && config->train.steps > 0 &&
        view->resume_step >= config->train.steps) {
        print_line(progress, UNLESS_QUIET,
                   "generation %" PRIu64 ": already finished at step %" PRId64
                   "; for more: --set train.%s=N --allow-change train.%s",
                   view->generation, view->resume_step, length, length);
        return;
    }
    if (is_first_here && view->unsaved_steps == 0 && has_folder(config))
        (void)snprintf(folder, sizeof folder, " (checkpoint in %.900s)", config->checkpoint.dir);
    if (!config->train.eval_only && view->resume_step > 0)
        (void)snprintf(from, sizeof from, " from step %" PRId64 "%.950s", view->resume_step,
                       folder);
    print_line(
        progress, UNLESS_QUIET, "generation %" PRIu64 ": %s on %" PRIu32 " rank%s%s%s",
        view->generation, config->train.eval_only ? "evaluating" : "training", view->world_size,
        view->world_size == 1 ? "" : "s", from,
        view->first != NULL || config->train.eval_only ? "" : "; steps are shown where rank 0 is");
}

static void print_recovery(const struct dpt_progress *progress, const struct dpt_agent_view *view)
{
    char line[DPT_TEXT_LINE_BYTES];
    dpt_progress_text_recovery(view, progress->world_size, line);
    print_line(progress, UNLESS_QUIET, "%s", line);
}

static void print_generation(struct dpt_progress *progress, const struct dpt_agent_view *view,
                             const struct dpt_config *config, int64_t now_ms)
{
    if (!view->trains || view->generation == progress->generation)
        return;
    if (has_cause(view, "start") || config->train.eval_only)
        print_begin(progress, view, config);
    else
        print_recovery(progress, view);
    if (progress->trained_ms == 0) {
        progress->trained_ms = now_ms;
        progress->left.first_step = view->resume_step;
    } else {
        /* Joins and leaves do not count as recoveries. */
        progress->left.recoveries +=
            !has_cause(view, "start") && !has_cause(view, "joined") && !has_cause(view, "left");
        progress->left.steps_lost += view->steps_lost;
    }
    /* The next line of state is printed even if it is the same. */
    progress->printed[0] = '\0';
    progress->generation = view->generation;
    progress->world_size = view->world_size;
    progress->tokens_per_s = 0;
    /* If rank 0 has just moved to this node, it prints the world's step again: the node that should
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
                      const struct dpt_config *config, int64_t now_ms)
{
    double *rate = &progress->tokens_per_s;
    if (step->tokens_per_s > 0)
        *rate = *rate > 0 ? *rate + SMOOTH * (step->tokens_per_s - *rate) : step->tokens_per_s;
    const double left_samples =
        (double)(config->train.steps - step->step) * config->train.global_batch;
    const double left_tokens = left_samples * (double)dpt_sample_form(config).positions;
    progress->live.step =
        (struct dpt_step_facts){.step = step->step,
                                .steps = config->train.steps,
                                .loss = step->loss,
                                .lr = step->lr,
                                .grad_norm = step->grad_norm,
                                .tokens_per_s = step->tokens_per_s > 0 ? step->tokens_per_s : *rate,
                                .of_images = dpt_config_reads_images(config),
                                .world_size = step->world_size,
                                .elapsed_ms = now_ms - progress->trained_ms,
                                .eta_ms = *rate > 0 ? (int64_t)(left_tokens / *rate * 1e3) : -1};
}

/* Whether the step has a line. Ranks also report their newest step without a line. */
static bool step_has_line(const struct dpt_config *config, int64_t step)
{
    return config->train.log_every <= 0 || step % config->train.log_every == 0 ||
           step == config->train.steps;
}

/* Prints the range of lines before `step` that are missing here: they died with the process that
 * should have sent them. Another rank has written them to metrics.jsonl. */
static void print_gap(struct dpt_progress *progress, const struct dpt_config *config, int64_t step)
{
    const int64_t every = config->train.log_every > 0 ? config->train.log_every : 1;
    const int64_t first = (progress->lines_to / every + 1) * every;
    const int64_t last = config->train.log_every > 0 ? (step - 1) / every * every : 0;
    if (first == last)
        print_line(progress, UNLESS_QUIET, "(step %" PRId64 " is in metrics.jsonl)", first);
    else if (first < last)
        print_line(progress, UNLESS_QUIET, "(steps %" PRId64 "-%" PRId64 " are in metrics.jsonl)",
                   first, last);
    progress->lines_to = step;
}

static void print_epoch(const struct dpt_progress *progress, const Dpt__StepRecord *step,
                        const struct dpt_config *config)
{
    char line[DPT_TEXT_LINE_BYTES];
    const int64_t begins = (step->epoch - 1) * config->train.epoch_steps + 1;
    dpt_progress_text_epoch(step, config->train.epochs, step->epoch_first_step <= begins, line);
    print_line(progress, UNLESS_QUIET, "%s", line);
}

static void print_steps(struct dpt_progress *progress, const Dpt__RankToAgent *first,
                        const struct dpt_config *config, int64_t now_ms)
{
    char line[DPT_TEXT_LINE_BYTES];
    struct dpt_live_facts *live = &progress->live;
    bool is_news = first->saved_step != live->checkpoint;
    for (size_t i = 0; i < first->n_steps; i++) {
        const Dpt__StepRecord *step = first->steps[i];
        if (step->step <= progress->step_printed)
            continue;
        const bool has_line = progress->options.show == NULL && step_has_line(config, step->step);
        if (has_line)
            print_gap(progress, config, step->step);
        fill_step(progress, step, config, now_ms);
        progress->step_printed = step->step;
        is_news = true;
        if (has_line) {
            dpt_progress_text_step(&live->step, line);
            print_line(progress, UNLESS_QUIET, "%s", line);
        }
        if (step->epoch > 0)
            print_epoch(progress, step, config);
    }
    live->checkpoint = first->saved_step;
    if (progress->options.show != NULL && is_news && live->step.step > 0)
        progress->options.show(progress->options.terminal, live);
}

/* A run that only evaluates prints its evaluations in spite of --quiet. */
static void print_evaluation(struct dpt_progress *progress, const struct dpt_agent_evaluation *val,
                             const struct dpt_config *config)
{
    const enum print_when when = config->train.eval_only ? ALWAYS : UNLESS_QUIET;
    if (val->samples == 0) {
        print_line(progress, when, "step %" PRId64 "  val_loss %.6f  perplexity %.4g", val->step,
                   val->loss, exp(val->loss));
    } else {
        char share[DPT_TEXT_NUMBER_BYTES];
        dpt_progress_text_share(val->right, val->samples, share);
        print_line(progress, when, "step %" PRId64 "  val_loss %.6f", val->step, val->loss);
        print_line(progress, when, "Evaluation accuracy: %s", share);
    }
    progress->val_printed = val->step;
    progress->live.val = *val;
}

/* ---- the end ---- */

/* The last node leaves a run before the run's end, or an operator has stopped the run: prints the
 * step from which the run can resume and, on the node of rank 0, the results so far. Of a stopped
 * run only that node prints. */
static void print_left(struct dpt_progress *progress, const struct dpt_agent_view *view,
                       const struct dpt_config *config, int64_t now_ms)
{
    char line[DPT_TEXT_LINE_BYTES], rows[DPT_TEXT_SUMMARY_BYTES];
    const bool alone =
        view->leaving && view->n_nodes <= 1 && view->phase == DPT__SERVER_PHASE__SERVER_RELEASED;
    const bool stopped =
        view->paused && view->phase == DPT__SERVER_PHASE__SERVER_DONE && progress->was_first;
    if (!view->ended || progress->left_printed || !(alone || stopped) || config->train.eval_only ||
        progress->left.step <= 0 || progress->unsaved_steps > 0)
        return;
    progress->left_printed = true;
    const bool named = has_folder(config);
    (void)snprintf(line, sizeof line, "step %" PRId64 " is saved%s%.1024s%s", progress->left.step,
                   named ? " (checkpoint in " : "", named ? config->checkpoint.dir : "",
                   named ? ")" : "");
    print_line(progress, ALWAYS, "%s", line);
    if (!progress->was_first || progress->trained_ms == 0)
        return;
    progress->live.step.elapsed_ms = now_ms - progress->trained_ms;
    progress->left.steps = config->train.steps;
    progress->left.samples_per_step = config->train.global_batch;
    dpt_progress_text_left(&progress->left, &progress->live, rows);
    print_line(progress, ALWAYS, "%s", rows);
}

static void note_progress_state(struct dpt_progress *progress, const struct dpt_agent_view *view,
                                const struct dpt_config *config, int64_t now_ms)
{
    if (progress->first_ms == 0)
        progress->first_ms = now_ms;
    progress->all_done = config->train.steps > 0 && view->step >= config->train.steps;
    /* The world may change without a spare. */
    if (view->phase == DPT__SERVER_PHASE__SERVER_SPARE)
        progress->world_size = 0;
    if (!is_forming(view)) {
        progress->forming_ms = 0;
        progress->forming_printed = false;
    } else if (progress->forming_ms == 0) {
        progress->forming_ms = now_ms;
    }
    /* A step of -1 is ignored: the ranks have ended. */
    if (view->step >= 0) {
        progress->left.step = view->step;
        progress->unsaved_steps = view->unsaved_steps;
    }
}

void dpt_progress_update(struct dpt_progress *progress, const struct dpt_agent_view *view,
                         const struct dpt_config *config, int64_t now_ms)
{
    note_progress_state(progress, view, config, now_ms);
    print_generation(progress, view, config, now_ms);
    print_state(progress, view, config, now_ms);
    if (view->leaving && !progress->leaving_printed && view->trains && !view->ended) {
        print_line(progress, UNLESS_QUIET, "leaving at the next step boundary");
        progress->leaving_printed = true;
    }
    if (view->first != NULL && !config->train.eval_only)
        print_steps(progress, view->first, config, now_ms);
    if (view->val.step > progress->val_printed && (view->first != NULL || config->train.eval_only))
        print_evaluation(progress, &view->val, config);
    print_left(progress, view, config, now_ms);
}
