/* Asks a server for the status of a run (hang.h). */
#include "worker/doctor/hang.h"

#include "base/clock.h"
#include "rendezvous/client/client.h"
#include "rendezvous/keys/keyring.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum { AGAIN_MS = 1000, EVENTS_MAX = 1024, POLL_MS = 50, FRAME_BYTES = 512 };

struct question {
    struct dpt_client *client;
    const char *run;
    uint64_t counter;
    int64_t sent_ms; /* 0: not yet */
    bool answered;
};

/* The server keeps nothing of the question; the node's name only fills the stamp. */
static enum dpt_status encode_question(struct question *q, uint8_t frame[FRAME_BYTES],
                                       size_t *ret_bytes, struct dpt_err *err)
{
    char any[] = "-", node[] = "dpt-doctor", software[] = "dpt-doctor " DPT_VERSION;
    Dpt__Stamp stamp = DPT__STAMP__INIT;
    Dpt__AgentState state = DPT__AGENT_STATE__INIT;
    stamp.run = q->run[0] != '\0' ? (char *)q->run : any;
    stamp.node = node;
    stamp.incarnation = 1;
    state.version = DPT_PROTO_VERSION;
    state.software = software;
    state.stamp = &stamp;
    state.counter = ++q->counter;
    state.asks_status = true;
    return dpt_message_encode(&state.base, frame, FRAME_BYTES, ret_bytes, err);
}

/* A server drops a message that fails its checks, so a wrong name would get no answer. */
static enum dpt_status check_question(struct question *q, struct dpt_err *err)
{
    uint8_t frame[FRAME_BYTES];
    size_t bytes = 0;
    Dpt__AgentState *decoded = NULL;
    enum dpt_status status = encode_question(q, frame, &bytes, err);
    if (status == DPT_OK)
        status = dpt_message_decode_agent_state(frame, bytes, &decoded, err);
    dpt_message_free_agent_state(&decoded);
    return status == DPT_OK ? DPT_OK : dpt_wrap(err, DPT_EINVAL, "--run '%.80s'", q->run);
}

static enum dpt_status send_question(struct question *q, struct dpt_err *err)
{
    uint8_t frame[FRAME_BYTES];
    size_t bytes = 0;
    DPT_TRY(encode_question(q, frame, &bytes, err));
    const enum dpt_status status = dpt_client_send(q->client, frame, bytes, err);
    q->sent_ms = dpt_now_ms();
    return status == DPT_INPROGRESS ? DPT_OK : status; /* no room: it is sent again */
}

static enum dpt_status take_answer(struct question *q, const struct dpt_client_event *event,
                                   struct dpt_hang_view *ret, struct dpt_err *err)
{
    Dpt__ServerState *message = NULL;
    DPT_TRY(dpt_message_decode_server_state(event->message, event->bytes, &message, err));
    const enum dpt_status status = dpt_hang_take(message, ret, err);
    dpt_message_free_server_state(&message);
    q->answered = true;
    return status;
}

static enum dpt_status take_events(struct question *q, struct dpt_hang_view *ret,
                                   struct dpt_err *err)
{
    for (int i = 0; i < EVENTS_MAX && !q->answered; i++) {
        struct dpt_client_event event;
        const enum dpt_status status = dpt_client_next(q->client, &event, err);
        if (status == DPT_INPROGRESS)
            return DPT_OK;
        DPT_TRY(status);
        if (event.kind == DPT_CLIENT_UP)
            DPT_TRY(send_question(q, err));
        else if (event.kind == DPT_CLIENT_MESSAGE)
            DPT_TRY(take_answer(q, &event, ret, err));
    }
    return DPT_OK;
}

static enum dpt_status await_answer(struct question *q, int64_t until_ms, struct dpt_hang_view *ret,
                                    struct dpt_err *err)
{
    for (;;) {
        DPT_TRY(take_events(q, ret, err));
        const int64_t now_ms = dpt_now_ms();
        if (q->answered)
            return DPT_OK;
        if (now_ms >= until_ms)
            return DPT_ESERVER;
        dpt_client_tick(q->client, now_ms);
        if (q->sent_ms > 0 && now_ms - q->sent_ms > AGAIN_MS)
            DPT_TRY(send_question(q, err));
        int fds[DPT_CLIENT_FDS];
        struct pollfd items[DPT_CLIENT_FDS];
        dpt_client_fds(q->client, fds);
        for (int i = 0; i < DPT_CLIENT_FDS; i++)
            items[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
        if (poll(items, DPT_CLIENT_FDS, POLL_MS) < 0 && errno != EINTR)
            return dpt_fail_errno(err, errno, "wait for the server");
    }
}

enum dpt_status dpt_hang_ask(const char *server, const char *run, int64_t timeout_ms,
                             struct dpt_hang_view *ret, struct dpt_err *err)
{
    struct question q = {.run = run};
    char why[DPT_CLIENT_WHY_BYTES] = "";
    /* The socket is not replaced for silence before the question is given up. */
    const int silence_ms = (int)timeout_ms + 2 * AGAIN_MS;
    struct dpt_keyring keys;
    DPT_TRY(check_question(&q, err));
    DPT_TRY(dpt_client_check_endpoint(server, err));
    DPT_TRY(dpt_keyring_load(&(struct dpt_keyring_options){.endpoint = server}, &keys, err));
    DPT_TRY(dpt_client_create(server, silence_ms, &keys, &q.client, err));
    enum dpt_status status = await_answer(&q, dpt_now_ms() + timeout_ms, ret, err);
    if (status == DPT_ESERVER) {
        dpt_client_why(q.client, why);
        status = dpt_fail(err, DPT_ESERVER, "no answer of a server at %.100s within %.1f s%s%s",
                          server, (double)timeout_ms / 1000, why[0] != '\0' ? ": " : "", why);
    }
    dpt_client_destroy(&q.client);
    return status;
}
