/* The loop: read events, step the core, carry out its outputs, wait. */
#include "worker/agent/loop.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "worker/agent/progress.h"
#include "worker/agent/ranks.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

static const struct dpt_config empty_config;

struct loop {
    const struct dpt_loop_options *options;
    struct dpt_agent *agent;
    const struct dpt_node *node; /* NULL until there is a config */
    /* The node exists, and its CONFIGURED event has not been given to the core yet. */
    bool configured_pending;
    struct dpt_ranks ranks;
    int signal_fd;
    sigset_t signals;
    int64_t deadline_ms, signalled_ms;
    uint64_t incarnation;
    uint8_t *message; /* the newest state for the server, DPT_MESSAGE_BYTES_MAX */
    size_t message_bytes;
    bool unsent; /* the connection did not take the newest state */
    bool up;     /* there is a connection */
    struct dpt_progress progress;
    bool ended;
    struct dpt_loop_end end;
};

/* ---- outputs of the core ---- */

static void end_loop(struct loop *loop, int exit_code, const char *text)
{
    loop->ended = true;
    loop->end.exit_code = exit_code;
    (void)snprintf(loop->end.text, sizeof loop->end.text, "%.*s", DPT_PROTO_TEXT_BYTES - 1, text);
}

/* Reading the data for its digest may take long, and no rank runs yet. So meanwhile signals end the
 * program at once (worker.c). */
static enum dpt_status configure_from_spec(struct loop *loop, const Dpt__RunSpec *spec,
                                           struct dpt_err *err)
{
    (void)pthread_sigmask(SIG_UNBLOCK, &loop->signals, NULL);
    enum dpt_status status = loop->options->configure(loop->options->ctx, spec, &loop->node, err);
    (void)pthread_sigmask(SIG_BLOCK, &loop->signals, NULL);
    return status == DPT_OK ? dpt_ranks_init(&loop->ranks, loop->options, loop->node, err) : status;
}

static uint64_t server_epoch(const struct loop *loop)
{
    struct dpt_agent_view view;
    dpt_agent_view(loop->agent, &view);
    return view.epoch;
}

/* Time until which this node's lease and its claims allow it to write into its folders. */
static int64_t write_until_ms(const struct loop *loop)
{
    struct dpt_agent_view view;
    dpt_agent_view(loop->agent, &view);
    struct dpt_claims *claims = loop->ranks.claims;
    const int64_t claimed_ms = claims != NULL ? dpt_claims_until_ms(claims) : INT64_MAX;
    return view.write_until_ms < claimed_ms ? view.write_until_ms : claimed_ms;
}

static void note_exit(struct loop *loop, const struct dpt_agent_action *action)
{
    end_loop(loop, action->exit_code, action->text != NULL ? action->text : "");
    loop->end.no_run = loop->progress.no_run && action->exit_code == DPT_EXIT_SERVER;
    memcpy(loop->end.why, loop->progress.why, sizeof loop->end.why);
    loop->end.closing.no_server = !loop->progress.was_heard && loop->end.why[0] != '\0';
    /* Without memory run_config stays NULL, and the closing line names no keys. */
    if (action->spec != NULL && action->spec->config_yaml != NULL)
        loop->end.run_config = strdup(action->spec->config_yaml);
}

static void carry_out_action(struct loop *loop, const struct dpt_agent_action *action)
{
    struct dpt_err err;
    switch (action->kind) {
    case DPT_AGENT_ACTION_CONFIGURE:
        loop->configured_pending = true;
        if (configure_from_spec(loop, action->spec, &err) != DPT_OK)
            end_loop(loop, DPT_EXIT_CONFIG, err.text);
        break;
    case DPT_AGENT_ACTION_SPAWN:
        if (dpt_ranks_start(&loop->ranks, action, server_epoch(loop), &err) != DPT_OK)
            end_loop(loop, DPT_EXIT_CONFIG, err.text);
        break;
    case DPT_AGENT_ACTION_KILL:
        dpt_ranks_kill(&loop->ranks, action);
        break;
    case DPT_AGENT_ACTION_EXIT:
        note_exit(loop, action);
        break;
    case DPT_AGENT_ACTION_COUNT:
        break;
    }
}

/* Sends the newest state. A new connection takes no message for a moment: then the state is sent
 * again after DPT_LOOP_RETRY_MS. Without a connection the state is dropped, and the core makes a
 * new one later. */
