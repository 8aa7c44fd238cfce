/* The command net (net.h). */
#include "worker/doctor/net.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/signals.h"
#include "base/stdout.h"
#include "worker/doctor/deadline_socket.h"
#include "worker/doctor/probe.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { HOST_BYTES = 64, SERVED_MAX = 1 << 20 };

/* ---- a node that listens ---- */

static enum dpt_status tell_port(const struct dpt_doctor_args *args, int port, struct dpt_err *err)
{
    char text[16];
    (void)printf(DPT_NET_LISTENS
                 "%d of %s for %" PRId64
                 " s; on another machine: dpt-doctor net --peers THIS_HOST:%d,OTHER:PORT\n",
                 port, args->bind_to ? args->bind_to : "every address", args->listen_s, port);
    DPT_TRY(dpt_stdout_flush(err));
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

/* Reads the standard input, whose content does not count. */
static bool has_input_ended(void)
{
    char dropped[256];
    const ssize_t n = read(STDIN_FILENO, dropped, sizeof dropped);
    return n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN);
}

/* Waits for a connection. DPT_ETIMEOUT: the node's time is over, or its standard input has ended.
 * DPT_INPROGRESS: there is none yet. */
static enum dpt_status await_connection(const struct dpt_doctor_args *args, int listener,
                                        int64_t until_ms, struct dpt_err *err)
{
    struct pollfd items[] = {{.fd = listener, .events = POLLIN},
                             {.fd = STDIN_FILENO, .events = POLLIN}};
    const int64_t left_ms = until_ms - dpt_now_ms();
    const int n = poll(items, args->until_eof ? 2 : 1,
                       left_ms < 0         ? 0
                       : left_ms > INT_MAX ? INT_MAX
                                           : (int)left_ms);
    if (n < 0 && errno == EINTR)
        return DPT_INPROGRESS;
    if (n < 0)
        return dpt_fail_errno(err, errno, "wait for a connection");
    if (n == 0 || (items[1].revents != 0 && has_input_ended()))
        return DPT_ETIMEOUT;
    return items[0].revents != 0 ? DPT_OK : DPT_INPROGRESS;
}

static enum dpt_status serve_until(const struct dpt_doctor_args *args, int listener,
                                   int64_t until_ms, struct dpt_err *err)
{
    for (int served = 0; served < SERVED_MAX; served++) {
        const enum dpt_status status = await_connection(args, listener, until_ms, err);
        if (status == DPT_ETIMEOUT)
            return DPT_OK;
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

/* A node without an answer fails in all of its pairs at once. */
static void fail_node(struct dpt_matrix *m, int node, const char *why)
{
    (void)snprintf(m->silent[node], sizeof m->silent[node], "%.*s", (int)sizeof m->silent[node] - 1,
                   why);
    for (int k = 0; k < m->n; k++) {
        if (k == node)
            continue;
        fail_pair(&m->pair[node][k], why);
        fail_pair(&m->pair[k][node], why);
    }
}

/* Asks a node for its host's name. */
static void greet_node(const struct dpt_doctor_args *args, const struct dpt_net_node *node, int i,
                       struct dpt_matrix *m)
{
    char host[HOST_BYTES] = "", text[DPT_MATRIX_WHY_BYTES];
    const bool named = node->name[0] != '\0';
    struct dpt_err why = {.text = ""};
    (void)snprintf(m->name[i], sizeof m->name[i], "%s", named ? node->name : node->endpoint);
    if (node->endpoint[0] != '\0' &&
        dpt_probe_hello(node->endpoint, args->timeout_ms, host, sizeof host, &why) == DPT_OK) {
        const size_t used = strlen(m->name[i]);
        if (!named && strncmp(node->endpoint, host, strlen(host)) != 0)
            (void)snprintf(m->name[i] + used, sizeof m->name[i] - used, " %s", host);
        return;
    }
    (void)snprintf(text, sizeof text, "%s%.100s%s%.*s", named ? "node " : "", node->name,
                   named ? ": " : "", DPT_MATRIX_WHY_BYTES - 110,
                   node->endpoint[0] != '\0' ? why.text : node->why);
    fail_node(m, i, text);
}

static void measure_pair(const struct dpt_doctor_args *args, const struct dpt_net_node *from,
                         const struct dpt_net_node *to, struct dpt_pair *pair)
{
    const struct dpt_probe_order order = {
        .ms = args->stream_ms, .bytes = args->stream_mib << 20, .timeout_ms = args->timeout_ms};
    struct dpt_probe_result result;
    struct dpt_err why;
    if (dpt_probe_pair(from->endpoint, to->endpoint, &order, &result, &why) != DPT_OK) {
        fail_pair(pair, why.text);
        return;
    }
    *pair = (struct dpt_pair){.state = DPT_PAIR_MEASURED,
                              .bytes_per_s = (double)result.bytes * 1e9 / (double)result.ns,
                              .rtt_us = (double)result.p50_ns / 1e3,
                              .rtt_p99_us = (double)result.p99_ns / 1e3};
}

void dpt_net_measure(const struct dpt_doctor_args *args, const struct dpt_net_nodes *nodes,
                     struct dpt_matrix *ret)
{
    memset(ret, 0, sizeof *ret);
    ret->n = nodes->n;
    (void)fprintf(stderr, "dpt-doctor: measures %d pairs, each for at most %.1f s\n",
                  ret->n * (ret->n - 1), (double)(args->stream_ms + DPT_PROBE_PING_MS) / 1000);
    for (int i = 0; i < ret->n; i++)
        greet_node(args, &nodes->node[i], i, ret);
    for (int from = 0; from < ret->n; from++)
        for (int to = 0; to < ret->n; to++)
            if (from != to && ret->pair[from][to].state == DPT_PAIR_OPEN)
                measure_pair(args, &nodes->node[from], &nodes->node[to], &ret->pair[from][to]);
}

void dpt_net_measure_peers(const struct dpt_doctor_args *args, struct dpt_matrix *ret)
{
    static struct dpt_net_nodes nodes;
    nodes.n = args->n_peers;
    for (int i = 0; i < nodes.n; i++)
        (void)snprintf(nodes.node[i].endpoint, sizeof nodes.node[i].endpoint, "%s", args->peer[i]);
    dpt_net_measure(args, &nodes, ret);
}
