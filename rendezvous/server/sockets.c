/* The sockets of the server. */
#include "rendezvous/server/sockets.h"

#include "rendezvous/proto/message.h"
#include "rendezvous/server/server.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <zmq.h>

enum {
    LINGER_MS = 500,
    /* A connection whose handshake takes longer is closed. Of ten thousand handshakes at once each
       takes as long as all together. */
    HANDSHAKE_MS = 10000
};

static enum dpt_status fail_socket(struct dpt_err *err, const char *what)
{
    return dpt_fail(err, DPT_EIO, "%s: %s", what, zmq_strerror(zmq_errno()));
}

enum dpt_status dpt_server_open_sockets(struct dpt_server_sockets *ret, struct dpt_err *err)
{
    static const char monitor_name[] = "inproc://dpt-rdzv-monitor";
    ret->context = zmq_ctx_new();
    if (ret->context == NULL)
        return fail_socket(err, "start ZeroMQ");
    ret->router = zmq_socket(ret->context, ZMQ_ROUTER);
    ret->monitor = zmq_socket(ret->context, ZMQ_PAIR);
    if (ret->router == NULL || ret->monitor == NULL)
        return fail_socket(err, "open a ZeroMQ socket");
    const struct {
        int option, value;
    } settings[] = {{ZMQ_IPV6, 1},
                    {ZMQ_ROUTER_MANDATORY, 1},
                    {ZMQ_LINGER, LINGER_MS},
                    {ZMQ_SNDHWM, DPT_SERVER_QUEUE_MAX},
                    {ZMQ_RCVHWM, DPT_SERVER_RECEIVED_MAX},
                    {ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS},
                    {ZMQ_BACKLOG, 1024}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        if (zmq_setsockopt(ret->router, settings[i].option, &settings[i].value, sizeof(int)) != 0)
            return fail_socket(err, "set up a ZeroMQ socket");
    int64_t bytes_max = DPT_MESSAGE_BYTES_MAX;
    int zero = 0;
    if (zmq_setsockopt(ret->router, ZMQ_MAXMSGSIZE, &bytes_max, sizeof bytes_max) != 0 ||
        zmq_setsockopt(ret->monitor, ZMQ_RCVHWM, &zero, sizeof zero) != 0 ||
        zmq_socket_monitor(ret->router, monitor_name,
                           ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED) != 0 ||
        zmq_connect(ret->monitor, monitor_name) != 0)
        return fail_socket(err, "watch the server's socket");
    return DPT_OK;
}

/* An event is two frames: number and value, then an address. */
enum dpt_status dpt_server_read_event(struct dpt_server_sockets *sockets, uint16_t *ret_number,
                                      uint32_t *ret_value, struct dpt_err *err)
{
    uint8_t frame[512];
    int bytes = 0;
    *ret_number = 0;
    do {
        bytes = zmq_recv(sockets->monitor, frame, sizeof frame, ZMQ_DONTWAIT);
        if (bytes < 0)
            return zmq_errno() == EAGAIN || zmq_errno() == EINTR
                       ? DPT_OK
                       : fail_socket(err, "watch the server's socket");
    } while (bytes != (int)(sizeof *ret_number + sizeof *ret_value)); /* an address */
    memcpy(ret_number, frame, sizeof *ret_number); /* host order, see zmq_socket_monitor(3) */
    memcpy(ret_value, frame + sizeof *ret_number, sizeof *ret_value);
    return DPT_OK;
}

void dpt_server_close_router(struct dpt_server_sockets *sockets)
{
    if (sockets->router == NULL)
        return;
    (void)zmq_socket_monitor(sockets->router, NULL, 0);
    (void)zmq_close(sockets->router);
    sockets->router = NULL;
}

void dpt_server_close_context(struct dpt_server_sockets *sockets)
{
    int zero = 0;
    if (sockets->monitor != NULL) {
        (void)zmq_setsockopt(sockets->monitor, ZMQ_LINGER, &zero, sizeof zero);
        (void)zmq_close(sockets->monitor);
    }
    if (sockets->context != NULL)
        while (zmq_ctx_term(sockets->context) != 0 && zmq_errno() == EINTR)
            continue; /* ends: LINGER bounds it */
}
