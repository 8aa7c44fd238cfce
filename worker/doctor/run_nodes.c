/* The nodes of a server's reply (run_nodes.h). */
#include "worker/doctor/run_nodes.h"

#include <arpa/inet.h>
#include <string.h>

static bool is_numeric(const char *address)
{
    unsigned char binary[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, address, binary) == 1 || inet_pton(AF_INET6, address, binary) == 1;
}

static void take_node(const Dpt__NodeInfo *from, struct dpt_run_node *ret)
{
    *ret = (struct dpt_run_node){.why = ""};
    (void)snprintf(ret->node, sizeof ret->node, "%s", from->node);
    (void)snprintf(ret->host, sizeof ret->host, "%s", from->host_name);
    if (is_numeric(from->address))
        (void)snprintf(ret->address, sizeof ret->address, "%s", from->address);
    else if (from->role == DPT__NODE_ROLE__NODE_AWAITED)
        (void)snprintf(ret->why, sizeof ret->why,
                       "it has not come back since the server was restarted");
    else if (from->address[0] == '\0')
        (void)snprintf(ret->why, sizeof ret->why,
                       "its ranks have not told where they listen yet; ask again");
    else
        (void)snprintf(ret->why, sizeof ret->why, "its address '%.60s' is not numeric",
                       from->address);
}

enum dpt_status dpt_run_nodes_take(const Dpt__ControlReply *reply, struct dpt_run_nodes *ret,
                                   struct dpt_err *err)
{
    *ret = (struct dpt_run_nodes){.n = 0};
    (void)snprintf(ret->run, sizeof ret->run, "%s", reply->run);
    for (size_t i = 0; i < reply->n_nodes; i++) {
        if (reply->nodes[i]->role == DPT__NODE_ROLE__NODE_DENIED)
            continue;
        if (ret->n == DPT_MATRIX_NODES_MAX)
            return dpt_fail(err, DPT_EREFUSED,
                            "run '%s' has more than %d nodes: measure some of them with "
                            "dpt-doctor net --peers (dpt-ctl nodes --json lists their addresses)",
                            ret->run, DPT_MATRIX_NODES_MAX);
        take_node(reply->nodes[i], &ret->node[ret->n++]);
    }
    return DPT_OK;
}