static enum dpt_status send_newest_state(struct loop *loop, struct dpt_err *err)
{
    const enum dpt_status status =
        dpt_client_send(loop->options->client, loop->message, loop->message_bytes, err);
    loop->unsent = status == DPT_INPROGRESS && loop->up;
    return status == DPT_INPROGRESS ? DPT_OK : status;
}

static enum dpt_status carry_out_output(struct loop *loop, const struct dpt_agent_output *out,
                                        struct dpt_err *err)
{
    loop->deadline_ms = out->deadline_ms;
    for (size_t i = 0; i < out->n_logs; i++) {
        dpt_log_set_where(-1, out->logs[i].generation, -1);
        dpt_log(out->logs[i].level, "%s", out->logs[i].text);
    }
    for (size_t i = 0; i < out->n_actions; i++)
        carry_out_action(loop, &out->actions[i]);
    for (size_t i = 0; i < out->n_to_ranks; i++) {
        Dpt__AgentToRank message = *out->to_ranks[i].message;
        const int64_t until_ms = write_until_ms(loop);
        if (message.lease_until_ms > until_ms)
            message.lease_until_ms = until_ms;
        dpt_ranks_send(&loop->ranks, out->to_ranks[i].local_rank, out->to_ranks[i].spawn, &message);
    }
    if (out->to_server == NULL)
        return DPT_OK;
    DPT_TRY(dpt_message_encode(&out->to_server->base, loop->message, DPT_MESSAGE_BYTES_MAX,
                               &loop->message_bytes, err));
    return send_newest_state(loop, err);
}

static enum dpt_status step_agent(struct loop *loop, struct dpt_agent_event event,
                                  struct dpt_err *err)
{
    struct dpt_agent_output out;
    int64_t steps[DPT_PROTO_RANKS_MAX] = {0};
    for (int i = 0; i < loop->ranks.n; i++)
        steps[i] = dpt_ranks_step(&loop->ranks, i);
    event.steps = steps;
    event.now_ms = dpt_now_ms();
    DPT_TRY(dpt_agent_step(loop->agent, &event, &out, err));
    return carry_out_output(loop, &out, err);
}

static enum dpt_status feed_agent_configured(struct loop *loop, struct dpt_err *err)
{
    const struct dpt_agent_event event = {.kind = DPT_AGENT_EVENT_CONFIGURED,
                                          .facts = &loop->node->facts};
    loop->configured_pending = false;
    return step_agent(loop, event, err);
}

static enum dpt_status feed_agent(struct loop *loop, struct dpt_agent_event event,
                                  struct dpt_err *err)
{
    DPT_TRY(step_agent(loop, event, err));
    return loop->configured_pending && !loop->ended ? feed_agent_configured(loop, err) : DPT_OK;
}

/* Hands an event without data to the core. */
static enum dpt_status feed_agent_kind(struct loop *loop, enum dpt_agent_event_kind kind,
                                       struct dpt_err *err)
{
    return feed_agent(loop, (struct dpt_agent_event){.kind = kind}, err);
}

/* Tells the core of each rank whose start waits for the claims, so that the rank does not count as
 * silent. */
static enum dpt_status feed_waiting_starts(struct loop *loop, struct dpt_err *err)
{
    for (int i = 0; i < loop->ranks.n && !loop->ended; i++) {
        const struct dpt_agent_event event = {.kind = DPT_AGENT_EVENT_RANK_WAITS,
                                              .local_rank = (uint32_t)i,
                                              .spawn = loop->ranks.slots[i].waiting.spawn};
        if (event.spawn != 0)
            DPT_TRY(feed_agent(loop, event, err));
    }
    return DPT_OK;
}

static enum dpt_status follow_claims(struct loop *loop, struct dpt_err *err)
{
    char text[DPT_ERR_TEXT_BYTES];
    if (loop->ranks.claims == NULL)
        return DPT_OK;
    dpt_claims_set_server(loop->ranks.claims, server_epoch(loop));
    switch (dpt_claims_state(loop->ranks.claims, text)) {
    case DPT_CLAIMS_PENDING:
        return feed_waiting_starts(loop, err);
    case DPT_CLAIMS_HELD:
        dpt_ranks_start_waiting(&loop->ranks);
        break;
    case DPT_CLAIMS_REFUSED:
        end_loop(loop, DPT_EXIT_CONFIG, text);
        break;
    case DPT_CLAIMS_LOST:
        return feed_agent(
            loop, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_DISOWNED, .text = text}, err);
    }
    return DPT_OK;
}

