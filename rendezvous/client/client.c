/* Clients, groups of clients, events and time. */
#include "rendezvous/client/internal.h"

#include "base/log.h"
#include "base/parse.h"
#include "rendezvous/keys/enroll.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GROUP_SOCKETS = 3, /* ZeroMQ sockets of a client, both ends of its monitor included */
    RETRY_MS = 500,    /* after a handshake that was refused */
    /* A server that ends or is overloaded may close a connection in its handshake, too. */
    FAILURES_MIN = 5,
    FAILURE_IS_OLD_MS = 5000
};

struct dpt_client_group {
    void *context;
};

enum dpt_status dpt_client_check_endpoint(const char *endpoint, struct dpt_err *err)
{
    struct dpt_err why;
    enum dpt_status status =
        strstr(endpoint, "://") != NULL
            ? dpt_fail(&why, DPT_EINVAL, "'%s': leave out the protocol", endpoint)
            : dpt_parse_endpoint(endpoint, &why);
    if (status == DPT_OK && strlen(endpoint) >= DPT_CLIENT_ENDPOINT_BYTES - sizeof "tcp://")
        status = dpt_fail(&why, DPT_EINVAL, "'%s' is too long", endpoint);
    if (status == DPT_OK && strcspn(endpoint, " \t\r\n/;*") != strlen(endpoint))
        status =
            dpt_fail(&why, DPT_EINVAL, "'%s' holds a character that no host name has", endpoint);
    return status == DPT_OK ? DPT_OK
                            : dpt_fail(err, DPT_ECONFIG, "rendezvous endpoint: %s", why.text);
}

/* context NULL: the client makes one. */
static enum dpt_status create_client(void *context, const char *endpoint, int silence_ms,
                                     const struct dpt_keyring *keys, struct dpt_client **ret,
                                     struct dpt_err *err)
{
    DPT_ASSERT(silence_ms > 0);
    DPT_TRY(dpt_client_check_endpoint(endpoint, err));
    struct dpt_client *client = calloc(1, sizeof *client);
    if (client == NULL)
        return dpt_fail_nomem(err, "rendezvous client");
    client->fds[0] = client->fds[1] = client->newest.fd = -1;
    client->silence_ms = silence_ms;
    client->keys = *keys;
    client->enrolling = client->asked_token = !keys->open && keys->has_token && keys->enroll_first;
    client->last_tick_ms = client->first_tick_ms = -1;
    (void)snprintf(client->address, sizeof client->address, "tcp://%s", endpoint);
    (void)zmq_msg_init(&client->message); /* cannot fail */
    client->borrows_context = context != NULL;
    client->context = context != NULL ? context : zmq_ctx_new();
    enum dpt_status status = client->context == NULL ? client_fail_zmq(err, "start ZeroMQ")
                                                     : client_open_socket(client, err);
    if (status != DPT_OK)
        dpt_client_destroy(&client);
    else
        *ret = client;
    return status;
}

enum dpt_status dpt_client_create(const char *endpoint, int silence_ms,
                                  const struct dpt_keyring *keys, struct dpt_client **ret,
                                  struct dpt_err *err)
{
    return create_client(NULL, endpoint, silence_ms, keys, ret, err);
}

enum dpt_status dpt_client_create_in(struct dpt_client_group *group, const char *endpoint,
                                     int silence_ms, const struct dpt_keyring *keys,
                                     struct dpt_client **ret, struct dpt_err *err)
{
    return create_client(group->context, endpoint, silence_ms, keys, ret, err);
}

static void end_context(void *context)
{
    if (context != NULL)
        while (zmq_ctx_term(context) != 0 && zmq_errno() == EINTR)
            continue; /* ends: LINGER bounds it */
}

void dpt_client_destroy(struct dpt_client **client_p)
{
    struct dpt_client *client = *client_p;
    *client_p = NULL;
    if (client == NULL)
        return;
    dpt_reach_stop(&client->reach);
    client_close_socket(client, DPT_CLIENT_LINGER_MS);
    (void)zmq_msg_close(&client->message);
    if (!client->borrows_context)
        end_context(client->context);
    free(client);
}

enum dpt_status dpt_client_group_create(int clients_max, struct dpt_client_group **ret,
                                        struct dpt_err *err)
{
    struct dpt_client_group *group = calloc(1, sizeof *group);
    if (group == NULL)
        return dpt_fail_nomem(err, "rendezvous clients");
    /* Twice: closed sockets count until ZeroMQ has cleaned them up. */
    group->context = zmq_ctx_new();
    if (group->context == NULL ||
        zmq_ctx_set(group->context, ZMQ_MAX_SOCKETS, 2 * GROUP_SOCKETS * clients_max) != 0) {
        enum dpt_status status = client_fail_zmq(err, "start ZeroMQ");
        dpt_client_group_destroy(&group);
        return status;
    }
    *ret = group;
    return DPT_OK;
}

