/* One ZeroMQ DEALER that reconnects, and is replaced after silence_ms without a message. */
#include "rendezvous/client/client.h"

#include "base/log.h"
#include "base/parse.h"
#include "rendezvous/client/reach.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum {
    RECONNECT_FIRST_MS = 50,
    RECONNECT_LAST_MS = 500,
    CONNECT_TIMEOUT_MS = 2000,
    HANDSHAKE_TIMEOUT_MS = 2000,
    PARTS_MAX = 16,   /* parts of malformed messages that one call drops; then it fails */
    GROUP_SOCKETS = 3 /* ZeroMQ sockets of a client, both ends of its monitor included */
};

struct dpt_client_group {
    void *context;
};

struct dpt_client {
    void *context, *socket;
    bool borrows_context;                    /* that of a group */
    void *monitor;                           /* reports the start and the end of the connection */
    char address[DPT_CLIENT_ENDPOINT_BYTES]; /* tcp://… */
    int silence_ms;
    int fds[DPT_CLIENT_FDS];
    uint32_t sockets; /* number of sockets opened so far; part of a monitor's name */
    bool up;
    bool gave_up;      /* the socket was replaced, and DOWN is still to be returned */
    zmq_msg_t message; /* received last */
    bool heard;        /* a message or a connection came since the last tick */
    int64_t last_heard_ms, last_tick_ms;
    int64_t first_tick_ms;   /* -1: there was no tick */
    bool was_up, looked;     /* a connection was made; the search for a reason was started */
    struct dpt_reach *reach; /* search for the reason, until a connection is made; else NULL */
};

static enum dpt_status fail_zmq(struct dpt_err *err, const char *what)
{
    int saved = zmq_errno();
    return dpt_fail(err, saved == ENOMEM ? DPT_ENOMEM : DPT_EIO, "%s: %s", what,
                    zmq_strerror(saved));
}

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

static int set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value);
}

static void close_socket(struct dpt_client *client, int linger_ms)
{
    /* None of these can fail on an open socket. */
    if (client->socket != NULL) {
        (void)zmq_socket_monitor(client->socket, NULL, 0);
        (void)set_int(client->socket, ZMQ_LINGER, linger_ms);
        (void)zmq_close(client->socket);
    }
    if (client->monitor != NULL)
        (void)zmq_close(client->monitor);
    client->socket = client->monitor = NULL;
    client->fds[0] = client->fds[1] = -1;
    client->up = false;
}

static enum dpt_status open_monitor(struct dpt_client *client, struct dpt_err *err)
{
    char name[64]; /* clients of a group share the names of their context */
    (void)snprintf(name, sizeof name, "inproc://dpt-client-monitor-%p-%u", (void *)client,
                   client->sockets++);
    if (zmq_socket_monitor(client->socket, name,
                           ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED) != 0)
        return fail_zmq(err, "watch a ZeroMQ socket");
    client->monitor = zmq_socket(client->context, ZMQ_PAIR);
    if (client->monitor == NULL || set_int(client->monitor, ZMQ_LINGER, 0) != 0 ||
        zmq_connect(client->monitor, name) != 0)
        return fail_zmq(err, "watch a ZeroMQ socket");
    return DPT_OK;
}

static enum dpt_status read_fd(void *socket, int *ret, struct dpt_err *err)
{
    size_t bytes = sizeof *ret;
    if (zmq_getsockopt(socket, ZMQ_FD, ret, &bytes) != 0)
        return fail_zmq(err, "descriptor of a ZeroMQ socket");
    return DPT_OK;
}