/* ---- events ---- */

/* Whether neither the server nor this node has the run's config. */
static bool brings_no_config(const struct loop *loop, const Dpt__ServerState *message)
{
    return loop->node == NULL && message->spec == NULL && message->version == DPT_PROTO_VERSION &&
           message->counter_seen == 0;
}

/* Neither a config nor a run was named: the loop begins nothing if the server has one run that is
 * not asked for, or several. True: it has ended. */
static bool end_at_runs_of_others(struct loop *loop, const Dpt__ServerState *message)
{
    char text[DPT_PROTO_TEXT_BYTES];
    if (loop->node != NULL || loop->options->worker->names_run)
        return false;
    if (message->version == DPT_PROTO_VERSION && message->n_runs > 1) {
        (void)snprintf(text, sizeof text,
                       "no config given, and the server at %.256s has the runs %.640s: name one "
                       "with --rdzv-id, or give --config FILE",
                       loop->options->endpoint, message->text);
        end_loop(loop, DPT_EXIT_CONFIG, text);
        return true;
    }
    if (!brings_no_config(loop, message) || message->only_run[0] == '\0')
        return false;
    end_loop(loop, DPT_EXIT_DONE, "");
    (void)snprintf(loop->end.other_run, sizeof loop->end.other_run, "%s", message->only_run);
    return true;
}

static enum dpt_status read_server_message(struct loop *loop, const void *bytes, size_t n,
                                           struct dpt_err *err)
{
    Dpt__ServerState *message = NULL;
    struct dpt_err why;
    enum dpt_status status = dpt_message_decode_server_state(bytes, n, &message, &why);
    if (status == DPT_ENOMEM)
        return dpt_fail(err, status, "%s", why.text);
    if (status != DPT_OK) {
        dpt_log(DPT_LOG_WARN, "message from the server dropped: %s", why.text);
        return DPT_OK;
    }
    /* While the server has no config of the named run, the core receives no message. So the core
     * asks again until the join deadline. */
    loop->progress.no_run = brings_no_config(loop, message) && loop->options->worker->names_run &&
                            message->phase == DPT__SERVER_PHASE__SERVER_WAITING;
    if (!end_at_runs_of_others(loop, message) && !loop->progress.no_run)
        status = feed_agent(loop,
                            (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_MESSAGE,
                                                     .server_message = message},
                            err);
    dpt_message_free_server_state(&message);
    return status;
}

/* The core ends with the newest text: the cause may become known after the first one. */
static enum dpt_status tell_denial(struct loop *loop, struct dpt_err *err)
{
    char text[DPT_CLIENT_DENIAL_BYTES];
    (void)dpt_client_is_denied(loop->options->client, text);
    if (strcmp(text, loop->progress.denial) == 0)
        return DPT_OK;
    memcpy(loop->progress.denial, text, sizeof text);
    return feed_agent(
        loop, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_DENIES, .text = text}, err);
}

static enum dpt_status read_client(struct loop *loop, struct dpt_err *err)
{
    struct dpt_client *client = loop->options->client;
    dpt_client_tick(client, dpt_now_ms());
    for (int i = 0; i < DPT_LOOP_EVENTS_MAX && !loop->ended; i++) {
        struct dpt_client_event event;
        const enum dpt_status status = dpt_client_next(client, &event, err);
        if (status != DPT_OK)
            return status == DPT_INPROGRESS ? tell_denial(loop, err) : status;
        loop->progress.answers = event.kind == DPT_CLIENT_MESSAGE;
        if (event.kind == DPT_CLIENT_MESSAGE) {
            DPT_TRY(read_server_message(loop, event.message, event.bytes, err));
            continue;
        }
        loop->up = event.kind == DPT_CLIENT_UP;
        loop->progress.no_run = loop->progress.no_run && loop->up;
        const struct dpt_agent_event change = {.kind = loop->up ? DPT_AGENT_EVENT_SERVER_UP
                                                                : DPT_AGENT_EVENT_SERVER_DOWN,
                                               .round_trip_us = dpt_client_round_trip_us(client)};
        DPT_TRY(feed_agent(loop, change, err));
    }
    return DPT_OK;
}

