/* The address on which this node's ranks listen for their peers. */
#ifndef DPT_WORKER_AGENT_NODE_ADDRESS_H
#define DPT_WORKER_AGENT_NODE_ADDRESS_H

#include "base/err.h"

enum { DPT_ADDRESS_BYTES = 64 };

/* Why an address was chosen. */
enum dpt_address_reason {
    DPT_ADDRESS_NAMED,    /* the interface was given */
    DPT_ADDRESS_ROUTE,    /* of the route to the server */
    DPT_ADDRESS_OUTWARD,  /* the server is on this host and accepts connections there */
    DPT_ADDRESS_LOOPBACK, /* the server is on this host and accepts them on loopback only */
    DPT_ADDRESS_REASON_COUNT
};

/* Finds the numeric address on which this node's ranks listen. If `interface` is not empty: the
 * address of that interface, IPv4 before IPv6, never a link-local IPv6 address. Otherwise: the
 * local address of the route to the server at `endpoint` (HOST:PORT). If that address is loopback,
 * the server runs on this host. Then the result is the host's address towards other hosts if the
 * server accepts connections there too, because other hosts may then join; else it is the loopback
 * address. May ask the resolver for a name in `endpoint`. DPT_ECONFIG: no such interface, no
 * address, no route, or `endpoint` is not HOST:PORT. */
DPT_MUST_USE enum dpt_status dpt_node_address_find(const char *interface, const char *endpoint,
                                                   char ret[DPT_ADDRESS_BYTES],
                                                   struct dpt_err *err);
/* The same, with the reason. */
DPT_MUST_USE enum dpt_status dpt_node_address_explain(const char *interface, const char *endpoint,
                                                      char ret[DPT_ADDRESS_BYTES],
                                                      enum dpt_address_reason *ret_reason,
                                                      struct dpt_err *err);

#endif
