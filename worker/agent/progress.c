/* When which line is said. */
#include "worker/agent/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define SMOOTH 0.3 /* part of the newest rate in what the time left is reckoned with */

static void say(struct dpt_progress *progress, const char *line)
{
    if (!progress->quiet)
        progress->print(progress->ctx, line);
}

/* ---- the state ---- */

static const char *nodes_are(uint32_t n)
{
    return n == 1 ? "node is" : "nodes are";
}

/* What only this process has waits for a server. */
static bool holds_steps(const struct dpt_agent_view *view)
{
    return !view->computing && view->unsaved_steps > 0;
}

/* What SIGTERM does with steps that only this process has. */
static void print_way_out(const struct dpt_agent_view *view, char *text, size_t bytes)
{
    switch (view->rescue) {
    case DPT_AGENT_RESCUE_WHOLE:
        (void)snprintf(text, bytes, "%s", "or SIGTERM: saves what is held and ends");
        break;
    case DPT_AGENT_RESCUE_PART:
        (void)snprintf(text, bytes,
                       "or SIGTERM on all nodes within %g s: each saves its part and ends",
                       (double)view->timing.drain_ms / 1000);
        break;
    default:
        (void)snprintf(text, bytes, "%s",
                       "SIGTERM ends and loses them: checkpoint.dir names no folder");
        break;
    }
}

static void print_no_server(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                            char *line)
{
    char way_out[96];
    print_way_out(view, way_out, sizeof way_out);
    if (progress->was_up && progress->all_done)
        (void)snprintf(line, DPT_TEXT_LINE_BYTES,
                       "all steps are done, but the last checkpoint and the end need the server at "
                       "%.64s, which is gone: start dpt-rdzv there%s%s%s",
                       progress->endpoint, view->unsaved_steps > 0 ? " (" : "",
                       view->unsaved_steps > 0 ? way_out : "", view->unsaved_steps > 0 ? ")" : "");
    else if (progress->was_up && holds_steps(view))
        (void)snprintf(
            line, DPT_TEXT_LINE_BYTES,
            "the server at %.64s is gone and training stands still: this node keeps step "
            "%" PRId64 ", no checkpoint has the last %" PRId64
            " steps, and it waits without limit: start dpt-rdzv there (%s)",
            progress->endpoint, view->step, view->unsaved_steps, way_out);
    else if (progress->was_up)
        (void)snprintf(line, DPT_TEXT_LINE_BYTES,
                       "the server at %s is gone; training goes on, looking for it",
                       progress->endpoint);
    else
        (void)snprintf(line, DPT_TEXT_LINE_BYTES,
                       "waiting for a server at %s (from %s; --rdzv-endpoint HOST:PORT changes it) "
                       "for at most %" PRId64 " s%s%s",
                       progress->endpoint, progress->source, view->timing.join_ms / 1000,
                       progress->why[0] != '\0' ? ": " : "", progress->why);
}

static bool is_forming(const struct dpt_agent_view *view)
{
    return view->phase == DPT__SERVER_PHASE__SERVER_WAITING ||
           view->phase == DPT__SERVER_PHASE__SERVER_SETTLING ||
           view->phase == DPT__SERVER_PHASE__SERVER_PREPARE ||
           view->phase == DPT__SERVER_PHASE__SERVER_PLAN;
}

/* What a line of state begins with once training has begun here. */
static const char *stands_still(const struct dpt_progress *progress,
                                const struct dpt_agent_view *view)
{
    return progress->trained_ms > 0 && !view->computing ? "training stands still; " : "";
}

static void print_waiting(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                          uint32_t min_nodes, char *line)
{
    enum { BYTES = DPT_TEXT_LINE_BYTES };
    if (progress->no_run)
        (void)snprintf(line, BYTES,
                       "no config given and no run '%.63s' at %.64s yet: waiting for a worker that "
                       "brings it (--config FILE)",
                       progress->run, progress->endpoint);
    else if (view->n_nodes > 0 && view->n_nodes >= min_nodes)
        (void)snprintf(line, BYTES, "%s%" PRIu32 " %s here, ranks are starting",
                       stands_still(progress, view), view->n_nodes, nodes_are(view->n_nodes));
    else if (view->n_nodes > 0)
        (void)snprintf(line, BYTES, "%swaiting for nodes: %" PRIu32 " of %" PRIu32 " at %s",
                       stands_still(progress, view), view->n_nodes, min_nodes, progress->endpoint);
}

