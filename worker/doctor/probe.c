/* The measurement of one direction between two nodes (probe.h). */
#include "worker/doctor/probe.h"

#include "base/clock.h"
#include "worker/doctor/deadline_socket.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CHUNK_BYTES = 256 << 10, DRAIN_MS = 1000, HOST_BYTES = 64, ENDPOINT_BYTES = 280 };

#define GREETING "dpt-doctor 1 "

static int64_t deadline_in(int64_t ms)
{
    return dpt_now_ms() + ms;
}

/* ---- answers ---- */

/* Reads an answer. Returns the text after "ok " in `line`. */
static enum dpt_status hear_ok(int fd, int64_t deadline_ms, char line[DPT_WIRE_LINE_BYTES],
                               const char **ret_rest, struct dpt_err *err)
{
    DPT_TRY(dpt_wire_hear(fd, deadline_ms, line, err));
    if (strncmp(line, "fail ", 5) == 0)
        return dpt_fail(err, DPT_EIO, "%s", line + 5);
    if (strcmp(line, "ok") != 0 && strncmp(line, "ok ", 3) != 0)
        return dpt_fail(err, DPT_EPROTO, "an answer that no dpt-doctor sends");
    *ret_rest = line[2] == ' ' ? line + 3 : line + 2;
    return DPT_OK;
}

/* ---- the sender's side ---- */