void dpt_client_group_destroy(struct dpt_client_group **group_p)
{
    struct dpt_client_group *group = *group_p;
    *group_p = NULL;
    if (group == NULL)
        return;
    end_context(group->context);
    free(group);
}

enum dpt_status dpt_client_send(struct dpt_client *client, const void *message, size_t bytes,
                                struct dpt_err *err)
{
    if (bytes > DPT_MESSAGE_BYTES_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "message of %zu bytes to the server (at most %d)",
                        bytes, DPT_MESSAGE_BYTES_MAX);
    if (client->socket == NULL || client->enrolling)
        return DPT_INPROGRESS;
    if (zmq_send(client->socket, message, bytes, ZMQ_DONTWAIT) >= 0)
        return DPT_OK;
    if (zmq_errno() == EAGAIN || zmq_errno() == EINTR)
        return DPT_INPROGRESS;
    return client_fail_zmq(err, "send to the server");
}

/* ---- events ---- */

/* Reads one monitor event (number and value, then the address); 0: none. */
static int next_monitor_event(struct dpt_client *client, uint32_t *ret_value)
{
    uint8_t parts[2][256];
    int length = zmq_recv(client->monitor, parts[0], sizeof parts[0], ZMQ_DONTWAIT);
    uint16_t number;
    if (length < (int)(sizeof number + sizeof *ret_value))
        return 0;
    memcpy(&number, parts[0], sizeof number); /* host order, see zmq_socket_monitor(3) */
    memcpy(ret_value, parts[0] + sizeof number, sizeof *ret_value);
    (void)zmq_recv(client->monitor, parts[1], sizeof parts[1], ZMQ_DONTWAIT);
    return number;
}

/* The connection has been made, or has ended without being given up. */
static void note_connection(struct dpt_client *client, bool up)
{
    if (!up) {
        client->silence.gave_up_ms = 0;
        return;
    }
    client_measure_link(client);
    client->was_up = true;
    client->refused = client->silence.answered = false;
    client->failures = (struct client_failures){0};
}

