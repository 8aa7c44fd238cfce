/* Units as graphs (unit_graphs.h). */
#include "worker/train/device/unit_graphs.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

/* The arguments that a graph depends on. */
struct key {
    int unit;
    bool backward, accumulate, parts_apart;
    enum dpt_mode mode;
    float dloss; /* 0 if the unit does not read it */
    float share;
    const void *weights, *borrowed_weights;
    float *grads, *borrowed_grads;
};

struct entry {
    struct key key;
    struct dpt_graph *graph; /* NULL: not captured yet */
    struct dpt_unit_graphs_announced announced;
};

/* More than a step needs. A step has one forward of a unit, and one backward into each gradient
 * buffer, setting and adding. Further sets of arguments have no graph. */
enum { ENTRIES_A_UNIT = 64 };

struct dpt_unit_graphs {
    const struct dpt_model *model;
    const struct dpt_ops *ops;
    struct dpt_stream *stream;
    bool off; /* a graph could not be made */
    int n, max;
    struct entry *entries;
};

bool dpt_unit_graphs_serve(const struct dpt_config *config, const struct dpt_device *device)
{
    return config->cluster.cuda_graphs && config->model.dropout == 0.0 &&
           dpt_device_has_graphs(device);
}

enum dpt_status dpt_unit_graphs_create(const struct dpt_model *model, struct dpt_device *device,
                                       struct dpt_stream *stream, struct dpt_unit_graphs **ret,
                                       struct dpt_err *err)
{
    struct dpt_unit_graphs *g = calloc(1, sizeof *g);
    if (!g)
        return dpt_fail_nomem(err, "graphs of units");
    *g = (struct dpt_unit_graphs){.model = model,
                                  .ops = dpt_device_ops(device),
                                  .stream = stream,
                                  .max = ENTRIES_A_UNIT * dpt_model_n_units(model)};
    g->entries = calloc((size_t)g->max, sizeof *g->entries);
    if (!g->entries) {
        free(g);
        return dpt_fail_nomem(err, "graphs of units");
    }
    *ret = g;
    return DPT_OK;
}

void dpt_unit_graphs_forget(struct dpt_unit_graphs *g)
{
    for (int i = 0; i < g->n; i++)
        dpt_graph_destroy(&g->entries[i].graph);
    g->n = 0;
}

void dpt_unit_graphs_destroy(struct dpt_unit_graphs **graphs)
{
    struct dpt_unit_graphs *g = *graphs;
    if (!g)
        return;
    dpt_unit_graphs_forget(g);
    free(g->entries);
    free(g);
    *graphs = NULL;
}

static void fill_key(const struct dpt_unit_graphs *g, int unit, bool backward,
                     const struct dpt_slot *slot, struct key *key)
{
    const int borrows = dpt_model_unit(g->model, unit)->borrows;
    memset(key, 0, sizeof *key); /* padding too: keys are compared byte by byte */
    key->unit = unit;
    key->backward = backward;
    key->mode = slot->mode;
    key->weights = slot->weights[unit];
    key->borrowed_weights = borrows < 0 ? NULL : slot->weights[borrows];
    if (!backward)
        return;
    key->accumulate = slot->accumulate;
    key->parts_apart = slot->parts_apart;
    key->dloss = unit == dpt_model_n_units(g->model) - 1 ? slot->dloss : 0.0f;
    key->share = slot->share;
    key->grads = slot->grads[unit];
    key->borrowed_grads = borrows < 0 ? NULL : slot->grads[borrows];
}

/* Finds the entry of the arguments, or adds one (*ret_new). NULL: the table is full. */
static struct entry *find_entry(struct dpt_unit_graphs *g, const struct key *key, bool *ret_new)
{
    *ret_new = false;
    for (int i = 0; i < g->n; i++)
        if (memcmp(&g->entries[i].key, key, sizeof *key) == 0)
            return &g->entries[i];
    *ret_new = true;
    if (g->n == g->max)
        return NULL;
    struct entry *entry = &g->entries[g->n++];
    *entry = (struct entry){.announced = {.first = 1}};
    memcpy(&entry->key, key, sizeof *key);
    return entry;
}

void dpt_unit_graphs_note_announced(void *announced, int param)
{
    struct dpt_unit_graphs_announced *noted = announced;
    if (noted->first > noted->last)
        noted->last = param;
    noted->first = param;
}

/* Posts the unit's ops one by one. */
static void post_ops(struct dpt_unit_graphs *g, const struct key *key, const struct dpt_slot *slot,
                     struct dpt_unit_graphs_announced *announced)
{
    struct dpt_slot mine = *slot;
    *announced = (struct dpt_unit_graphs_announced){.first = 1, .last = 0};
    mine.announce = dpt_unit_graphs_note_announced;
    mine.announce_ctx = announced;
    if (key->backward)
        dpt_model_backward(g->model, g->ops, g->stream, key->unit, &mine);
    else
        dpt_model_forward(g->model, g->ops, g->stream, key->unit, &mine);
}

static void capture_graph(struct dpt_unit_graphs *g, struct entry *entry,
                          const struct dpt_slot *slot)
{
    struct dpt_err err;
    struct dpt_unit_graphs_announced announced;
    if (!dpt_stream_capture_begin(g->stream))
        return;
    post_ops(g, &entry->key, slot, &announced);
    if (dpt_stream_capture_end(g->stream, &entry->graph, &err) == DPT_OK) {
        entry->announced = announced;
        return;
    }
    entry->graph = NULL;
    g->off = true;
    dpt_log(DPT_LOG_WARN,
            "no graphs: %s; ops are posted to the device one by one (cluster.cuda_graphs: false "
            "does so from the start)",
            err.text);
}

static void launch_unit(struct dpt_unit_graphs *g, const struct key *key,
                        const struct dpt_slot *slot, struct dpt_unit_graphs_announced *announced)
{
    bool is_new;
    struct entry *entry = g->off ? NULL : find_entry(g, key, &is_new);
    if (entry && entry->graph && !dpt_graph_is_current(entry->graph, g->stream))
        dpt_graph_destroy(&entry->graph);
    if (entry && !is_new && !entry->graph)
        capture_graph(g, entry, slot);
    if (!entry || !entry->graph) {
        post_ops(g, key, slot, announced);
        return;
    }
    *announced = entry->announced;
    dpt_graph_launch(entry->graph, g->stream);
}

void dpt_unit_graphs_forward(struct dpt_unit_graphs *g, int unit, const struct dpt_slot *slot)
{
    struct dpt_unit_graphs_announced ignored;
    struct key key;
    fill_key(g, unit, false, slot, &key);
    launch_unit(g, &key, slot, &ignored);
}

void dpt_unit_graphs_backward(struct dpt_unit_graphs *g, int unit, const struct dpt_slot *slot,
                              struct dpt_unit_graphs_announced *ret)
{
    struct key key;
    fill_key(g, unit, true, slot, &key);
    launch_unit(g, &key, slot, ret);
}
