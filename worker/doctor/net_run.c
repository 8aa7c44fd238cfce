/* Links between the nodes of a run (net.h). */
#include "base/clock.h"
#include "worker/doctor/net.h"
#include "worker/doctor/probe.h"
#include "worker/doctor/remote_listener.h"

#include <string.h>

enum { LISTEN_S_MAX = 86400, PAIR_EXTRA_MS = 10000, MS_PER_S = 1000 };

static void print_endpoint(const char *address, int port, char ret[DPT_MATRIX_NAME_BYTES])
{
    const bool v6 = strchr(address, ':') != NULL;
    (void)snprintf(ret, DPT_MATRIX_NAME_BYTES, "%s%.80s%s:%d", v6 ? "[" : "", address,
                   v6 ? "]" : "", port);
}

/* The node's id and the name of its host, which tells machines apart for a person. */
static void print_name(const struct dpt_run_node *node, char ret[DPT_MATRIX_NAME_BYTES])
{
    (void)snprintf(ret, DPT_MATRIX_NAME_BYTES, "%.60s%s%.30s", node->node,
                   node->host[0] != '\0' ? " " : "", node->host);
}

/* "a" and "b gpu7" become "a, b gpu7", as far as there is room. */
static void prepend_name(const char *node, char name[DPT_MATRIX_NAME_BYTES])
{
    const size_t before = strlen(node) + strlen(", "), bytes = strlen(name) + 1;
    if (before + bytes > DPT_MATRIX_NAME_BYTES)
        return;
    memmove(name + before, name, bytes);
    memcpy(name, node, before - strlen(", "));
    memcpy(name + before - strlen(", "), ", ", strlen(", "));
}

static struct dpt_net_node *find_endpoint(struct dpt_net_nodes *nodes, const char *endpoint)
{
    for (int i = 0; i < nodes->n; i++)
        if (strcmp(nodes->node[i].endpoint, endpoint) == 0)
            return &nodes->node[i];
    return NULL;
}

void dpt_net_list_run(const struct dpt_doctor_args *args, const struct dpt_run_nodes *run,
                      struct dpt_net_nodes *ret)
{
    ret->n = 0;
    for (int i = 0; i < run->n; i++) {
        const struct dpt_run_node *from = &run->node[i];
        struct dpt_net_node made = {.endpoint = ""}, *same = NULL;
        if (from->address[0] != '\0') {
            print_endpoint(from->address, (int)args->peer_port, made.endpoint);
            same = find_endpoint(ret, made.endpoint);
        }
        if (same) {
            prepend_name(from->node, same->name);
            continue;
        }
        print_name(from, made.name);
        (void)snprintf(made.why, sizeof made.why, "%s", from->why);
        ret->node[ret->n++] = made;
    }
}

/* Seconds after which a listener ends by itself, if its connection to this process hangs. */
static int64_t listen_seconds(const struct dpt_doctor_args *args, int n)
{
    const int64_t pair_ms = args->stream_ms + DPT_PROBE_PING_MS + args->timeout_ms + PAIR_EXTRA_MS;
    const int64_t seconds = (DPT_REMOTE_START_MS + n * n * pair_ms) / MS_PER_S;
    return seconds < LISTEN_S_MAX ? seconds : LISTEN_S_MAX;
}

/* Starts a listener for each node, and lists their endpoints. */
static void start_listeners(const struct dpt_doctor_args *args, const struct dpt_run_nodes *run,
                            struct dpt_remote *remotes, struct dpt_net_nodes *ret)
{
    for (int i = 0; i < run->n; i++) {
        remotes[i] = (struct dpt_remote){.pid = 0};
        if (run->node[i].address[0] != '\0')
            dpt_remote_start(args->shell, run->node[i].address, listen_seconds(args, run->n),
                             &remotes[i]);
    }
    dpt_remote_await(remotes, run->n, dpt_now_ms() + DPT_REMOTE_START_MS);
    ret->n = run->n;
    for (int i = 0; i < run->n; i++) {
        struct dpt_net_node *node = &ret->node[i];
        *node = (struct dpt_net_node){.endpoint = ""};
        print_name(&run->node[i], node->name);
        if (remotes[i].port > 0)
            print_endpoint(run->node[i].address, remotes[i].port, node->endpoint);
        (void)snprintf(node->why, sizeof node->why, "%s",
                       remotes[i].why[0] != '\0' ? remotes[i].why : run->node[i].why);
    }
}

static enum dpt_status fail_without_pair(const struct dpt_run_nodes *run, struct dpt_err *err)
{
    return dpt_fail(err, DPT_ENOENT, "there is no pair to measure: run '%s' has %d node%s%s",
                    run->run, run->n, run->n == 1 ? "" : "s",
                    run->n > 1 ? " at one address; with --shell each has a dpt-doctor of its own"
                               : "");
}

enum dpt_status dpt_net_measure_run(const struct dpt_doctor_args *args,
                                    const struct dpt_run_nodes *run, struct dpt_matrix *ret,
                                    struct dpt_err *err)
{
    static struct dpt_net_nodes nodes;
    static struct dpt_remote remotes[DPT_MATRIX_NODES_MAX];
    dpt_net_list_run(args, run, &nodes);
    if ((args->shell ? run->n : nodes.n) < 2)
        return fail_without_pair(run, err);
    if (!args->shell) {
        (void)fprintf(stderr,
                      "dpt-doctor: run '%s' has %d nodes; on each of their machines must run: "
                      "dpt-doctor net --listen %d\n",
                      run->run, run->n, (int)args->peer_port);
        dpt_net_measure(args, &nodes, ret);
        return DPT_OK;
    }
    start_listeners(args, run, remotes, &nodes);
    dpt_net_measure(args, &nodes, ret);
    dpt_remote_end(remotes, run->n);
    return DPT_OK;
}