enum dpt_status dpt_client_next(struct dpt_client *client, struct dpt_client_event *ret,
                                struct dpt_err *err)
{
    *ret = (struct dpt_client_event){.kind = DPT_CLIENT_DOWN};
    if (client->gave_up) {
        client->gave_up = false;
        return DPT_OK;
    }
    if (client->socket == NULL)
        return DPT_INPROGRESS;
    /* Events alternate between connected, up, and down or a refusal, so this loop is short. */
    uint32_t value = 0;
    for (int number; (number = next_monitor_event(client, &value)) != 0;) {
        if (number == ZMQ_EVENT_CONNECTED) {
            client->newest.fd = (int)value;
            continue;
        }
        const bool failed = number == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL ||
                            number == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;
        if (number == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL ||
            number == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
            client_note_end(client);
        if (failed)
            client_handshake_failed(client);
        if (number == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH &&
            (value == DPT_ENROLL_ZAP_UNKNOWN || value == DPT_ENROLL_ZAP_SPENT))
            DPT_TRY(client_change_refused_key(client, value == DPT_ENROLL_ZAP_SPENT, err));
        if (client->socket == NULL)
            return DPT_INPROGRESS;
        if (failed || number == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
            continue;
        bool up = number == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
        if (up == client->up)
            continue;
        client->up = up;
        client->heard = client->heard || up;
        if (up)
            client_settle_keys(client);
        if (client->enrolling) {
            if (up)
                DPT_TRY(client_request_admission(client, err));
            continue;
        }
        note_connection(client, up);
        ret->kind = up ? DPT_CLIENT_UP : DPT_CLIENT_DOWN;
        return DPT_OK;
    }
    if (client->enrolling)
        return client_take_admission(client, err);
    DPT_TRY(client_receive(client, ret, err));
    while (client_take_next_key(client, ret)) /* a server sends it once over a connection */
        DPT_TRY(client_receive(client, ret, err));
    client->silence.answered = true;
    client->silence.gave_up_ms = 0;
    return DPT_OK;
}

uint32_t dpt_client_round_trip_us(const struct dpt_client *client)
{
    return client->newest.round_trip_us;
}

void dpt_client_fds(const struct dpt_client *client, int ret_fds[DPT_CLIENT_FDS])
{
    memcpy(ret_fds, client->fds, sizeof client->fds);
}

/* Starts a search for the reason why there is no connection, because ZeroMQ retries without giving
 * one. */
static void look_for_reason(struct dpt_client *client, int64_t now_ms)
{
    if (client->first_tick_ms < 0)
        client->first_tick_ms = now_ms;
    if (client->was_up)
        dpt_reach_stop(&client->reach);
    if (client->was_up || client->looked || now_ms - client->first_tick_ms < DPT_CLIENT_PATIENCE_MS)
        return;
    struct dpt_err err;
    client->looked = true;
    if (dpt_reach_start(client_endpoint(client), &client->keys, &client->reach, &err) != DPT_OK)
        dpt_log(DPT_LOG_WARN, "cannot look for the reason why the server is not reached: %s",
                err.text);
}

void dpt_client_why(const struct dpt_client *client, char ret[DPT_CLIENT_WHY_BYTES])
{
    ret[0] = '\0';
    if (client->reach != NULL)
        dpt_reach_text(client->reach, ret);
    else if (client->silence.gave_up_ms > 0)
        (void)snprintf(ret, DPT_CLIENT_WHY_BYTES, "%s", DPT_CLIENT_SILENT);
}

bool dpt_client_awaits_new_key(const struct dpt_client *client)
{
    return client->keys.has_next;
}

/* Keeps the cause of handshakes that fail: the search may have no result for a moment. */
static void note_cause(struct dpt_client *client)
{
    char why[DPT_CLIENT_WHY_BYTES];
    if (client->reach == NULL || client->failures.n == 0)
        return;
    dpt_reach_text(client->reach, why);
    if (why[0] != '\0')
        memcpy(client->failures.cause, why, sizeof why);
}

bool dpt_client_is_denied(const struct dpt_client *client, char ret[DPT_CLIENT_DENIAL_BYTES])
{
    const char *unknown =
        client->was_up
            ? "it has another key than before, or none. If that is right, start this worker again "
              "with --rdzv-token as that server prints it at its start"
            : "it has another key than this machine expects, or none, or is too busy. Give the "
              "token that it prints at its start (" DPT_CLIENT_TOKEN_BY ")";
    char hex[DPT_KEY_HEX_BYTES];
    ret[0] = '\0';
    dpt_key_hex(&client->keys.machine.public_key, hex);
    if (client->refused)
        (void)snprintf(ret, DPT_CLIENT_DENIAL_BYTES,
                       "the server at %s no longer admits this machine's key %.8s: it was denied "
                       "there, and then no token helps; or the server has lost its list. Let the "
                       "key in again (a line with define, the key and a name in the file "
                       "'machines' of the server's key folder)",
                       client_endpoint(client), hex);
    else if (client->failures.n >= FAILURES_MIN &&
             client->last_tick_ms - client->failures.newest_ms < FAILURE_IS_OLD_MS)
        (void)snprintf(ret, DPT_CLIENT_DENIAL_BYTES, "no handshake with the server at %s: %s",
                       client_endpoint(client),
                       client->failures.cause[0] != '\0' ? client->failures.cause : unknown);
    return ret[0] != '\0';
}

void dpt_client_tick(struct dpt_client *client, int64_t now_ms)
{
    look_for_reason(client, now_ms);
    note_cause(client);
    /* A process that was suspended could not receive, so the silence counts from now. */
    bool slept = client->last_tick_ms < 0 || now_ms - client->last_tick_ms > client->silence_ms / 2;
    if (client->heard || slept || !client->up)
        client->last_heard_ms = now_ms;
    client->heard = false;
    client->last_tick_ms = now_ms;
    if (now_ms - client->silence.gave_up_ms >= 2 * (int64_t)client->silence_ms + FAILURE_IS_OLD_MS)
        client->silence.gave_up_ms = 0;
    if (client->ended && now_ms - client->ended_ms >= RETRY_MS) {
        client_replace_socket(client);
        return;
    }
    if (client->socket != NULL && now_ms - client->last_heard_ms < client->silence_ms)
        return;
    dpt_log(DPT_LOG_DEBUG, "nothing heard from %s for %d ms, reconnecting", client_endpoint(client),
            client->silence_ms);
    client->gave_up = client->gave_up || (client->up && !client->enrolling);
    if (client->up && !client->enrolling && !client->silence.answered)
        client->silence.gave_up_ms = now_ms;
    client->last_heard_ms = now_ms;
    client_replace_socket(client);
}
