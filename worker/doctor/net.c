/* The command net (net.h). */
#include "worker/doctor/net.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/signals.h"
#include "worker/doctor/deadline_socket.h"
#include "worker/doctor/probe.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum { HOST_BYTES = 64, SERVED_MAX = 1 << 20 };

/* ---- a node that listens ---- */

static enum dpt_status tell_port(const struct dpt_doctor_args *args, int port, struct dpt_err *err)
{
    char text[16];
    (void)printf("dpt-doctor listens on port %d of %s for %" PRId64
                 " s; on another machine: dpt-doctor net --peers THIS_HOST:%d,OTHER:PORT\n",
                 port, args->bind_to ? args->bind_to : "every address", args->listen_s, port);
    if (fflush(stdout) != 0)
        return dpt_fail(err, DPT_EIO, "write to the standard output failed");
    (void)snprintf(text, sizeof text, "%d\n", port);
    return args->port_file
               ? dpt_wrap(err, dpt_fs_write_file_atomic(args->port_file, text, strlen(text), err),
                          "--port-file")
               : DPT_OK;
}

static enum dpt_status serve_one(const struct dpt_doctor_args *args, int listener,
                                 struct dpt_err *err)
{
    struct dpt_err why;
    int fd = -1;
    DPT_TRY(dpt_wire_accept(listener, &fd, err));
    if (fd >= 0 && dpt_probe_serve(fd, args->timeout_ms, &why) != DPT_OK)
        (void)fprintf(stderr, "dpt-doctor: a connection failed: %s\n", why.text);
    return DPT_OK;
}

static enum dpt_status serve_until(const struct dpt_doctor_args *args, int listener,
                                   int64_t until_ms, struct dpt_err *err)
{
    for (int served = 0; served < SERVED_MAX; served++) {
        const enum dpt_status status = dpt_wire_wait(listener, false, until_ms, err);
        if (status == DPT_ETIMEOUT)
            return DPT_OK; /* its time is over */
        if (status == DPT_OK)
            DPT_TRY(serve_one(args, listener, err));
        else if (status != DPT_INPROGRESS)
            return status;
    }
    return DPT_OK;
}

enum dpt_status dpt_net_listen(const struct dpt_doctor_args *args, struct dpt_err *err)
{
    int fd = -1, port = 0;
    const int64_t until_ms = dpt_now_ms() + args->listen_s * 1000;
    DPT_TRY(dpt_signals_end_at_once("dpt-doctor: ended by a signal\n", 0, err));
    DPT_TRY(dpt_wire_listen(args->bind_to, (int)args->port, &fd, &port, err));
    enum dpt_status status = tell_port(args, port, err);
    if (status == DPT_OK)
        status = serve_until(args, fd, until_ms, err);
    (void)close(fd);
    return status;
}

/* ---- the measurement of all pairs ---- */

static void fail_pair(struct dpt_pair *pair, const char *why)
{
    pair->state = DPT_PAIR_FAILED;
    (void)snprintf(pair->why, sizeof pair->why, "%.*s", (int)sizeof pair->why - 1, why);
}

/* Asks all nodes for their names. A node that does not answer fails in all of its pairs at once. */
static void greet_nodes(const struct dpt_doctor_args *args, struct dpt_matrix *m)
{
    for (int i = 0; i < m->n; i++) {
        char host[HOST_BYTES] = "";
        struct dpt_err why;
        (void)snprintf(m->name[i], sizeof m->name[i], "%s", args->peer[i]);
        if (dpt_probe_hello(args->peer[i], args->timeout_ms, host, sizeof host, &why) == DPT_OK) {
            const size_t used = strlen(m->name[i]);
            if (strncmp(args->peer[i], host, strlen(host)) != 0)
                (void)snprintf(m->name[i] + used, sizeof m->name[i] - used, " %s", host);
            continue;
        }
        (void)snprintf(m->silent[i], sizeof m->silent[i], "%.*s", (int)sizeof m->silent[i] - 1,
                       why.text);
        for (int k = 0; k < m->n; k++) {
            if (k == i)
                continue;
            fail_pair(&m->pair[i][k], why.text);
            fail_pair(&m->pair[k][i], why.text);
        }
    }
}

static void measure_pair(const struct dpt_doctor_args *args, int from, int to,
                         struct dpt_pair *pair)
{
    const struct dpt_probe_order order = {
        .ms = args->stream_ms, .bytes = args->stream_mib << 20, .timeout_ms = args->timeout_ms};
    struct dpt_probe_result result;
    struct dpt_err why;
    if (dpt_probe_pair(args->peer[from], args->peer[to], &order, &result, &why) != DPT_OK) {
        fail_pair(pair, why.text);
        return;
    }
    *pair = (struct dpt_pair){.state = DPT_PAIR_MEASURED,
                              .bytes_per_s = (double)result.bytes * 1e9 / (double)result.ns,
                              .rtt_us = (double)result.p50_ns / 1e3,
                              .rtt_p99_us = (double)result.p99_ns / 1e3};
}

void dpt_net_measure(const struct dpt_doctor_args *args, struct dpt_matrix *ret)
{
    memset(ret, 0, sizeof *ret);
    ret->n = args->n_peers;
    (void)fprintf(stderr, "dpt-doctor: measures %d pairs, each for at most %.1f s\n",
                  ret->n * (ret->n - 1), (double)(args->stream_ms + DPT_PROBE_PING_MS) / 1000);
    greet_nodes(args, ret);
    for (int from = 0; from < ret->n; from++)
        for (int to = 0; to < ret->n; to++)
            if (from != to && ret->pair[from][to].state == DPT_PAIR_OPEN)
                measure_pair(args, from, to, &ret->pair[from][to]);
}
