/* The same as JSON. docs/control.md has the fields. */
#include "worker/ctl/result.h"

#include "worker/ctl/words.h"

#include <ctype.h>
#include <string.h>

enum { RESULT_VERSION = 1, WORD_BYTES = 32 };

/* null below 0: there is none. */
static json_t *step_or_null(int64_t step)
{
    return step < 0 ? json_null() : json_integer(step);
}

static bool append_json(json_t *array, json_t *item)
{
    return json_array_append_new(array, item) == 0; /* also NULL: no memory */
}

/* Adds version and `list` (taken; NULL: no memory) under `name`. */
static json_t *wrap_list(const char *name, json_t *list)
{
    return json_pack("{s:i, s:o}", "version", RESULT_VERSION, name, list);
}

/* ---- runs ---- */

json_t *dpt_ctl_json_run(const Dpt__RunInfo *run)
{
    return json_pack(
        "{s:s, s:s, s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:I, s:I, s:I, s:o, s:s, "
        "s:s}",
        "run", run->run, "user", run->user, "state", dpt_ctl_run_word(run), "paused", run->paused,
        "stopping", run->stopping, "generation", (json_int_t)run->generation, "ranks",
        (json_int_t)run->world_size, "nodes", (json_int_t)run->n_nodes, "min_nodes",
        (json_int_t)run->min_nodes, "max_nodes", (json_int_t)run->max_nodes, "step",
        step_or_null(run->step), "saved_step", step_or_null(run->saved_step), "restarts_left",
        (json_int_t)run->restarts_left, "step_ms", (json_int_t)run->step_ms_median, "phase_ms",
        (json_int_t)run->phase_ms, "heard_ms_ago", step_or_null(run->heard_ms_ago), "cause",
        run->cause, "error", run->text);
}

json_t *dpt_ctl_json_runs(const Dpt__ControlReply *reply)
{
    json_t *array = json_array();
    bool whole = array != NULL;
    for (size_t i = 0; whole && i < reply->n_runs; i++)
        whole = append_json(array, dpt_ctl_json_run(reply->runs[i]));
    if (!whole) {
        json_decref(array);
        return NULL;
    }
    return wrap_list("runs", array);
}

/* ---- nodes ---- */

/* null: the node has made no check. */
static json_t *health_or_null(const Dpt__NodeHealth *health)
{
    if (health == NULL)
        return json_null();
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "check_us", (json_int_t)health->check_us,
                     "memory_bytes", (json_int_t)health->memory_bytes, "cores",
                     (json_int_t)health->cores, "mflops", (json_int_t)health->mflops,
                     "round_trip_us", (json_int_t)health->round_trip_us);
}

bool dpt_ctl_json_add_nodes(const Dpt__ControlReply *reply, json_t *array)
{
    bool whole = array != NULL;
    for (size_t i = 0; whole && i < reply->n_nodes; i++) {
        const Dpt__NodeInfo *node = reply->nodes[i];
        whole = append_json(
            array,
            json_pack("{s:s, s:s, s:s, s:s?, s:s?, s:s, s:I, s:o, s:o, s:o, s:b, s:I, s:o}", "node",
                      node->node, "run", node->run, "host", node->host_name, "address",
                      node->address[0] != '\0' ? node->address : NULL, "rack",
                      node->rack[0] != '\0' ? node->rack : NULL, "state", dpt_ctl_node_word(node),
                      "ranks", (json_int_t)node->n_ranks, "first_rank",
                      step_or_null(node->first_rank), "step", step_or_null(node->step),
                      "heard_ms_ago",
                      dpt_ctl_node_is_heard(node) ? json_integer(node->heard_ms_ago) : json_null(),
                      "connected", node->connected, "incarnation", (json_int_t)node->incarnation,
                      "health", health_or_null(node->health)));
    }
    return whole;
}

/* ---- ranks ---- */

/* "RANK_RUNNING" as "running". */
static void phase_word(Dpt__RankPhase phase, char ret[WORD_BYTES])
{
    const ProtobufCEnumValue *value =
        protobuf_c_enum_descriptor_get_value(&dpt__rank_phase__descriptor, (int)phase);
    const char *name = value != NULL ? strchr(value->name, '_') : NULL;
    size_t i = 0;
    for (; name != NULL && name[i + 1] != '\0' && i + 1 < WORD_BYTES; i++)
        ret[i] = (char)tolower((unsigned char)name[i + 1]);
    ret[i] = '\0';
}

/* stacks: NULL: the field is left out. */
static json_t *json_of_rank(const struct dpt_hang_rank *rank, const char *stacks)
{
    char phase[WORD_BYTES], own[DPT_HANG_WORK_BYTES], comm[DPT_HANG_WORK_BYTES];
    phase_word(rank->phase, phase);
    dpt_hang_print_work(rank->main, rank->main_unit, rank->main_slot, own);
    dpt_hang_print_work(rank->comm, rank->comm_unit, -1, comm);
    const bool transfers = rank->known && rank->comm != DPT__RANK_WORK__WORK_NONE;
    json_t *object = json_pack(
        "{s:o, s:s, s:s, s:I, s:s, s:o, s:b, s:I, s:o, s:o}", "rank", step_or_null(rank->rank),
        "node", rank->node, "host", rank->host, "local_rank", (json_int_t)rank->local_rank, "phase",
        phase, "step", step_or_null(rank->step), "busy", rank->busy, "heard_ms_ago",
        (json_int_t)rank->heard_ms, "work", rank->known ? json_string(own) : json_null(),
        "transfer", transfers ? json_string(comm) : json_null());
    if (object != NULL && stacks != NULL &&
        json_object_set_new(object, "stacks",
                            stacks[0] != '\0' ? json_string(stacks) : json_null()) != 0) {
        json_decref(object);
        return NULL;
    }
    return object;
}

json_t *dpt_ctl_json_ranks(const struct dpt_hang_view *view, const Dpt__RunStatus *status)
{
    json_t *array = json_array();
    bool whole = array != NULL;
    for (int i = 0; whole && i < view->n; i++)
        whole = append_json(
            array, json_of_rank(&view->rank[i], status != NULL ? status->ranks[i]->stacks : NULL));
    if (whole)
        return array;
    json_decref(array);
    return NULL;
}

json_t *dpt_ctl_json_dump(const Dpt__ServerState *answer, const struct dpt_hang_view *view)
{
    return json_pack("{s:i, s:o, s:o}", "version", RESULT_VERSION, "run",
                     answer->reply->n_runs > 0 ? dpt_ctl_json_run(answer->reply->runs[0])
                                               : json_null(),
                     "ranks", dpt_ctl_json_ranks(view, answer->status));
}

/* ---- commands ---- */

/* NULL, which s? makes null, for "". */
static const char *text_or_null(const char *text)
{
    return text[0] != '\0' ? text : NULL;
}

json_t *dpt_ctl_json_done(const struct dpt_ctl_done *done)
{
    return json_pack("{s:i, s:s, s:s, s:s?, s:o, s:s?, s:s?, s:s?, s:s}", "version", RESULT_VERSION,
                     "command", done->args->command, "run", done->run, "node",
                     text_or_null(done->args->node), "step", step_or_null(done->step), "folder",
                     text_or_null(done->folder), "folder_node", text_or_null(done->folder_node),
                     "folder_host", text_or_null(done->folder_host), "text", done->text);
}
