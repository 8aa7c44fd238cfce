/* The connection to a server (control_ask.h). */
#include "worker/doctor/control_ask.h"

#include "base/clock.h"
#include "rendezvous/client/client.h"
#include "rendezvous/keys/keyring.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    AGAIN_MS = 1000,
    SILENCE_MS = 3000, /* the socket is replaced after this time without a message */
    EVENTS_MAX = 1024,
    POLL_MS = 50,
    FRAME_BYTES = 1024
};

struct dpt_control_line {
    struct dpt_client *client;
    struct dpt_control_server server;
    bool up;
    uint64_t counter;
    uint64_t incarnation; /* random: copies of a question have one, on any connection */
};

/* A question and its answer. */
struct question {
    struct dpt_control_line *line;
    const Dpt__Control *control;
    int64_t sent_ms; /* 0: not yet */
    Dpt__ServerState *answer;
};

static enum dpt_status draw_incarnation(uint64_t *ret, struct dpt_err *err)
{
    if (getrandom(ret, sizeof *ret, 0) != (ssize_t)sizeof *ret)
        return dpt_fail(err, DPT_EIO, "draw a random number: %s", strerror(errno));
    *ret |= 1; /* 0 is refused */
    return DPT_OK;
}

enum dpt_status dpt_control_open(const struct dpt_control_server *server,
                                 struct dpt_control_line **ret, struct dpt_err *err)
{
    struct dpt_keyring keys;
    DPT_TRY(dpt_keyring_load(
        &(struct dpt_keyring_options){.endpoint = server->endpoint, .key_dir = server->key_dir},
        &keys, err));
    struct dpt_control_line *line = calloc(1, sizeof *line);
    if (line == NULL)
        return dpt_fail_nomem(err, "connection to the server");
    line->server = *server;
    enum dpt_status status = draw_incarnation(&line->incarnation, err);
    if (status == DPT_OK)
        status = dpt_client_create(server->endpoint, SILENCE_MS, &keys, &line->client, err);
    if (status != DPT_OK)
        free(line);
    else
        *ret = line;
    return status;
}

void dpt_control_close(struct dpt_control_line **line)
{
    if (*line == NULL)
        return;
    dpt_client_destroy(&(*line)->client);
    free(*line);
    *line = NULL;
}

/* The stamp only names the run, for machines that may take part in one run only: the server keeps
 * nothing of the sender. */
static enum dpt_status encode_control(const struct question *q, uint8_t frame[FRAME_BYTES],
                                      size_t *ret_bytes, struct dpt_err *err)
{
    const char *program = q->line->server.program;
    char any[] = "-", software[DPT_PROTO_NAME_BYTES];
    Dpt__Stamp stamp = DPT__STAMP__INIT;
    Dpt__AgentState state = DPT__AGENT_STATE__INIT;
    (void)snprintf(software, sizeof software, "%s " DPT_VERSION, program);
    stamp.run = q->control->run[0] != '\0' ? q->control->run : any;
    stamp.node = (char *)program;
    stamp.incarnation = q->line->incarnation;
    state.version = DPT_PROTO_VERSION;
    state.software = software;
    state.stamp = &stamp;
    state.counter = q->line->counter;
    state.control = (Dpt__Control *)q->control;
    return dpt_message_encode(&state.base, frame, FRAME_BYTES, ret_bytes, err);
}

/* A server drops a message that fails its checks, so a wrong name would get no answer. */
static enum dpt_status check_question(const struct question *q, struct dpt_err *err)
{
    uint8_t frame[FRAME_BYTES];
    size_t bytes = 0;
    Dpt__AgentState *decoded = NULL;
    enum dpt_status status = encode_control(q, frame, &bytes, err);
    if (status == DPT_OK)
        status = dpt_message_decode_agent_state(frame, bytes, &decoded, err);
    dpt_message_free_agent_state(&decoded);
    return status == DPT_OK
               ? DPT_OK
               : dpt_fail(err, DPT_EINVAL,
                          "a run and a node are named by up to %d letters, digits, '.', '_', '-'",
                          DPT_PROTO_NAME_BYTES - 1);
}

static enum dpt_status send_question(struct question *q, struct dpt_err *err)
{
    uint8_t frame[FRAME_BYTES];
    size_t bytes = 0;
    DPT_TRY(encode_control(q, frame, &bytes, err));
    const enum dpt_status status = dpt_client_send(q->line->client, frame, bytes, err);
    if (status == DPT_OK)
        q->sent_ms = dpt_now_ms();
    return status == DPT_INPROGRESS ? DPT_OK : status; /* no room: it is sent again */
}