static enum dpt_status read_signals(struct loop *loop, struct dpt_err *err)
{
    struct signalfd_siginfo info;
    for (int i = 0; i < DPT_LOOP_EVENTS_MAX && !loop->ended; i++) {
        if (read(loop->signal_fd, &info, sizeof info) != (ssize_t)sizeof info)
            return DPT_OK;
        int64_t now_ms = dpt_now_ms();
        if (now_ms - loop->signalled_ms < DPT_LOOP_ECHO_MS)
            continue;
        loop->signalled_ms = now_ms;
        DPT_TRY(feed_agent_kind(loop, DPT_AGENT_EVENT_SIGNAL, err));
    }
    return DPT_OK;
}

/* Whether this node may write. False: its lease has ended, and the server may have expelled it. */
static bool may_write(const struct loop *loop)
{
    return dpt_now_ms() < write_until_ms(loop);
}

static void keep_summary(struct dpt_loop_end *end, const Dpt__RunSummary *summary)
{
    end->has_summary = true;
    end->summary = *summary;
    (void)snprintf(end->weights_hash, sizeof end->weights_hash, "%s", summary->weights_hash);
    end->summary.weights_hash = end->weights_hash;
}

/* Prints the changes of state. Writes log lines that were held back as soon as this node may write,
 * or drops them if their incarnation was expelled. */
static void show_progress(struct loop *loop)
{
    struct dpt_agent_view view;
    dpt_agent_view(loop->agent, &view);
    const int64_t now_ms = dpt_now_ms();
    if (view.incarnation != loop->incarnation)
        dpt_ranks_discard_logs(&loop->ranks);
    else if (now_ms < write_until_ms(loop))
        dpt_ranks_release_logs(&loop->ranks);
    loop->incarnation = view.incarnation;
    dpt_log_set_where(-1, view.generation, -1); /* of the client's lines */
    /* A step of -1 is ignored: the ranks may end before the loop. */
    if (view.step >= 0)
        loop->end.closing.step = view.step;
    loop->end.closing.generation = view.generation;
    loop->end.closing.released = view.phase == DPT__SERVER_PHASE__SERVER_RELEASED ||
                                 (view.leaving && view.phase != DPT__SERVER_PHASE__SERVER_DONE) ||
                                 (view.paused && view.phase == DPT__SERVER_PHASE__SERVER_DONE);
    if (view.first != NULL && view.first->summary != NULL)
        keep_summary(&loop->end, view.first->summary);
    dpt_client_why(loop->options->client, loop->progress.why);
    loop->progress.awaits_new_key = dpt_client_awaits_new_key(loop->options->client);
    dpt_progress_update(&loop->progress, &view,
                        loop->node != NULL ? &loop->node->config : &empty_config, now_ms);
}

static enum dpt_status read_rank(struct loop *loop, int i, struct dpt_err *err)
{
    struct dpt_agent_event event;
    for (int n = 0; n < DPT_LOOP_EVENTS_MAX && !loop->ended; n++) {
        if (!dpt_ranks_next(&loop->ranks, i, may_write(loop), &event))
            break;
        DPT_TRY(feed_agent(loop, event, err));
        /* The next report replaces the steps, so they are printed now. */
        if (event.rank_message != NULL && event.rank_message->n_steps > 0)
            show_progress(loop);
    }
    return DPT_OK;
}

static enum dpt_status wait_for_events(struct loop *loop, struct dpt_err *err)
{
    struct pollfd items[DPT_CLIENT_FDS + 1 + DPT_PROTO_RANKS_MAX * DPT_RANK_FDS_MAX];
    int fds[DPT_CLIENT_FDS], n = 0;
    dpt_client_fds(loop->options->client, fds);
    while (n < DPT_CLIENT_FDS) {
        items[n] = (struct pollfd){.fd = fds[n], .events = POLLIN};
        n++;
    }
    items[n++] = (struct pollfd){.fd = loop->signal_fd, .events = POLLIN};
    n += dpt_ranks_poll(&loop->ranks, items + n);
    int64_t wait_ms = loop->deadline_ms - dpt_now_ms();
    int64_t most_ms =
        loop->unsent || !dpt_ranks_are_claimed(&loop->ranks) ? DPT_LOOP_RETRY_MS : DPT_LOOP_WAIT_MS;
    if (wait_ms > most_ms)
        wait_ms = most_ms;
    wait_ms = dpt_ranks_wait_ms(&loop->ranks, wait_ms < 0 ? 0 : wait_ms);
    if (poll(items, (nfds_t)n, (int)wait_ms) < 0 && errno != EINTR)
        return dpt_fail_errno(err, errno, "wait for events");
    return DPT_OK;
}

