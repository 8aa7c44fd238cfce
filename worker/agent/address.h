/* The address on which this node's ranks listen for their peers. */
#ifndef DPT_WORKER_AGENT_ADDRESS_H
#define DPT_WORKER_AGENT_ADDRESS_H

#include "base/err.h"

enum { DPT_ADDRESS_BYTES = 64 };

/* Numeric address of `interface` (IPv4 before IPv6, never link-local) if one is named. Otherwise
 * the local address of the route to the server at `endpoint` (HOST:PORT). If that is loopback, the
 * server is on this host: the host's own address is chosen if the server accepts there too, since
 * other hosts may then join; else loopback. May ask the resolver for a name in `endpoint`.
 * DPT_ECONFIG: no such interface, or no address. */
DPT_MUST_USE enum dpt_status dpt_address_find(const char *interface, const char *endpoint,
                                              char ret[DPT_ADDRESS_BYTES], struct dpt_err *err);

#endif
