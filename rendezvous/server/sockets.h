/* The ROUTER of the server, and its monitor. */
#ifndef DPT_RENDEZVOUS_SERVER_SOCKETS_H
#define DPT_RENDEZVOUS_SERVER_SOCKETS_H

#include "base/err.h"

#include <stdint.h>

/* Initially zeroed. */
struct dpt_server_sockets {
    void *context, *router;
    void *monitor; /* ZMQ_EVENT_ACCEPTED, ZMQ_EVENT_DISCONNECTED and ZMQ_EVENT_CLOSED of `router` */
};

/* Opens and sets up the sockets; binds none. DPT_EIO: what is open is to be closed. */
DPT_MUST_USE enum dpt_status dpt_server_open_sockets(struct dpt_server_sockets *ret,
                                                     struct dpt_err *err);
/* Reads one event of the monitor. *ret_number: ZMQ_EVENT_…; 0: there is none. *ret_value: the
 * descriptor. */
DPT_MUST_USE enum dpt_status dpt_server_read_event(struct dpt_server_sockets *sockets,
                                                   uint16_t *ret_number, uint32_t *ret_value,
                                                   struct dpt_err *err);
void dpt_server_close_router(struct dpt_server_sockets *sockets);
/* After every other socket of the context is closed. */
void dpt_server_close_context(struct dpt_server_sockets *sockets);

#endif
