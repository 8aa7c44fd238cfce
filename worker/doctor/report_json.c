/* The results as JSON (report.h). */
#include "worker/doctor/report.h"

#include "base/fs.h"

#include <stdlib.h>
#include <string.h>

/* Appends `item` (taken; NULL: no memory). False: no memory. */
static bool append_json_item(json_t *array, json_t *item)
{
    return array && json_array_append_new(array, item) == 0;
}

/* ---- devices ---- */

static json_t *rows_of_gpu(const struct dpt_gpus *gpus, int a)
{
    json_t *row = json_array();
    for (int b = 0; row && b < gpus->n; b++) {
        char link[16];
        dpt_gpus_print_link(gpus, a, b, link);
        if (!append_json_item(
                row, json_pack("{s:s, s:s}", "link", link, "peer_access",
                               a == b ? "itself" : dpt_peer_access_text(gpus->access[a][b]))))
            break;
    }
    return row;
}

json_t *dpt_report_json_gpus(const struct dpt_gpus *gpus)
{
    json_t *array = json_array();
    for (int i = 0; array && i < gpus->n; i++) {
        const struct dpt_gpu *gpu = &gpus->gpu[i];
        json_t *item = json_pack("{s:i, s:s, s:o, s:i, s:o}", "index", i, "bus", gpu->pci.bus_id,
                                 "name", dpt_finding_json_text(gpu->name), "numa", gpu->pci.numa,
                                 "to", rows_of_gpu(gpus, i));
        if (!append_json_item(array, item)) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

json_t *dpt_report_json_nics(const struct dpt_nics *nics)
{
    json_t *interfaces = json_array(), *rdma = json_array();
    bool whole = true;
    for (int i = 0; i < nics->n; i++) {
        const struct dpt_nic *nic = &nics->nic[i];
        whole = whole && append_json_item(interfaces,
                                          json_pack("{s:o, s:b, s:b, s:I, s:i, s:i, s:s}", "name",
                                                    dpt_finding_json_text(nic->name), "up", nic->up,
                                                    "virtual", nic->is_virtual, "mbit",
                                                    (json_int_t)nic->mbit, "mtu", nic->mtu, "numa",
                                                    nic->pci.numa, "addresses", nic->addresses));
    }
    for (int i = 0; i < nics->n_rdma; i++) {
        const struct dpt_rdma *device = &nics->rdma[i];
        whole = whole &&
                append_json_item(
                    rdma, json_pack("{s:o, s:b, s:o, s:o, s:o, s:i}", "name",
                                    dpt_finding_json_text(device->name), "active", device->active,
                                    "rate", dpt_finding_json_text(device->rate), "link_layer",
                                    dpt_finding_json_text(device->link_layer), "net",
                                    dpt_finding_json_text(device->net), "numa", device->pci.numa));
    }
    if (!whole || !interfaces || !rdma) {
        json_decref(interfaces);
        json_decref(rdma);
        return NULL;
    }
    return json_pack("{s:o, s:o}", "interfaces", interfaces, "rdma", rdma);
}

/* ---- links ---- */

static json_t *json_of_pair(const struct dpt_matrix *m, int from, int to)
{
    const struct dpt_pair *pair = &m->pair[from][to];
    if (pair->state == DPT_PAIR_FAILED)
        return json_pack("{s:i, s:i, s:o}", "from", from, "to", to, "error",
                         dpt_finding_json_text(pair->why));
    return json_pack("{s:i, s:i, s:f, s:f, s:f}", "from", from, "to", to, "gb_per_s",
                     pair->bytes_per_s / 1e9, "rtt_us", pair->rtt_us, "rtt_p99_us",
                     pair->rtt_p99_us);
}

json_t *dpt_report_json_matrix(const struct dpt_matrix *m)
{
    json_t *nodes = json_array(), *pairs = json_array();
    struct dpt_matrix_medians medians;
    bool whole = nodes && pairs;
    dpt_matrix_medians(m, &medians);
    for (int i = 0; whole && i < m->n; i++)
        whole = append_json_item(nodes, dpt_finding_json_text(m->name[i]));
    for (int a = 0; whole && a < m->n; a++)
        for (int b = 0; whole && b < m->n; b++)
            if (a != b && m->pair[a][b].state != DPT_PAIR_OPEN)
                whole = append_json_item(pairs, json_of_pair(m, a, b));
    if (!whole) {
        json_decref(nodes);
        json_decref(pairs);
        return NULL;
    }
    return json_pack("{s:o, s:o, s:f, s:f}", "nodes", nodes, "pairs", pairs, "median_gb_per_s",
                     medians.bytes_per_s / 1e9, "median_rtt_us", medians.rtt_us);
}

/* ---- NCCL ---- */

json_t *dpt_report_json_nccl(const struct dpt_nccl_log *log)
{
    json_t *edges = json_array(), *reasons = json_array();
    bool whole = edges && reasons;
    for (int i = 0; whole && i < log->n_edges; i++)
        whole = append_json_item(edges, json_pack("{s:i, s:i, s:o, s:i}", "from", log->edge[i].from,
                                                  "to", log->edge[i].to, "via",
                                                  dpt_finding_json_text(log->edge[i].via),
                                                  "channels", log->edge[i].channels));
    for (int i = 0; whole && i < log->n_reasons; i++)
        whole = append_json_item(reasons,
                                 json_pack("{s:o, s:b, s:i, s:o}", "text",
                                           dpt_finding_json_text(log->reason[i].text), "bad",
                                           log->reason[i].bad, "count", log->reason[i].count,
                                           "line", dpt_finding_json_text(log->reason[i].line)));
    if (!whole) {
        json_decref(edges);
        json_decref(reasons);
        return NULL;
    }
    return json_pack("{s:o, s:o, s:i, s:i, s:o, s:o, s:o, s:o, s:o}", "version",
                     dpt_finding_json_text(log->version), "network",
                     dpt_finding_json_text(log->network), "ranks", log->ranks, "channels",
                     log->channels, "ring", dpt_finding_json_text(log->ring), "tree",
                     dpt_finding_json_text(log->tree), "connections", edges, "reasons", reasons,
                     "tuning", dpt_report_json_tuning(&log->tuning));
}

/* ---- hang ---- */

static json_t *json_of_rank(const struct dpt_hang_rank *rank)
{
    char own[DPT_HANG_WORK_BYTES], comm[DPT_HANG_WORK_BYTES];
    dpt_hang_print_work(rank->main, rank->main_unit, rank->main_slot, own);
    dpt_hang_print_work(rank->comm, rank->comm_unit, -1, comm);
    return json_pack(
        "{s:i, s:o, s:o, s:i, s:I, s:I, s:I, s:b, s:s, s:I, s:s, s:i, s:I}", "rank", rank->rank,
        "node", dpt_finding_json_text(rank->node), "host", dpt_finding_json_text(rank->host),
        "local_rank", (int)rank->local_rank, "steps", (json_int_t)rank->step, "heard_ms_ago",
        (json_int_t)rank->heard_ms, "node_ms_ago", (json_int_t)rank->node_ms, "connected",
        rank->connected, "main", own, "main_ms", (json_int_t)rank->main_ms, "communication", comm,
        "communication_unit", rank->comm_unit, "communication_ms", (json_int_t)rank->comm_ms);
}

json_t *dpt_report_json_hang(const struct dpt_hang *hang)
{
    const struct dpt_hang_view *view = hang->view;
    json_t *ranks = json_array(), *blamed = json_array();
    bool whole = ranks && blamed;
    for (int i = 0; whole && i < view->n; i++)
        whole = append_json_item(ranks, json_of_rank(&view->rank[i]));
    for (int i = 0; whole && i < hang->n_blamed; i++)
        whole = append_json_item(blamed, json_integer(hang->blamed[i]->rank));
    if (!whole) {
        json_decref(ranks);
        json_decref(blamed);
        return NULL;
    }
    return json_pack("{s:s, s:b, s:s, s:I, s:i, s:I, s:I, s:I, s:o, s:o}", "verdict",
                     dpt_hang_kind_word(hang->kind), "hangs", dpt_hang_is_bad(hang), "run",
                     view->run, "generation", (json_int_t)view->generation, "world_size",
                     view->world_size, "steps_made", (json_int_t)hang->steps, "still_ms",
                     (json_int_t)view->still_ms, "limit_ms", (json_int_t)view->limit_ms, "behind",
                     blamed, "ranks", ranks);
}

/* ---- the output ---- */

enum dpt_status dpt_report_write(json_t *object, const char *file, struct dpt_err *err)
{
    char *text = object ? json_dumps(object, JSON_INDENT(2)) : NULL;
    json_decref(object);
    if (!text)
        return dpt_fail_nomem(err, "report as JSON");
    enum dpt_status status = DPT_OK;
    if (strcmp(file, "-") == 0)
        (void)puts(text);
    else
        status = dpt_wrap(err, dpt_fs_write_file_atomic(file, text, strlen(text), err), "--json");
    free(text);
    return status;
}
