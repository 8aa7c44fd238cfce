/* A summary of NCCL's log (nccl_log.h). */
#include "worker/doctor/nccl_log.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reasons ---- */

/* A line that has `part` has this meaning. The first that fits counts. */
static const struct {
    const char *part, *text, *remedy;
    bool bad;
} meanings[] = {
    {"NET/IB : No device found",
     "no InfiniBand or RoCE device was found, so the network is not NET/IB",
     "ls /sys/class/infiniband; in a container pass /dev/infiniband and install libibverbs", true},
    {"Failed to open libibverbs", "libibverbs is not installed, so NET/IB is not used",
     "install libibverbs1 (rdma-core)", true},
    {"NCCL_IB_DISABLE set by environment", "the environment turns NET/IB off",
     "unset NCCL_IB_DISABLE if the machine has RDMA devices", true},
    {"NCCL_P2P_DISABLE set by environment", "the environment turns peer access off",
     "unset NCCL_P2P_DISABLE", true},
    {"NCCL_SHM_DISABLE set by environment", "the environment turns shared memory off",
     "unset NCCL_SHM_DISABLE", true},
    {"P2P is disabled between", "two GPUs have no peer access",
     "see the GPU section of dpt-doctor; an IOMMU or PCIe access control in the way is turned off "
     "in the BIOS",
     true},
    {"Could not enable P2P between", "CUDA refuses peer access between two GPUs",
     "see the GPU section of dpt-doctor", true},
    {"NCCL_P2P_LEVEL set by environment", "the environment limits peer access to a distance", "",
     false},
    {"NCCL_SOCKET_IFNAME set by environment", "the environment names the interface", "", false},
    {"NCCL_SOCKET_IFNAME set to", "the environment names the interface", "", false},
    {"NCCL_IB_HCA set", "the environment names the RDMA devices", "", false},
    {"NCCL_ALGO set by environment", "the environment fixes the algorithm",
     "unset NCCL_ALGO to let NCCL choose", false},
    {"NCCL_PROTO set by environment", "the environment fixes the protocol",
     "unset NCCL_PROTO to let NCCL choose", false},
    {"GPU Direct RDMA Disabled", "GPUs and the RDMA device do not exchange data directly",
     "load nvidia-peermem (modprobe nvidia-peermem), and put device and GPU below one PCIe switch",
     true},
    {"NVLS multicast support is not available",
     "no multicast over NVLink switches: all-reduces use rings and trees", "", false},
    {"Cuda Host Alloc Size", "shared memory of the host could not be allocated", "enlarge /dev/shm",
     true},
    {"No space left on device", "/dev/shm is full",
     "docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm", true},
    {"Call to connect returned Connection refused", "a peer's port refused the connection",
     "a peer has ended, or a firewall rejects the ports of ip_local_port_range", true},
    {"No route to host", "a peer could not be reached",
     "NCCL_SOCKET_IFNAME names an interface that all nodes reach", true},
    {"NET/Plugin: Could not find: libnccl-net.so", "no network plugin; NCCL's own network is used",
     "", false},
    {"NET/Plugin : No plugin found", "no network plugin; NCCL's own network is used", "", false},
    {"No plugin found (libnccl-net.so)", "no network plugin; NCCL's own network is used", "",
     false},
};

static void add_reason(struct dpt_nccl_log *log, const char *text, const char *remedy, bool bad,
                       const char *line)
{
    for (int i = 0; i < log->n_reasons; i++)
        if (strcmp(log->reason[i].text, text) == 0) {
            log->reason[i].count++;
            return;
        }
    if (log->n_reasons == DPT_NCCL_REASONS_MAX)
        return;
    struct dpt_nccl_reason *reason = &log->reason[log->n_reasons++];
    *reason = (struct dpt_nccl_reason){.remedy = remedy, .count = 1, .bad = bad};
    (void)snprintf(reason->text, sizeof reason->text, "%.*s", (int)sizeof reason->text - 1, text);
    (void)snprintf(reason->line, sizeof reason->line, "%.*s", (int)sizeof reason->line - 1, line);
}

static bool find_meaning(struct dpt_nccl_log *log, const char *body)
{
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (strstr(body, meanings[i].part)) {
            add_reason(log, meanings[i].text, meanings[i].remedy, meanings[i].bad, body);
            return true;
        }
    return false;
}

/* ---- connections ---- */

static void add_edge(struct dpt_nccl_log *log, int from, int to, const char *via)
{
    for (int i = 0; i < log->n_edges; i++) {
        struct dpt_nccl_edge *edge = &log->edge[i];
        if (edge->from == from && edge->to == to && strcmp(edge->via, via) == 0) {
            edge->channels++;
            return;
        }
    }
    if (log->n_edges == DPT_NCCL_EDGES_MAX) {
        log->edges_left_out++;
        return;
    }
    struct dpt_nccl_edge *edge = &log->edge[log->n_edges++];
    *edge = (struct dpt_nccl_edge){
        .from = from, .to = to, .channels = 1, .far = strncmp(via, "NET", 3) == 0};
    (void)snprintf(edge->via, sizeof edge->via, "%.*s", (int)sizeof edge->via - 1, via);
}

/* The number at *at, which moves behind it; -1: there is none. */
static int take_number(const char **at)
{
    char *end;
    if (!isdigit((unsigned char)**at))
        return -1;
    const long number = strtol(*at, &end, 10);
    *at = end;
    return number >= 0 && number < 1 << 20 ? (int)number : -1;
}

