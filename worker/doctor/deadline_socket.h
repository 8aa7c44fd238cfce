/* TCP with a deadline on every wait, for `dpt-doctor net`. Names are looked up by the system's
 * resolver, which has deadlines of its own (resolv.conf). Blocks; one thread. */
#ifndef DPT_WORKER_DOCTOR_DEADLINE_SOCKET_H
#define DPT_WORKER_DOCTOR_DEADLINE_SOCKET_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { DPT_WIRE_LINE_BYTES = 512, DPT_WIRE_ADDRESSES_MAX = 4 };

/* Connects to HOST:PORT or [IPV6]:PORT. The error says what is wrong with the host or the port, and
 * what to do. deadline_ms: of dpt_now_ms. */
DPT_MUST_USE enum dpt_status dpt_wire_connect(const char *endpoint, int64_t deadline_ms,
                                              int *ret_fd, struct dpt_err *err);

/* Listens on `port` (0: any) of the numeric address `bind_to`, NULL: of all addresses. */
DPT_MUST_USE enum dpt_status dpt_wire_listen(const char *bind_to, int port, int *ret_fd,
                                             int *ret_port, struct dpt_err *err);

/* Accepts a connection that waits. *ret_fd is -1 if the other end has given up. */
DPT_MUST_USE enum dpt_status dpt_wire_accept(int listener, int *ret_fd, struct dpt_err *err);

/* Waits until a descriptor is readable (or, with `write`, writable). DPT_ETIMEOUT. A signal ends
 * the wait early with DPT_INPROGRESS. */
DPT_MUST_USE enum dpt_status dpt_wire_wait(int fd, bool write, int64_t deadline_ms,
                                           struct dpt_err *err);

/* Sends or receives exactly `bytes` bytes. DPT_EPEER: the other end closed the connection or has
 * ended; DPT_ETIMEOUT. */
DPT_MUST_USE enum dpt_status dpt_wire_send(int fd, const void *data, size_t bytes,
                                           int64_t deadline_ms, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_wire_recv(int fd, void *data, size_t bytes, int64_t deadline_ms,
                                           struct dpt_err *err);

/* Sends a formatted line with its newline; receives a line without it. DPT_EPROTO: the line is
 * longer than DPT_WIRE_LINE_BYTES or has control characters. */
DPT_MUST_USE enum dpt_status dpt_wire_say(int fd, int64_t deadline_ms, struct dpt_err *err,
                                          const char *fmt, ...) DPT_PRINTF(4, 5);
DPT_MUST_USE enum dpt_status dpt_wire_hear(int fd, int64_t deadline_ms,
                                           char ret[DPT_WIRE_LINE_BYTES], struct dpt_err *err);

/* Closes a connection; data under way is dropped. fd -1: no effect. */
void dpt_wire_drop(int fd);

#endif