static enum dpt_status judge_answer(const struct dpt_control_server *server,
                                    const Dpt__ServerState *message, struct dpt_err *err)
{
    if (message->version != DPT_PROTO_VERSION)
        return dpt_fail(err, DPT_EVERSION,
                        "the server speaks protocol %u, this %s protocol %d: install the same "
                        "version on both",
                        message->version, server->program, DPT_PROTO_VERSION);
    if (message->reply == NULL && message->phase == DPT__SERVER_PHASE__SERVER_REFUSED)
        return dpt_fail(err, DPT_EREFUSED, "%s", message->text);
    if (message->reply == NULL)
        return dpt_fail(err, DPT_EVERSION,
                        "the server takes no commands: it is of an older version; install the same "
                        "version on both");
    return DPT_OK;
}

static enum dpt_status take_answer(struct question *q, const struct dpt_client_event *event,
                                   struct dpt_err *err)
{
    Dpt__ServerState *message = NULL;
    DPT_TRY(dpt_message_decode_server_state(event->message, event->bytes, &message, err));
    enum dpt_status status = judge_answer(&q->line->server, message, err);
    /* The answer to an earlier question that was asked twice. */
    if (status == DPT_OK && message->reply->verb == q->control->verb && q->sent_ms > 0)
        q->answer = message;
    else
        dpt_message_free_server_state(&message);
    return status;
}

static enum dpt_status take_events(struct question *q, struct dpt_err *err)
{
    for (int i = 0; i < EVENTS_MAX && q->answer == NULL; i++) {
        struct dpt_client_event event;
        const enum dpt_status status = dpt_client_next(q->line->client, &event, err);
        if (status == DPT_INPROGRESS)
            return DPT_OK;
        DPT_TRY(status);
        if (event.kind == DPT_CLIENT_MESSAGE) {
            DPT_TRY(take_answer(q, &event, err));
            continue;
        }
        q->line->up = event.kind == DPT_CLIENT_UP;
        q->sent_ms = 0;
    }
    return DPT_OK;
}

static enum dpt_status await_events(const struct question *q, struct dpt_err *err)
{
    int fds[DPT_CLIENT_FDS];
    struct pollfd items[DPT_CLIENT_FDS];
    dpt_client_fds(q->line->client, fds);
    for (int i = 0; i < DPT_CLIENT_FDS; i++)
        items[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    if (poll(items, DPT_CLIENT_FDS, POLL_MS) < 0 && errno != EINTR)
        return dpt_fail_errno(err, errno, "wait for the server");
    return DPT_OK;
}

static enum dpt_status fail_unanswered(const struct dpt_control_line *line, int64_t timeout_ms,
                                       struct dpt_err *err)
{
    char why[DPT_CLIENT_DENIAL_BYTES] = "";
    dpt_client_why(line->client, why);
    if (why[0] == '\0' && !dpt_client_is_denied(line->client, why) && line->up)
        (void)snprintf(why, sizeof why, "%s", DPT_CLIENT_SILENT);
    return dpt_fail(err, DPT_ESERVER, "no answer of a server at %.100s within %.1f s%s%s",
                    line->server.endpoint, (double)timeout_ms / 1000, why[0] != '\0' ? ": " : "",
                    why);
}

enum dpt_status dpt_control_ask(struct dpt_control_line *line, const Dpt__Control *control,
                                int64_t timeout_ms, Dpt__ServerState **ret, struct dpt_err *err)
{
    struct question q = {.line = line, .control = control};
    const int64_t until_ms = dpt_now_ms() + timeout_ms;
    line->counter++; /* of the question: its copies have the same */
    DPT_TRY(check_question(&q, err));
    for (;;) {
        DPT_TRY(take_events(&q, err));
        const int64_t now_ms = dpt_now_ms();
        if (q.answer != NULL) {
            *ret = q.answer;
            return DPT_OK;
        }
        if (now_ms >= until_ms)
            return fail_unanswered(line, timeout_ms, err);
        dpt_client_tick(line->client, now_ms);
        if (line->up && (q.sent_ms == 0 || now_ms - q.sent_ms > AGAIN_MS))
            DPT_TRY(send_question(&q, err));
        DPT_TRY(await_events(&q, err));
    }
}