/* The state in one line, "" when there is nothing to say. */
static void print_state(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                        const struct dpt_progress_run *run, int64_t now_ms, char *line)
{
    enum { BYTES = DPT_TEXT_LINE_BYTES };
    const int64_t since_ms = now_ms - progress->first_ms;
    const int64_t patience_ms =
        progress->why[0] != '\0' ? DPT_PROGRESS_PATIENCE_MS : DPT_PROGRESS_LOOKING_MS;
    line[0] = '\0';
    if (view->ended)
        return;
    if (!view->server_up && progress->was_up && view->leaving)
        return; /* what becomes of the steps here is said by the rescue */
    if (!view->server_up) {
        if (progress->was_up || since_ms >= patience_ms)
            print_no_server(progress, view, line);
        return;
    }
    if (view->leaving && is_forming(view))
        return; /* it waits for what is saved, not for a generation */
    switch ((int)view->phase) {
    case DPT__SERVER_PHASE__SERVER_WAITING:
        print_waiting(progress, view, run->min_nodes, line);
        break;
    case DPT__SERVER_PHASE__SERVER_SETTLING:
        (void)snprintf(line, BYTES, "%s%" PRIu32 " %s here; last call for more, %.1f s%s%s",
                       stands_still(progress, view), view->n_nodes, nodes_are(view->n_nodes),
                       (double)view->last_call_ms / 1000.0, view->reason[0] != '\0' ? ": " : "",
                       view->reason);
        break;
    case DPT__SERVER_PHASE__SERVER_PREPARE:
    case DPT__SERVER_PHASE__SERVER_PLAN:
        (void)snprintf(line, BYTES, "%sforming generation %" PRIu64, stands_still(progress, view),
                       view->generation);
        break;
    case DPT__SERVER_PHASE__SERVER_DRAINING:
        (void)snprintf(line, BYTES, "%s; finishing",
                       run->evaluates ? "evaluated" : "all steps are done");
        break;
    case DPT__SERVER_PHASE__SERVER_SPARE:
        (void)snprintf(line, BYTES,
                       "generation %" PRIu64 " trains without this node, which stands by",
                       view->generation);
        break;
    default: /* RUNNING is said once a generation, EXPELLED by the log; the ends are told by the
                closing line */
        break;
    }
}

/* ---- what is said at once and what is held back ---- */

/* Only another node ends this. */
static bool lacks_nodes(const struct dpt_agent_view *view, const struct dpt_progress_run *run)
{
    return view->phase == DPT__SERVER_PHASE__SERVER_WAITING && view->n_nodes < run->min_nodes;
}

/* Of a generation that is formed the begin is said, which tells why it was formed. Until then a
 * line is said when it takes long: one, and one more when nodes are missing. Before training has
 * begun here, what is waited for is said at once. */
static bool is_due(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                   const struct dpt_progress_run *run, int64_t now_ms)
{
    const int64_t state_ms = now_ms - progress->held_ms;
    if (view->server_up && view->phase == DPT__SERVER_PHASE__SERVER_SPARE)
        return progress->trained_ms == 0 || state_ms >= DPT_PROGRESS_FORMING_MS;
    if (!view->server_up || !is_forming(view))
        return true;
    if (progress->trained_ms == 0)
        return progress->no_run || lacks_nodes(view, run) ||
               view->phase == DPT__SERVER_PHASE__SERVER_SETTLING ||
               state_ms >= DPT_PROGRESS_FORMING_MS;
    return now_ms - progress->forming_ms >= DPT_PROGRESS_FORMING_MS &&
           (!progress->forming_said || lacks_nodes(view, run));
}

/* What is said though it should be quiet: a person must do something about it. */
static bool is_never_quiet(const struct dpt_progress *progress, const struct dpt_agent_view *view)
{
    return !view->server_up &&
           (holds_steps(view) || (!progress->was_up && progress->why[0] != '\0'));
}