static int compare_times(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int64_t dpt_probe_percentile(const int64_t *sorted, int n, int percent)
{
    int at = (n * percent + 99) / 100 - 1;
    at = at < 0 ? 0 : at;
    return sorted[at < n ? at : n - 1];
}

static enum dpt_status send_ping(int fd, char kind, int64_t timeout_ms, struct dpt_err *err)
{
    char ping[DPT_PROBE_PING_BYTES];
    memset(ping, kind, sizeof ping);
    DPT_TRY(dpt_wire_send(fd, ping, sizeof ping, deadline_in(timeout_ms), err));
    return dpt_wire_recv(fd, ping, sizeof ping, deadline_in(timeout_ms), err);
}

static enum dpt_status measure_pings(int fd, int64_t timeout_ms, struct dpt_probe_result *ret,
                                     struct dpt_err *err)
{
    static int64_t times[DPT_PROBE_PINGS_MAX];
    const int64_t until_ms = deadline_in(DPT_PROBE_PING_MS);
    int n = 0, warm = DPT_PROBE_WARM_PINGS;
    /* At least one ping is counted, however slow the link is. */
    while (n == 0 || (n < DPT_PROBE_PINGS_MAX && dpt_now_ms() < until_ms)) {
        const int64_t from_ns = dpt_now_ns();
        DPT_TRY(send_ping(fd, 'p', timeout_ms, err));
        if (warm > 0 && dpt_now_ms() < until_ms)
            warm--;
        else
            times[n++] = dpt_now_ns() - from_ns;
    }
    DPT_TRY(send_ping(fd, 'e', timeout_ms, err));
    qsort(times, (size_t)n, sizeof times[0], compare_times);
    ret->pings = n;
    ret->p50_ns = dpt_probe_percentile(times, n, 50);
    ret->p99_ns = dpt_probe_percentile(times, n, 99);
    return DPT_OK;
}

/* Sends until the time or the bytes are over. */
static enum dpt_status send_stream(int fd, const struct dpt_probe_order *order, struct dpt_err *err)
{
    static char chunk[CHUNK_BYTES];
    const int64_t until_ms = deadline_in(order->ms);
    int64_t left = order->bytes;
    while (left > 0 && dpt_now_ms() < until_ms) {
        const size_t bytes = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        const ssize_t n = send(fd, chunk, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            left -= n;
        else if (n < 0 && errno != EAGAIN && errno != EINTR)
            return dpt_fail_errno(err, errno, "send");
        else {
            const enum dpt_status status = dpt_wire_wait(fd, true, until_ms, err);
            if (status != DPT_OK && status != DPT_INPROGRESS && status != DPT_ETIMEOUT)
                return status;
        }
    }
    /* The receiver has its own clock, so it does not need the end to arrive. */
    if (shutdown(fd, SHUT_WR) != 0)
        return dpt_fail_errno(err, errno, "end the stream");
    return DPT_OK;
}

static enum dpt_status measure_on(int fd, const struct dpt_probe_order *order,
                                  struct dpt_probe_result *ret, struct dpt_err *err)
{
    char line[DPT_WIRE_LINE_BYTES];
    const char *rest;
    DPT_TRY(dpt_wire_say(fd, deadline_in(order->timeout_ms), err,
                         GREETING "serve %" PRId64 " %" PRId64, order->ms, order->bytes));
    DPT_TRY(hear_ok(fd, deadline_in(order->timeout_ms), line, &rest, err));
    DPT_TRY(measure_pings(fd, order->timeout_ms, ret, err));
    DPT_TRY(send_stream(fd, order, err));
    DPT_TRY(hear_ok(fd, deadline_in(order->timeout_ms + order->ms), line, &rest, err));
    if (sscanf(rest, "%" SCNd64 " %" SCNd64, &ret->bytes, &ret->ns) != 2 || ret->bytes < 0 ||
        ret->ns <= 0)
        return dpt_fail(err, DPT_EPROTO, "an answer that no dpt-doctor sends");
    return DPT_OK;
}

static enum dpt_status measure_to(const char *endpoint, const struct dpt_probe_order *order,
                                  struct dpt_probe_result *ret, struct dpt_err *err)
{
    int fd = -1;
    DPT_TRY(dpt_wire_connect(endpoint, deadline_in(order->timeout_ms), &fd, err));
    const enum dpt_status status = measure_on(fd, order, ret, err);
    dpt_wire_drop(fd);
    return dpt_wrap(err, status, "%.100s", endpoint);
}

/* ---- the receiver's side ---- */

void dpt_probe_count_add(struct dpt_probe_count *count, int64_t now_ns, int64_t bytes,
                         int64_t stream_ms)
{
    if (count->first_ns == 0)
        count->first_ns = now_ns;
    count->bytes += bytes;
    count->last_ns = now_ns;
    if (count->counted_ns == 0 && now_ns - count->first_ns >= stream_ms * 1000000 / 5) {
        count->counted_ns = now_ns;
        count->counted_bytes = count->bytes;
    }
}

void dpt_probe_count_end(const struct dpt_probe_count *count, int64_t *ret_bytes, int64_t *ret_ns)
{
    const int64_t whole_ns = count->last_ns - count->first_ns;
    const bool cut = count->counted_ns != 0 && count->last_ns - count->counted_ns >= whole_ns / 2;
    *ret_bytes = count->bytes - (cut ? count->counted_bytes : 0);
    *ret_ns = count->last_ns - (cut ? count->counted_ns : count->first_ns);
    if (*ret_ns <= 0)
        *ret_ns = 1; /* all came at once */
}

static enum dpt_status return_pings(int fd, int64_t timeout_ms, struct dpt_err *err)
{
    char ping[DPT_PROBE_PING_BYTES];
    /* A ping is one wait here and two at the sender. */
    const int64_t until_ms = deadline_in(DPT_PROBE_PING_MS + 2 * DPT_PROBE_PINGS_LATE * timeout_ms);
    for (int i = 0; i <= DPT_PROBE_PINGS_MAX + DPT_PROBE_WARM_PINGS && dpt_now_ms() < until_ms;
         i++) {
        DPT_TRY(dpt_wire_recv(fd, ping, sizeof ping, deadline_in(timeout_ms), err));
        DPT_TRY(dpt_wire_send(fd, ping, sizeof ping, deadline_in(timeout_ms), err));
        if (ping[0] == 'e')
            return DPT_OK;
    }
    return dpt_fail(err, DPT_EPROTO, "more or longer pings than a dpt-doctor sends");
}

/* Receives for `ms` ms from the first byte on, or until the sender ends. */
static enum dpt_status receive_stream(int fd, int64_t ms, int64_t timeout_ms,
                                      struct dpt_probe_count *count, struct dpt_err *err)
{
    static char chunk[CHUNK_BYTES];
    int64_t until_ms = deadline_in(timeout_ms);
    for (;;) {
        const ssize_t n = recv(fd, chunk, sizeof chunk, MSG_DONTWAIT);
        if (n == 0)
            return DPT_OK;
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return dpt_fail_errno(err, errno, "receive");
        if (n > 0) {
            if (count->first_ns == 0)
                until_ms = deadline_in(ms);
            dpt_probe_count_add(count, dpt_now_ns(), n, ms);
        }
        if (dpt_now_ms() >= until_ms)
            return count->first_ns != 0 ? DPT_OK : dpt_fail(err, DPT_ETIMEOUT, "no stream came");
        if (n > 0)
            continue;
        const enum dpt_status status = dpt_wire_wait(fd, false, until_ms, err);
        if (status != DPT_OK && status != DPT_INPROGRESS && status != DPT_ETIMEOUT)
            return status;
    }
}

/* Reads until the sender drops the connection, so that this end does not drop it first and lose its
 * answer. At most DRAIN_MS. */
static void drain_connection(int fd)
{
    static char chunk[CHUNK_BYTES];
    const int64_t until_ms = deadline_in(DRAIN_MS);
    struct dpt_err ignored;
    while (dpt_now_ms() < until_ms) {
        const ssize_t n = recv(fd, chunk, sizeof chunk, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return;
        if (n < 0 && dpt_wire_wait(fd, false, until_ms, &ignored) == DPT_ETIMEOUT)
            return;
    }
}

static enum dpt_status serve_stream(int fd, const char *args, int64_t timeout_ms,
                                    struct dpt_err *err)
{
    int64_t ms, max, bytes, ns;
    struct dpt_probe_count count = {0};
    if (sscanf(args, "%" SCNd64 " %" SCNd64, &ms, &max) != 2 || ms < DPT_PROBE_STREAM_MS_MIN ||
        ms > DPT_PROBE_STREAM_MS_MAX)
        return dpt_fail(err, DPT_EPROTO, "a time that no dpt-doctor sends");
    DPT_TRY(dpt_wire_say(fd, deadline_in(timeout_ms), err, "ok"));
    DPT_TRY(return_pings(fd, timeout_ms, err));
    DPT_TRY(receive_stream(fd, ms, timeout_ms, &count, err));
    dpt_probe_count_end(&count, &bytes, &ns);
    DPT_TRY(dpt_wire_say(fd, deadline_in(timeout_ms), err, "ok %" PRId64 " %" PRId64, bytes, ns));
    drain_connection(fd);
    return DPT_OK;
}

/* ---- orders ---- */

static enum dpt_status serve_hello(int fd, int64_t timeout_ms, struct dpt_err *err)
{
    char host[HOST_BYTES] = "";
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0')
        (void)snprintf(host, sizeof host, "unnamed");
    return dpt_wire_say(fd, deadline_in(timeout_ms), err, "ok %s", host);
}

static enum dpt_status serve_measure(int fd, const char *args, int64_t timeout_ms,
                                     struct dpt_err *err)
{
    char endpoint[ENDPOINT_BYTES];
    struct dpt_probe_order order = {.timeout_ms = timeout_ms};
    struct dpt_probe_result result = {0};
    if (sscanf(args, "%279s %" SCNd64 " %" SCNd64, endpoint, &order.ms, &order.bytes) != 3 ||
        order.ms < DPT_PROBE_STREAM_MS_MIN || order.ms > DPT_PROBE_STREAM_MS_MAX ||
        order.bytes < 1 || order.bytes > DPT_PROBE_BYTES_MAX)
        return dpt_fail(err, DPT_EPROTO, "an order that no dpt-doctor sends");
    DPT_TRY(measure_to(endpoint, &order, &result, err));
    return dpt_wire_say(fd, deadline_in(timeout_ms), err,
                        "ok %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64,
                        result.p50_ns, result.p99_ns, result.pings, result.bytes, result.ns);
}

static enum dpt_status follow_order(int fd, const char *line, int64_t timeout_ms,
                                    struct dpt_err *err)
{
    const size_t greeting = strlen(GREETING);
    const char *order = line + greeting;
    if (strncmp(line, GREETING, greeting) != 0)
        return dpt_fail(err, DPT_EPROTO, "it is no dpt-doctor of version %d", DPT_PROBE_VERSION);
    if (strcmp(order, "hello") == 0)
        return serve_hello(fd, timeout_ms, err);
    if (strncmp(order, "serve ", 6) == 0)
        return serve_stream(fd, order + 6, timeout_ms, err);
    if (strncmp(order, "measure ", 8) == 0)
        return serve_measure(fd, order + 8, timeout_ms, err);
    return dpt_fail(err, DPT_EPROTO, "an order that no dpt-doctor sends");
}

enum dpt_status dpt_probe_serve(int fd, int64_t timeout_ms, struct dpt_err *err)
{
    char line[DPT_WIRE_LINE_BYTES];
    struct dpt_err ignored;
    enum dpt_status status = dpt_wire_hear(fd, deadline_in(DPT_PROBE_LINE_MS), line, err);
    if (status == DPT_OK)
        status = follow_order(fd, line, timeout_ms, err);
    /* If the other end is gone, nobody waits for the reason. */
    if (status != DPT_OK && status != DPT_EPEER &&
        dpt_wire_say(fd, deadline_in(DPT_PROBE_LINE_MS), &ignored, "fail %.400s", err->text) ==
            DPT_OK)
        drain_connection(fd);
    (void)close(fd);
    return status;
}

/* ---- the coordinator's side ---- */

enum dpt_status dpt_probe_hello(const char *endpoint, int64_t timeout_ms, char *ret_host,
                                size_t bytes, struct dpt_err *err)
{
    char line[DPT_WIRE_LINE_BYTES];
    const char *rest = "";
    int fd = -1;
    DPT_TRY(dpt_wire_connect(endpoint, deadline_in(timeout_ms), &fd, err));
    enum dpt_status status = dpt_wire_say(fd, deadline_in(timeout_ms), err, GREETING "hello");
    if (status == DPT_OK)
        status = hear_ok(fd, deadline_in(timeout_ms), line, &rest, err);
    if (status == DPT_OK)
        (void)snprintf(ret_host, bytes, "%s", rest);
    dpt_wire_drop(fd);
    return dpt_wrap(err, status, "%.100s", endpoint);
}

enum dpt_status dpt_probe_pair(const char *from, const char *to,
                               const struct dpt_probe_order *order, struct dpt_probe_result *ret,
                               struct dpt_err *err)
{
    char line[DPT_WIRE_LINE_BYTES];
    const char *rest = "";
    int fd = -1;
    /* The node's own waits, each of timeout_ms: connect, greeting, pings, answer. */
    const int64_t patience_ms = 4 * order->timeout_ms + 2 * order->ms + 2 * DPT_PROBE_PING_MS;
    DPT_TRY(dpt_wire_connect(from, deadline_in(order->timeout_ms), &fd, err));
    enum dpt_status status =
        dpt_wire_say(fd, deadline_in(order->timeout_ms), err,
                     GREETING "measure %.280s %" PRId64 " %" PRId64, to, order->ms, order->bytes);
    if (status == DPT_OK)
        status = hear_ok(fd, deadline_in(patience_ms), line, &rest, err);
    if (status == DPT_OK &&
        sscanf(rest, "%" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64, &ret->p50_ns,
               &ret->p99_ns, &ret->pings, &ret->bytes, &ret->ns) != 5)
        status = dpt_fail(err, DPT_EPROTO, "an answer that no dpt-doctor sends");
    if (status == DPT_OK && (ret->ns <= 0 || ret->bytes < 0 || ret->p50_ns < 0))
        status = dpt_fail(err, DPT_EPROTO, "an answer that no dpt-doctor sends");
    dpt_wire_drop(fd);
    return dpt_wrap(err, status, "on %.100s", from);
}