static enum dpt_status open_socket(struct dpt_client *client, struct dpt_err *err)
{
    client->socket = zmq_socket(client->context, ZMQ_DEALER);
    if (client->socket == NULL)
        return fail_zmq(err, "open a ZeroMQ socket");
    /* IMMEDIATE: ZeroMQ queues nothing while there is no connection, so it sends nothing stale
     * later. ZeroMQ's heartbeats find a dead connection; `silence_ms` finds a dead server behind a
     * live connection. */
    const struct {
        int option, value;
    } settings[] = {
        {ZMQ_IPV6, 1},
        {ZMQ_IMMEDIATE, 1},
        {ZMQ_LINGER, DPT_CLIENT_LINGER_MS},
        {ZMQ_SNDHWM, DPT_CLIENT_QUEUE_MAX},
        {ZMQ_RCVHWM, DPT_CLIENT_RECEIVED_MAX},
        {ZMQ_RECONNECT_IVL, RECONNECT_FIRST_MS},
        {ZMQ_RECONNECT_IVL_MAX, RECONNECT_LAST_MS},
        {ZMQ_CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS},
        {ZMQ_HANDSHAKE_IVL, HANDSHAKE_TIMEOUT_MS},
        {ZMQ_HEARTBEAT_IVL, client->silence_ms / 2},
        {ZMQ_HEARTBEAT_TIMEOUT, client->silence_ms},
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        if (set_int(client->socket, settings[i].option, settings[i].value) != 0)
            return fail_zmq(err, "set up a ZeroMQ socket");
    int64_t bytes_max = DPT_MESSAGE_BYTES_MAX;
    if (zmq_setsockopt(client->socket, ZMQ_MAXMSGSIZE, &bytes_max, sizeof bytes_max) != 0)
        return fail_zmq(err, "set up a ZeroMQ socket");
    DPT_TRY(open_monitor(client, err));
    if (zmq_connect(client->socket, client->address) != 0)
        return dpt_fail(err, DPT_ECONFIG, "rendezvous endpoint '%s': %s",
                        client->address + strlen("tcp://"), zmq_strerror(zmq_errno()));
    DPT_TRY(read_fd(client->socket, &client->fds[0], err));
    return read_fd(client->monitor, &client->fds[1], err);
}

/* context NULL: the client makes one. */
static enum dpt_status create_client(void *context, const char *endpoint, int silence_ms,
                                     struct dpt_client **ret, struct dpt_err *err)
{
    DPT_ASSERT(silence_ms > 0);
    DPT_TRY(dpt_client_check_endpoint(endpoint, err));
    struct dpt_client *client = calloc(1, sizeof *client);
    if (client == NULL)
        return dpt_fail_nomem(err, "rendezvous client");
    client->fds[0] = client->fds[1] = -1;
    client->silence_ms = silence_ms;
    client->last_tick_ms = client->first_tick_ms = -1;
    (void)snprintf(client->address, sizeof client->address, "tcp://%s", endpoint);
    (void)zmq_msg_init(&client->message); /* cannot fail */
    client->borrows_context = context != NULL;
    client->context = context != NULL ? context : zmq_ctx_new();
    enum dpt_status status =
        client->context == NULL ? fail_zmq(err, "start ZeroMQ") : open_socket(client, err);
    if (status != DPT_OK)
        dpt_client_destroy(&client);
    else
        *ret = client;
    return status;
}

enum dpt_status dpt_client_create(const char *endpoint, int silence_ms, struct dpt_client **ret,
                                  struct dpt_err *err)
{
    return create_client(NULL, endpoint, silence_ms, ret, err);
}

enum dpt_status dpt_client_create_in(struct dpt_client_group *group, const char *endpoint,
                                     int silence_ms, struct dpt_client **ret, struct dpt_err *err)
{
    return create_client(group->context, endpoint, silence_ms, ret, err);
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
    close_socket(client, DPT_CLIENT_LINGER_MS);
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
        enum dpt_status status = fail_zmq(err, "start ZeroMQ");
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
    if (client->socket == NULL)
        return DPT_INPROGRESS;
    if (zmq_send(client->socket, message, bytes, ZMQ_DONTWAIT) >= 0)
        return DPT_OK;
    if (zmq_errno() == EAGAIN || zmq_errno() == EINTR)
        return DPT_INPROGRESS;
    return fail_zmq(err, "send to the server");
}

/* Receives one part into client->message. DPT_INPROGRESS: no part has arrived. */
static enum dpt_status recv_part(struct dpt_client *client, struct dpt_err *err)
{
    if (zmq_msg_recv(&client->message, client->socket, ZMQ_DONTWAIT) >= 0)
        return DPT_OK;
    if (zmq_errno() == EAGAIN || zmq_errno() == EINTR)
        return DPT_INPROGRESS;
    return fail_zmq(err, "receive from the server");
}

static enum dpt_status recv_message(struct dpt_client *client, struct dpt_client_event *ret,
                                    struct dpt_err *err)
{
    bool whole = true; /* false: inside a message of many parts, which dpt-rdzv does not send */
    for (int part = 0; part < PARTS_MAX; part++) {
        DPT_TRY(recv_part(client, err));
        bool more = zmq_msg_more(&client->message) != 0;
        if (whole && !more) {
            client->heard = true;
            ret->kind = DPT_CLIENT_MESSAGE;
            ret->message = zmq_msg_data(&client->message);
            ret->bytes = zmq_msg_size(&client->message);
            return DPT_OK;
        }
        whole = !more; /* after the last part of a message the next one begins */
    }
    return dpt_fail(err, DPT_EPROTO, "the server at '%s' does not speak dpt's protocol",
                    client->address + strlen("tcp://"));
}

/* Reads one monitor event (number and value, then the address); 0: none. */
static int next_monitor_event(struct dpt_client *client)
{
    uint8_t parts[2][256];
    int length = zmq_recv(client->monitor, parts[0], sizeof parts[0], ZMQ_DONTWAIT);
    if (length < 2)
        return 0;
    uint16_t number;
    memcpy(&number, parts[0], sizeof number); /* host order, see zmq_socket_monitor(3) */
    (void)zmq_recv(client->monitor, parts[1], sizeof parts[1], ZMQ_DONTWAIT);
    return number;
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
    /* Events alternate between up and down, so this loop is short. */
    for (int number; (number = next_monitor_event(client)) != 0;) {
        bool up = number == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
        if (up == client->up)
            continue;
        client->up = up;
        client->was_up = client->was_up || up;
        client->heard = client->heard || up;
        ret->kind = up ? DPT_CLIENT_UP : DPT_CLIENT_DOWN;
        return DPT_OK;
    }
    return recv_message(client, ret, err);
}

void dpt_client_fds(const struct dpt_client *client, int ret_fds[DPT_CLIENT_FDS])
{
    memcpy(ret_fds, client->fds, sizeof client->fds);
}

/* If no socket can be opened (descriptors may run out for a time), the next tick tries again. */
static void replace_socket(struct dpt_client *client)
{
    struct dpt_err err;
    close_socket(client, 0);
    if (open_socket(client, &err) == DPT_OK)
        return;
    close_socket(client, 0);
    dpt_log(DPT_LOG_WARN, "no socket to the server, trying again: %s", err.text);
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
    if (dpt_reach_start(client->address + strlen("tcp://"), &client->reach, &err) != DPT_OK)
        dpt_log(DPT_LOG_WARN, "cannot look for the reason why the server is not reached: %s",
                err.text);
}

void dpt_client_why(const struct dpt_client *client, char ret[DPT_CLIENT_WHY_BYTES])
{
    ret[0] = '\0';
    if (client->reach != NULL)
        dpt_reach_text(client->reach, ret);
}

void dpt_client_tick(struct dpt_client *client, int64_t now_ms)
{
    look_for_reason(client, now_ms);
    /* A process that was suspended could not receive, so the silence counts from now. */
    bool slept = client->last_tick_ms < 0 || now_ms - client->last_tick_ms > client->silence_ms / 2;
    if (client->heard || slept || !client->up)
        client->last_heard_ms = now_ms;
    client->heard = false;
    client->last_tick_ms = now_ms;
    if (client->socket != NULL && now_ms - client->last_heard_ms < client->silence_ms)
        return;
    dpt_log(DPT_LOG_DEBUG, "nothing heard from %s for %d ms, reconnecting",
            client->address + strlen("tcp://"), client->silence_ms);
    client->gave_up = client->gave_up || client->up;
    client->last_heard_ms = now_ms;
    replace_socket(client);
}