/* "0[1000] -> 1[2000] [send] via NET/Socket/0/GDRDMA": both ends report a NET connection; the
 * sender's line counts. */
static void take_connection(struct dpt_nccl_log *log, const char *body)
{
    const char *at = strstr(body, " : "), *via = strstr(body, " via ");
    if (!at || !via || strstr(body, "[receive]"))
        return;
    at += 3;
    const int from = take_number(&at);
    at = strstr(at, "-> ");
    if (from < 0 || !at || at > via)
        return;
    at += 3;
    const int to = take_number(&at);
    char text[DPT_NCCL_SHORT_BYTES];
    via += strlen(" via ");
    const size_t length = strcspn(via, " ");
    (void)snprintf(text, sizeof text, "%.*s", (int)(length < sizeof text ? length : 0), via);
    if (to >= 0 && text[0] != '\0')
        add_edge(log, from, to, text);
}

/* ---- rings, trees, sizes ---- */

/* The integer after `key`; 0: there is none. */
static int number_after(const char *body, const char *key)
{
    const char *at = strstr(body, key);
    if (!at)
        return 0;
    at += strlen(key);
    at += strspn(at, " ");
    const int number = take_number(&at);
    return number > 0 ? number : 0;
}

/* "Channel 00/02 :    0   1   2": a ring in the order of ranks. */
static void take_ring(struct dpt_nccl_log *log, const char *body)
{
    const char *at = strstr(body, " : ");
    size_t used = 0;
    log->rings++;
    if (!at || log->ring[0] != '\0')
        return;
    for (at += 3; used + 12 < sizeof log->ring;) {
        at += strspn(at, " \t");
        const int rank = take_number(&at);
        if (rank < 0)
            break;
        used += (size_t)snprintf(log->ring + used, sizeof log->ring - used, "%s%d",
                                 used > 0 ? " " : "", rank);
    }
}

static void keep_rest(char *ret, size_t bytes, const char *body, const char *key)
{
    const char *at = strstr(body, key);
    if (ret[0] != '\0' || !at)
        return;
    at += strlen(key);
    at += strspn(at, " :");
    (void)snprintf(ret, bytes, "%.*s", (int)bytes - 1, at);
    for (size_t end = strlen(ret); end > 0 && isspace((unsigned char)ret[end - 1]);)
        ret[--end] = '\0';
}

/* "4 coll channels, 4 collnet channels, 0 nvls channels, …". */
static void take_channels(struct dpt_nccl_log *log, const char *body)
{
    const char *at = strstr(body, " coll channels");
    while (at > body && isdigit((unsigned char)at[-1]))
        at--;
    const int channels = take_number(&at);
    if (log->channels == 0 && channels > 0)
        log->channels = channels;
}

static void take_facts(struct dpt_nccl_log *log, const char *body)
{
    const int ranks = number_after(body, " nranks ");
    log->ranks = ranks > log->ranks ? ranks : log->ranks;
    if (strstr(body, " coll channels"))
        take_channels(log, body);
    if (strncmp(body, "Trees ", 6) == 0) {
        log->trees++;
        keep_rest(log->tree, sizeof log->tree, body, "Trees");
    }
    keep_rest(log->network, sizeof log->network, body, "Using network ");
    keep_rest(log->bootstrap, sizeof log->bootstrap, body, "Bootstrap : Using ");
    keep_rest(log->bootstrap, sizeof log->bootstrap, body, "Bootstrap: Using ");
    if (!strstr(body, "No device found"))
        keep_rest(log->devices, sizeof log->devices, body, "NET/IB : Using");
    keep_rest(log->devices, sizeof log->devices, body, "NET/Socket : Using");
    keep_rest(log->version, sizeof log->version, body, "NCCL version ");
}

/* The text after "NCCL INFO " or "NCCL WARN "; NULL: no line of NCCL. */
static const char *body_of(const char *line, bool *ret_warn)
{
    const char *info = strstr(line, "NCCL INFO "), *warn = strstr(line, "NCCL WARN ");
    *ret_warn = warn && (!info || warn < info);
    if (*ret_warn)
        return warn + strlen("NCCL WARN ");
    return info ? info + strlen("NCCL INFO ") : NULL;
}

void dpt_nccl_log_add(struct dpt_nccl_log *log, const char *line)
{
    bool is_warning;
    const char *body = body_of(line, &is_warning);
    if (!body) {
        /* The first rank prints its version without a prefix. */
        if (strstr(line, "NCCL version "))
            take_facts(log, line);
        return;
    }
    log->lines++;
    dpt_nccl_tuning_add(&log->tuning, line, (size_t)(body - line), body);
    if (strncmp(body, "Channel ", 8) == 0 && strstr(body, " via "))
        take_connection(log, body);
    else if (strncmp(body, "Channel ", 8) == 0)
        take_ring(log, body);
    else
        take_facts(log, body);
    if (!find_meaning(log, body) && is_warning)
        add_reason(log, body, "", true, body);
}

void dpt_nccl_log_end(struct dpt_nccl_log *log)
{
    dpt_nccl_tuning_end(&log->tuning);
}

int dpt_nccl_log_edges(const struct dpt_nccl_log *log, const char *prefix)
{
    int n = 0;
    for (int i = 0; i < log->n_edges; i++)
        n += strncmp(log->edge[i].via, prefix, strlen(prefix)) == 0;
    return n;
}
