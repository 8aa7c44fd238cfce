/* The measurement of one direction between two nodes, over one TCP connection, as two ranks of
 * different machines have one. Lines of text (deadline_socket.h) begin it:
 *
 *   coordinator -> node A   "dpt-doctor 1 hello"                          "ok HOSTNAME"
 *   coordinator -> node A   "dpt-doctor 1 measure HOST:PORT MS BYTES"     "ok P50 P99 ROUNDS BYTES
 * NS" node A -> node B        "dpt-doctor 1 serve MS BYTES"                 "ok"
 *
 * Then A sends DPT_PROBE_PING_BYTES at a time, and B returns them: the round trip. The last ping
 * begins with 'e'. Then A sends for MS ms or BYTES bytes, and B tells how much arrived in which
 * time. "fail TEXT" in place of "ok" ends any of them. A node serves one connection at a time, so
 * two measurements never disturb each other on it. Every part of a connection has a deadline,
 * whatever the other end sends, so none holds a node for long. */
#ifndef DPT_WORKER_DOCTOR_PROBE_H
#define DPT_WORKER_DOCTOR_PROBE_H

#include "base/err.h"

#include <stdint.h>

enum {
    DPT_PROBE_VERSION = 1,
    DPT_PROBE_PING_BYTES = 64,
    DPT_PROBE_PINGS_MAX = 2000,
    DPT_PROBE_WARM_PINGS = 20, /* not counted: they wake the cores on both sides */
    DPT_PROBE_PING_MS = 500,   /* pings end after this time */
    DPT_PROBE_PINGS_LATE = 3,  /* that may end later: a warm one, the one that counts, the last */
    DPT_PROBE_STREAM_MS_MIN = 100,
    DPT_PROBE_STREAM_MS_MAX = 60000,
    DPT_PROBE_LINE_MS = 2000 /* the first line of a connection comes within this time */
};
#define DPT_PROBE_BYTES_MAX (INT64_C(64) << 30)

struct dpt_probe_order {
    int64_t ms, bytes;  /* of the stream: whichever ends first */
    int64_t timeout_ms; /* of each wait for the other node */
};

struct dpt_probe_result {
    int64_t p50_ns, p99_ns; /* round trip */
    int64_t pings;
    int64_t bytes, ns; /* of the stream, as the receiver counts them without the beginning */
};

/* Asks a node for its host name. */
DPT_MUST_USE enum dpt_status dpt_probe_hello(const char *endpoint, int64_t timeout_ms,
                                             char *ret_host, size_t bytes, struct dpt_err *err);

/* Has node `from` measure to node `to`. The error names the node that did not answer. */
DPT_MUST_USE enum dpt_status dpt_probe_pair(const char *from, const char *to,
                                            const struct dpt_probe_order *order,
                                            struct dpt_probe_result *ret, struct dpt_err *err);

/* On a node: reads the first line of a connection and does as it says. Takes the connection.
 * timeout_ms: of each wait for the other end. The error is for the node's log. */
DPT_MUST_USE enum dpt_status dpt_probe_serve(int fd, int64_t timeout_ms, struct dpt_err *err);

/* The bytes per second that a receiver counts. A stream begins with what buffers and token buckets
 * take at once, so the first fifth of its time is left out if enough is left. Pure. */
struct dpt_probe_count {
    int64_t first_ns;                  /* of the first byte; 0: none */
    int64_t counted_ns, counted_bytes; /* where counting begins; 0: not yet */
    int64_t last_ns, bytes;
};
void dpt_probe_count_add(struct dpt_probe_count *count, int64_t now_ns, int64_t bytes,
                         int64_t stream_ms);
void dpt_probe_count_end(const struct dpt_probe_count *count, int64_t *ret_bytes, int64_t *ret_ns);

/* The value below which `percent` percent of sorted values lie (nearest rank). n > 0. */
int64_t dpt_probe_percentile(const int64_t *sorted, int n, int percent);

#endif