static void say_state(struct dpt_progress *progress, const struct dpt_agent_view *view,
                      const struct dpt_progress_run *run, int64_t now_ms)
{
    char line[DPT_TEXT_LINE_BYTES];
    print_state(progress, view, run, now_ms, line);
    if (progress->was_gone && view->server_up && !view->ended) {
        (void)snprintf(progress->said, sizeof progress->said, "the server at %.256s is back",
                       progress->endpoint);
        say(progress, progress->said);
    }
    progress->was_gone = progress->was_up && !view->server_up;
    progress->was_up = progress->was_up || view->server_up;
    if (strcmp(line, progress->held) != 0) {
        memcpy(progress->held, line, sizeof line);
        progress->held_ms = now_ms;
    }
    bool again = !view->server_up && now_ms - progress->said_ms >= DPT_PROGRESS_AGAIN_MS;
    if (line[0] == '\0' || (!again && strcmp(line, progress->said) == 0) ||
        !is_due(progress, view, run, now_ms))
        return;
    if (is_never_quiet(progress, view))
        progress->print(progress->ctx, line);
    else
        say(progress, line);
    memcpy(progress->said, line, sizeof line);
    progress->said_ms = now_ms;
    progress->forming_said = progress->forming_said || (view->server_up && is_forming(view));
}

/* ---- a generation begins ---- */

/* The first one has cost nothing. */
static bool is_start(const struct dpt_agent_view *view)
{
    return strcmp(view->cause_kind, "start") == 0;
}

/* Something failed; nodes that come and go are no failure. */
static bool is_recovery(const struct dpt_agent_view *view)
{
    return !is_start(view) && strcmp(view->cause_kind, "joined") != 0 &&
           strcmp(view->cause_kind, "left") != 0;
}

/* Where it goes on from, "" at step 0. What no checkpoint has comes from the memory of others. */
static void print_from(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                       const struct dpt_progress_run *run, char *text, size_t bytes)
{
    const bool loaded = progress->trained_ms == 0 && view->unsaved_steps == 0 &&
                        run->checkpoint_dir != NULL && run->checkpoint_dir[0] != '\0';
    text[0] = '\0';
    if (view->resume_step > 0 && loaded)
        (void)snprintf(text, bytes, " from step %" PRId64 " (checkpoint in %.900s)",
                       view->resume_step, run->checkpoint_dir);
    else if (view->resume_step > 0)
        (void)snprintf(text, bytes, " from step %" PRId64, view->resume_step);
}

static void print_begin(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                        const struct dpt_progress_run *run, char *line)
{
    char from[DPT_TEXT_LINE_BYTES / 2] = "";
    const char *length = run->epochs > 0 ? "epochs" : "steps";
    if (!run->evaluates && progress->trained_ms == 0 && run->steps > 0 &&
        view->resume_step >= run->steps) {
        (void)snprintf(line, DPT_TEXT_LINE_BYTES,
                       "generation %" PRIu64 ": already finished at step %" PRId64
                       "; for more: --set train.%s=N --allow-change train.%s",
                       view->generation, view->resume_step, length, length);
        return;
    }
    if (!run->evaluates)
        print_from(progress, view, run, from, sizeof from);
    (void)snprintf(line, DPT_TEXT_LINE_BYTES,
                   "generation %" PRIu64 ": %s on %" PRIu32 " rank%s%s%s", view->generation,
                   run->evaluates ? "evaluating" : "training", view->world_size,
                   view->world_size == 1 ? "" : "s", from,
                   view->is_first || run->evaluates ? "" : "; steps are shown where rank 0 is");
}