static enum dpt_status do_loop_turn(struct loop *loop, struct dpt_err *err)
{
    DPT_TRY(read_signals(loop, err));
    DPT_TRY(read_client(loop, err));
    for (int i = 0; i < loop->ranks.n && !loop->ended; i++)
        DPT_TRY(read_rank(loop, i, err));
    if (!loop->ended)
        DPT_TRY(follow_claims(loop, err));
    if (!loop->ended)
        DPT_TRY(feed_agent_kind(loop, DPT_AGENT_EVENT_TICK, err));
    if (!loop->ended && loop->unsent)
        DPT_TRY(send_newest_state(loop, err));
    show_progress(loop);
    return DPT_OK;
}

/* ---- start and end ---- */

static enum dpt_status open_signal_fd(struct loop *loop, struct dpt_err *err)
{
    DPT_TRY(dpt_signals_block_ends(&loop->signals, err));
    loop->signal_fd = signalfd(-1, &loop->signals, SFD_CLOEXEC | SFD_NONBLOCK);
    return loop->signal_fd >= 0 ? DPT_OK : dpt_fail_errno(err, errno, "signal descriptor");
}

static enum dpt_status start_agent(struct loop *loop, struct dpt_err *err)
{
    DPT_TRY(dpt_orphans_adopt(err));
    DPT_TRY(open_signal_fd(loop, err));
    struct dpt_agent_options agent = loop->options->agent;
    agent.now_ms = dpt_now_ms();
    loop->deadline_ms = agent.now_ms;
    loop->signalled_ms = agent.now_ms - DPT_LOOP_ECHO_MS;
    loop->incarnation = agent.incarnation;
    DPT_TRY(dpt_agent_create(&agent, &loop->agent, err));
    if (loop->node == NULL)
        return feed_agent_kind(loop, DPT_AGENT_EVENT_TICK, err);
    DPT_TRY(dpt_ranks_init(&loop->ranks, loop->options, loop->node, err));
    return feed_agent_configured(loop, err);
}

enum dpt_status dpt_loop_run(const struct dpt_loop_options *options, struct dpt_loop_end *ret,
                             struct dpt_err *err)
{
    struct loop *loop = calloc(1, sizeof *loop);
    if (loop == NULL)
        return dpt_fail_nomem(err, "the agent's loop");
    loop->options = options;
    loop->node = options->node;
    loop->signal_fd = -1;
    loop->message = malloc(DPT_MESSAGE_BYTES_MAX);
    loop->end.closing = (struct dpt_closing_facts){.run = options->agent.run, .step = -1};
    loop->progress =
        (struct dpt_progress){.options = {.terminal = options->terminal,
                                          .print = dpt_terminal_print,
                                          .show = options->live ? dpt_terminal_show : NULL,
                                          .quiet = options->worker->quiet,
                                          .endpoint = options->endpoint,
                                          .source = options->source,
                                          .run = options->agent.run},
                              .step_printed = -1};
    enum dpt_status status = loop->message != NULL ? start_agent(loop, err)
                                                   : dpt_fail_nomem(err, "messages to the server");
    while (status == DPT_OK && !loop->ended) {
        status = do_loop_turn(loop, err);
        if (status == DPT_OK && !loop->ended)
            status = wait_for_events(loop, err);
    }
    bool writes = loop->agent != NULL && (may_write(loop) || loop->end.exit_code == DPT_EXIT_DONE);
    dpt_ranks_fini(&loop->ranks, writes, DPT_LOOP_KILL_WAIT_MS);
    dpt_agent_destroy(&loop->agent);
    if (loop->signal_fd >= 0)
        close(loop->signal_fd);
    free(loop->message);
    if (status == DPT_OK) {
        *ret = loop->end;
        ret->summary.weights_hash = ret->weights_hash;
    } else {
        free(loop->end.run_config);
    }
    free(loop);
    return status;
}
