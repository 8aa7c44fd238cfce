/* The ZeroMQ sockets of a client: opened, closed, replaced, read. */
#include "rendezvous/client/internal.h"

#include "base/log.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum {
    RECONNECT_FIRST_MS = 50,
    RECONNECT_LAST_MS = 500,
    CONNECT_TIMEOUT_MS = 2000,
    HANDSHAKE_TIMEOUT_MS = 10000, /* as the server (sockets.c) */
    PARTS_MAX = 16 /* parts of malformed messages that one call drops; then it fails */
};

enum dpt_status client_fail_zmq(struct dpt_err *err, const char *what)
{
    int saved = zmq_errno();
    return dpt_fail(err, saved == ENOMEM ? DPT_ENOMEM : DPT_EIO, "%s: %s", what,
                    zmq_strerror(saved));
}

const char *client_endpoint(const struct dpt_client *client)
{
    return client->address + strlen("tcp://");
}

static int set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value);
}

void client_close_socket(struct dpt_client *client, int linger_ms)
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
                           ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                               ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                               ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                               ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) != 0)
        return client_fail_zmq(err, "watch a ZeroMQ socket");
    client->monitor = zmq_socket(client->context, ZMQ_PAIR);
    if (client->monitor == NULL || set_int(client->monitor, ZMQ_LINGER, 0) != 0 ||
        zmq_connect(client->monitor, name) != 0)
        return client_fail_zmq(err, "watch a ZeroMQ socket");
    return DPT_OK;
}

static enum dpt_status read_fd(void *socket, int *ret, struct dpt_err *err)
{
    size_t bytes = sizeof *ret;
    if (zmq_getsockopt(socket, ZMQ_FD, ret, &bytes) != 0)
        return client_fail_zmq(err, "descriptor of a ZeroMQ socket");
    return DPT_OK;
}

/* Gives the socket the server's key and the pair with which it connects. */
static enum dpt_status set_keys(struct dpt_client *client, struct dpt_err *err)
{
    const struct dpt_keyring *keys = &client->keys;
    const struct dpt_key_pair *pair = client->enrolling ? &keys->token : &keys->machine;
    const struct {
        int option;
        const struct dpt_key *key;
    } settings[] = {{ZMQ_CURVE_SERVERKEY, client->with_next ? &keys->next : &keys->server},
                    {ZMQ_CURVE_PUBLICKEY, &pair->public_key},
                    {ZMQ_CURVE_SECRETKEY, &pair->secret_key}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        if (zmq_setsockopt(client->socket, settings[i].option, settings[i].key->bytes,
                           DPT_KEY_BYTES) != 0)
            return client_fail_zmq(err, "give a ZeroMQ socket its key");
    return DPT_OK;
}

enum dpt_status client_open_socket(struct dpt_client *client, struct dpt_err *err)
{
    client->socket = zmq_socket(client->context, ZMQ_DEALER);
    if (client->socket == NULL)
        return client_fail_zmq(err, "open a ZeroMQ socket");
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
            return client_fail_zmq(err, "set up a ZeroMQ socket");
    int64_t bytes_max = DPT_MESSAGE_BYTES_MAX;
    if (zmq_setsockopt(client->socket, ZMQ_MAXMSGSIZE, &bytes_max, sizeof bytes_max) != 0)
        return client_fail_zmq(err, "set up a ZeroMQ socket");
    if (!client->keys.open)
        DPT_TRY(set_keys(client, err));
    DPT_TRY(open_monitor(client, err));
    if (zmq_connect(client->socket, client->address) != 0)
        return dpt_fail(err, DPT_ECONFIG, "rendezvous endpoint '%s': %s", client_endpoint(client),
                        zmq_strerror(zmq_errno()));
    DPT_TRY(read_fd(client->socket, &client->fds[0], err));
    return read_fd(client->monitor, &client->fds[1], err);
}

/* If ZeroMQ has just closed the descriptor, the number may be another socket's: then the figure is
 * missing, or that socket's. */
void client_measure_link(struct dpt_client *client)
{
    struct tcp_info info;
    socklen_t bytes = sizeof info;
    memset(&info, 0, sizeof info);
    if (client->newest.fd >= 0 &&
        getsockopt(client->newest.fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0)
        client->newest.round_trip_us = info.tcpi_min_rtt > 0 && info.tcpi_min_rtt < UINT32_MAX
                                           ? info.tcpi_min_rtt
                                           : info.tcpi_rtt; /* the kernel has no shortest one */
}

void client_note_end(struct dpt_client *client)
{
    client->ended = true;
    client->ended_ms = client->last_tick_ms;
}

void client_replace_socket(struct dpt_client *client)
{
    struct dpt_err err;
    client_close_socket(client, 0);
    if (client->swapped)
        client->with_next = !client->with_next;
    client->ended = client->swapped = false;
    if (client_open_socket(client, &err) == DPT_OK)
        return;
    client_close_socket(client, 0);
    dpt_log(DPT_LOG_WARN, "no socket to the server, trying again: %s", err.text);
}

/* Receives one part into client->message. DPT_INPROGRESS: no part has arrived. */
static enum dpt_status recv_part(struct dpt_client *client, struct dpt_err *err)
{
    if (zmq_msg_recv(&client->message, client->socket, ZMQ_DONTWAIT) >= 0)
        return DPT_OK;
    if (zmq_errno() == EAGAIN || zmq_errno() == EINTR)
        return DPT_INPROGRESS;
    return client_fail_zmq(err, "receive from the server");
}

enum dpt_status client_receive(struct dpt_client *client, struct dpt_client_event *ret,
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
                    client_endpoint(client));
}