static void say_generation(struct dpt_progress *progress, const struct dpt_agent_view *view,
                           const struct dpt_progress_run *run, int64_t now_ms)
{
    char line[DPT_TEXT_LINE_BYTES];
    if (!view->trains || view->generation == progress->generation)
        return;
    const struct dpt_recovery_facts facts = {.cause = view->cause,
                                             .still_ms = view->still_ms,
                                             .steps_lost = view->steps_lost,
                                             .world_before = progress->world_size,
                                             .world_size = view->world_size};
    if (is_start(view) || run->evaluates)
        print_begin(progress, view, run, line);
    else
        dpt_text_recovery(&facts, line);
    say(progress, line);
    if (progress->trained_ms == 0)
        progress->first_step = view->resume_step;
    else
        progress->recoveries += is_recovery(view);
    progress->steps_lost += progress->trained_ms > 0 ? view->steps_lost : 0;
    progress->said[0] = '\0'; /* what follows is news again */
    progress->generation = view->generation;
    progress->world_size = view->world_size;
    progress->tokens_per_s = 0;
    if (progress->trained_ms == 0)
        progress->trained_ms = now_ms;
    /* A node that has just become the first prints the step that the world stands at, too: its line
     * may have gone down with the node that should have printed it. */
    const int64_t stands_at = view->resume_step - !progress->was_first;
    if (progress->step_said > stands_at || !progress->was_first)
        progress->step_said = stands_at;
    if (progress->lines_to > view->resume_step || !progress->was_first)
        progress->lines_to = view->resume_step;
    progress->was_first = view->is_first;
}

/* ---- steps ---- */

static void fill_step(struct dpt_progress *progress, const struct dpt_agent_step *step,
                      const struct dpt_progress_run *run, int64_t now_ms)
{
    struct dpt_step_facts *to = &progress->live.step;
    double *rate = &progress->tokens_per_s;
    if (step->tokens_per_s > 0)
        *rate = *rate > 0 ? *rate + SMOOTH * (step->tokens_per_s - *rate) : step->tokens_per_s;
    const double left_tokens = (double)(run->steps - step->step) * (double)run->tokens_per_step;
    *to =
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

/* Ranks tell the newest step, too, which has none. */
static bool has_a_line(const struct dpt_progress_run *run, int64_t step)
{
    return run->log_every <= 0 || step % run->log_every == 0 || step == run->steps;
}

/* Lines that went down with the process that should have sent them: the run's log has them, as
 * another rank writes it. `step`: the next that has a line here. */
static void say_gap(struct dpt_progress *progress, const struct dpt_progress_run *run, int64_t step)
{
    char line[128];
    const int64_t every = run->log_every;
    if (every > 0) {
        const int64_t first = (progress->lines_to / every + 1) * every;
        const int64_t last = (step - 1) / every * every;
        if (first == last)
            (void)snprintf(line, sizeof line, "(step %" PRId64 " is in metrics.jsonl)", first);
        else
            (void)snprintf(line, sizeof line,
                           "(steps %" PRId64 "-%" PRId64 " are in metrics.jsonl)", first, last);
        if (first <= last)
            say(progress, line);
    }
    progress->lines_to = step;
}

static void say_epoch(struct dpt_progress *progress, const struct dpt_agent_step *step,
                      const struct dpt_progress_run *run)
{
    char line[DPT_TEXT_LINE_BYTES];
    const int64_t begins = (step->epoch - 1) * run->epoch_steps + 1;
    const struct dpt_epoch_facts facts = {.epoch = step->epoch,
                                          .epochs = run->epochs,
                                          .avg_loss = step->epoch_avg_loss,
                                          .seconds = step->epoch_seconds,
                                          .samples_per_s = step->epoch_samples_per_s,
                                          .first_step = step->epoch_first_step,
                                          .last_step = step->step,
                                          .whole = step->epoch_first_step <= begins};
    dpt_text_epoch(&facts, line);
    say(progress, line);
}

static void say_steps(struct dpt_progress *progress, const struct dpt_agent_view *view,
                      const struct dpt_progress_run *run, int64_t now_ms)
{
    char line[DPT_TEXT_LINE_BYTES];
    bool news = false;
    for (size_t i = 0; i < view->n_steps; i++) {
        if (view->steps[i].step <= progress->step_said)
            continue;
        const bool has_line = progress->show == NULL && has_a_line(run, view->steps[i].step);
        if (has_line)
            say_gap(progress, run, view->steps[i].step);
        fill_step(progress, &view->steps[i], run, now_ms);
        progress->step_said = view->steps[i].step;
        news = true;
        if (has_line) {
            dpt_text_step(&progress->live.step, line);
            say(progress, line);
        }
        if (view->steps[i].epoch > 0)
            say_epoch(progress, &view->steps[i], run);
    }
    news = news || view->saved_step != progress->live.checkpoint;
    progress->live.checkpoint = view->saved_step;
    if (progress->show != NULL && news && progress->live.step.step > 0)
        progress->show(progress->ctx, &progress->live);
}

/* A line of an evaluation; of a run that only evaluates it is what was asked for. */
static void say_found(struct dpt_progress *progress, const char *line,
                      const struct dpt_progress_run *run)
{
    if (run->evaluates)
        progress->print(progress->ctx, line);
    else
        say(progress, line);
}

static void say_evaluation(struct dpt_progress *progress, const struct dpt_agent_view *view,
                           const struct dpt_progress_run *run)
{
    char line[DPT_TEXT_LINE_BYTES], share[DPT_TEXT_NUMBER_BYTES];
    if (view->val_samples == 0) {
        (void)snprintf(line, sizeof line, "step %" PRId64 "  val_loss %.6f  perplexity %.4g",
                       view->val_step, view->val_loss, exp(view->val_loss));
        say_found(progress, line, run);
    } else {
        (void)snprintf(line, sizeof line, "step %" PRId64 "  val_loss %.6f", view->val_step,
                       view->val_loss);
        say_found(progress, line, run);
        dpt_text_share(view->val_right, view->val_samples, share);
        (void)snprintf(line, sizeof line, "Evaluation accuracy: %s", share);
        say_found(progress, line, run);
    }
    progress->val_said = view->val_step;
    progress->live.has_val = true;
    progress->live.val_loss = view->val_loss;
    progress->live.val_right = view->val_right;
    progress->live.val_samples = view->val_samples;
}

/* ---- the end ---- */

static void keep_steps_held(struct dpt_progress *progress, const struct dpt_agent_view *view)
{
    if (view->step < 0)
        return; /* the ranks are gone */
    progress->held_step = view->step;
    progress->unsaved_steps = view->unsaved_steps;
}

/* Of the last node, which leaves a run that nobody goes on with: what there is to go on from, and
 * what is known of the run so far. */
static void say_left(struct dpt_progress *progress, const struct dpt_agent_view *view,
                     const struct dpt_progress_run *run, int64_t now_ms)
{
    char line[DPT_TEXT_LINE_BYTES], rows[DPT_TEXT_SUMMARY_BYTES];
    const bool alone =
        view->leaving && view->n_nodes <= 1 && view->phase == DPT__SERVER_PHASE__SERVER_RELEASED;
    if (!view->ended || progress->left_said || !alone || run->evaluates ||
        progress->held_step <= 0 || progress->unsaved_steps > 0)
        return;
    progress->left_said = true;
    const bool named = run->checkpoint_dir != NULL && run->checkpoint_dir[0] != '\0';
    (void)snprintf(line, sizeof line, "step %" PRId64 " is saved%s%.1024s%s", progress->held_step,
                   named ? " (checkpoint in " : "", named ? run->checkpoint_dir : "",
                   named ? ")" : "");
    progress->print(progress->ctx, line);
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
    progress->print(progress->ctx, rows);
}

void dpt_progress_update(struct dpt_progress *progress, const struct dpt_agent_view *view,
                         const struct dpt_progress_run *run, int64_t now_ms)
{
    if (progress->first_ms == 0)
        progress->first_ms = now_ms;
    progress->all_done = run->steps > 0 && view->step >= run->steps;
    if (view->phase == DPT__SERVER_PHASE__SERVER_SPARE)
        progress->world_size = 0; /* others may come and go meanwhile */
    if (!is_forming(view)) {
        progress->forming_ms = 0;
        progress->forming_said = false;
    } else if (progress->forming_ms == 0) {
        progress->forming_ms = now_ms;
    }
    keep_steps_held(progress, view);
    say_generation(progress, view, run, now_ms);
    say_state(progress, view, run, now_ms);
    if (view->leaving && !progress->leaving_said && view->trains && !view->ended) {
        say(progress, "leaving at the next step boundary");
        progress->leaving_said = true;
    }
    if (view->is_first && !run->evaluates)
        say_steps(progress, view, run, now_ms);
    if (view->val_step > progress->val_said && (view->is_first || run->evaluates))
        say_evaluation(progress, view, run);
    say_left(progress, view, run, now_ms);
}
