/* The checks of check.h: one walk over the descriptor for the form, one function a message. */
#include "rendezvous/proto/check.h"

#include "base/shard.h"
#include "rendezvous/proto/health.h"
#include "rendezvous/proto/links.h"

#include <stdbool.h>
#include <string.h>

/* The longest value of a field, by the field's name, which means the same in every message. For
 * strings the limit includes the NUL; for lists it is a number of elements. */
static size_t limit_of(const ProtobufCFieldDescriptor *field)
{
    /* "ranks" are those of a node, of a run's status, of a mesh, or of a node and its links. */
    _Static_assert(DPT_PROTO_RANKS_MAX * (DPT_LINKS_MAX + 1) <= (int)DPT_MESH_MAX &&
                       (int)DPT_PROTO_STATUS_RANKS_MAX <= (int)DPT_MESH_MAX,
                   "a list of ranks may be longer than that of a mesh");
    static const struct {
        const char *name;
        size_t max;
    } table[] = {
        {"ranks", DPT_MESH_MAX}, /* the first are in every heartbeat */
        {"secret", DPT_PROTO_SECRET_BYTES},
        {"shards", DPT_PROTO_SHARDS_MAX},
        {"steps", DPT_PROTO_STEPS_MAX},
        {"run", DPT_PROTO_NAME_BYTES},
        {"only_run", DPT_PROTO_NAME_BYTES},
        {"node", DPT_PROTO_NAME_BYTES},
        {"user", DPT_PROTO_NAME_BYTES},
        {"software", DPT_PROTO_NAME_BYTES},
        {"cause_kind", DPT_PROTO_NAME_BYTES},
        {"shm_addr", DPT_PROTO_ADDR_BYTES},
        {"tcp_addr", DPT_PROTO_ADDR_BYTES},
        {"address", DPT_PROTO_ADDR_BYTES},
        {"text", DPT_PROTO_TEXT_BYTES},
        {"fault", DPT_HEALTH_FAULT_BYTES},
        {"stacks", DPT_PROTO_STACKS_BYTES},
        {"unsaved_why", DPT_PROTO_TEXT_BYTES},
        {"cause", DPT_PROTO_TEXT_BYTES},
        {"first_error", DPT_PROTO_TEXT_BYTES},
        {"config_yaml", DPT_PROTO_YAML_BYTES_MAX},
        {"outcome", DPT_PROTO_OUTCOME_BYTES_MAX},
        {"nonce", DPT_PROTO_NONCE_BYTES},
        {"host_name", DPT_PROTO_NAME_BYTES},
        {"rack", DPT_PROTO_NAME_BYTES},
        {"runs", DPT_PROTO_RUNS_MAX},
        {"nodes", DPT_PROTO_REPLY_NODES_MAX},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].name, field->name) == 0)
            return table[i].max;
    return DPT_PROTO_DIGEST_BYTES;
}

static bool may_have_lines(const ProtobufCFieldDescriptor *field)
{
    return strcmp(field->name, "config_yaml") == 0 || strcmp(field->name, "stacks") == 0;
}

static bool has_control_characters(const ProtobufCFieldDescriptor *field, const char *text)
{
    for (const char *c = text; *c != '\0'; c++)
        if (((unsigned char)*c < 0x20 || *c == 0x7f) && !(*c == '\n' && may_have_lines(field)))
            return true;
    return false;
}

static enum dpt_status check_form(const ProtobufCMessage *message, struct dpt_err *err);

static enum dpt_status check_value(const ProtobufCFieldDescriptor *field, const void *value,
                                   struct dpt_err *err)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_ENUM: {
        int number = *(const int *)value;
        if (protobuf_c_enum_descriptor_get_value(field->descriptor, number) == NULL)
            return dpt_fail(err, DPT_EPROTO, "field '%s': unknown value %d", field->name, number);
        return DPT_OK;
    }
    case PROTOBUF_C_TYPE_STRING: {
        const char *text = *(const char *const *)value;
        if (text[0] == '\0')
            return DPT_OK;
        const size_t length = strlen(text);
        /* No text has a lower limit than a name: few need a look at the table. */
        if (length >= DPT_PROTO_NAME_BYTES && length >= limit_of(field))
            return dpt_fail(err, DPT_EPROTO, "field '%s': %zu characters, at most %zu", field->name,
                            length, limit_of(field) - 1);
        if (has_control_characters(field, text))
            return dpt_fail(err, DPT_EPROTO, "field '%s' holds control characters", field->name);
        return DPT_OK;
    }
    case PROTOBUF_C_TYPE_BYTES: {
        const ProtobufCBinaryData *bytes = value;
        size_t limit = bytes->len == 0 ? 0 : limit_of(field);
        if (bytes->len > limit)
            return dpt_fail(err, DPT_EPROTO, "field '%s': %zu bytes, at most %zu", field->name,
                            bytes->len, limit);
        return DPT_OK;
    }
    case PROTOBUF_C_TYPE_MESSAGE: {
        const ProtobufCMessage *inner = *(const ProtobufCMessage *const *)value;
        return inner == NULL ? DPT_OK : check_form(inner, err);
    }
    default:
        return DPT_OK; /* the functions below check numbers, one function per message */
    }
}

/* The schema is not recursive: its depth (four) bounds this recursion. */
static enum dpt_status check_form(const ProtobufCMessage *message, struct dpt_err *err)
{
    /* Unknown fields of later versions are allowed. Tag 0 is invalid: protobuf-c decodes it, but
     * then encodes a message that it cannot decode. */
    for (unsigned i = 0; i < message->n_unknown_fields; i++)
        if (message->unknown_fields[i].tag == 0)
            return dpt_fail(err, DPT_EPROTO, "field 0 of %s", message->descriptor->short_name);
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        const char *at = (const char *)message + field->offset;
        if (field->label != PROTOBUF_C_LABEL_REPEATED) {
            DPT_TRY(check_value(field, at, err));
            continue;
        }
        /* In this schema only messages are repeated. */
        DPT_ASSERT(field->type == PROTOBUF_C_TYPE_MESSAGE);
        size_t n =
            *(const size_t *)(const void *)((const char *)message + field->quantifier_offset);
        ProtobufCMessage *const *list = *(ProtobufCMessage *const *const *)(const void *)at;
        if (n > 0 && n > limit_of(field))
            return dpt_fail(err, DPT_EPROTO, "field '%s': %zu elements, at most %zu", field->name,
                            n, limit_of(field));
        for (size_t k = 0; k < n; k++)
            DPT_TRY(check_form(list[k], err));
    }
    return DPT_OK;
}

/* Checks the field `name`. Of a message of another version only one field and the stamp are shown:
 * the agent's `software`, the server's `text`. */
static enum dpt_status check_field(const ProtobufCMessage *message, const char *name,
                                   struct dpt_err *err)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, name);
    return check_value(field, (const char *)message + field->offset, err);
}

/* ---- numbers and names ---- */

static enum dpt_status check_range(struct dpt_err *err, const char *field, int64_t value,
                                   int64_t least, int64_t most)
{
    if (value < least || value > most)
        return dpt_fail(err, DPT_EPROTO, "field '%s': %lld is out of range", field,
                        (long long)value);
    return DPT_OK;
}

static enum dpt_status check_step(struct dpt_err *err, const char *field, int64_t value,
                                  int64_t least)
{
    return check_range(err, field, value, least, DPT_PROTO_STEP_MAX);
}

/* A number beyond int64_t becomes negative, so it is refused, too. */
static enum dpt_status check_generation(struct dpt_err *err, const char *field, uint64_t value,
                                        int64_t least)
{
    return check_range(err, field, (int64_t)value, least, DPT_PROTO_GENERATION_MAX);
}

/* A run's name and a node's id become parts of paths and log lines. */
static enum dpt_status check_name(struct dpt_err *err, const char *field, const char *text)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (text[0] == '\0' || text[0] == '.' || text[strspn(text, allowed)] != '\0')
        return dpt_fail(err, DPT_EPROTO,
                        "field '%s': \"%s\" is not a name (letters, digits, '.', '_', '-')", field,
                        text);
    return DPT_OK;
}

static enum dpt_status check_stamp(const Dpt__Stamp *stamp, struct dpt_err *err)
{
    if (stamp == NULL)
        return dpt_fail(err, DPT_EPROTO, "field 'stamp' is missing");
    DPT_TRY(check_form(&stamp->base, err));
    DPT_TRY(check_name(err, "run", stamp->run));
    DPT_TRY(check_name(err, "node", stamp->node));
    if (stamp->incarnation == 0)
        return check_range(err, "incarnation", 0, 1, INT64_MAX);
    return check_generation(err, "generation", stamp->generation, 0);
}

static enum dpt_status check_spec(const Dpt__RunSpec *spec, struct dpt_err *err)
{
    DPT_TRY(check_range(err, "min_nodes", spec->min_nodes, 1, DPT_PROTO_NODES_MAX));
    DPT_TRY(check_range(err, "max_nodes", spec->max_nodes, spec->min_nodes, DPT_PROTO_NODES_MAX));
    DPT_TRY(check_range(err, "timeout_ms", spec->timeout_ms, DPT_PROTO_TIMEOUT_MS_MIN,
                        DPT_PROTO_TIMEOUT_MS_MAX));
    if (spec->drain_ms != 0)
        DPT_TRY(check_range(err, "drain_ms", spec->drain_ms, DPT_PROTO_DRAIN_MS_MIN,
                            DPT_PROTO_DRAIN_MS_MAX));
    DPT_TRY(check_range(err, "max_world", spec->max_world, 1, DPT_PROTO_WORLD_MAX));
    if (spec->config_digest[0] == '\0')
        return dpt_fail(err, DPT_EPROTO, "field 'config_digest' is empty");
    return DPT_OK;
}

/* ---- ranks ---- */

static enum dpt_status check_shards(const Dpt__RankState *rank, struct dpt_err *err)
{
    for (size_t i = 0; i < rank->n_shards; i++) {
        const Dpt__Shard *shard = rank->shards[i];
        const bool empty = shard->of == DPT_SHARD_EMPTY_OF && shard->index == DPT_SHARD_EMPTY_INDEX;
        if (!empty) {
            DPT_TRY(check_range(err, "of", shard->of, 1, DPT_PROTO_WORLD_MAX));
            DPT_TRY(check_range(err, "index", shard->index, 0, (int64_t)shard->of - 1));
        }
        if (shard->pending && rank->pending_generation == 0)
            return dpt_fail(err, DPT_EPROTO, "field 'pending_generation' is missing");
    }
    DPT_TRY(check_generation(err, "pending_generation", rank->pending_generation, 0));
    return check_generation(err, "ran_generation", rank->ran_generation, 0);
}

static enum dpt_status check_work(const Dpt__RankActivity *work, int64_t most, struct dpt_err *err)
{
    if (work == NULL)
        return DPT_OK;
    DPT_TRY(check_range(err, "main_unit", work->main_unit, 0, INT32_MAX));
    DPT_TRY(check_range(err, "main_slot", work->main_slot, 0, INT32_MAX));
    DPT_TRY(check_range(err, "main_ms", work->main_ms, 0, most));
    DPT_TRY(check_range(err, "comm_unit", work->comm_unit, 0, INT32_MAX));
    return check_range(err, "comm_ms", work->comm_ms, 0, most);
}

static enum dpt_status check_rank_state(const Dpt__RankState *rank, struct dpt_err *err)
{
    DPT_TRY(check_range(err, "local_rank", rank->local_rank, 0, DPT_PROTO_RANKS_MAX - 1));
    DPT_TRY(check_range(err, "spawn", rank->spawn, 1, UINT32_MAX));
    DPT_TRY(check_generation(err, "generation", rank->generation, 0));
    DPT_TRY(check_generation(err, "failed_generation", rank->failed_generation, 0));
    DPT_TRY(check_range(err, "step_applied", rank->step_applied, -1, DPT_PROTO_TOLD_STEPS));
    if (rank->outcome_step != -1)
        DPT_TRY(check_range(err, "outcome_step", rank->outcome_step,
                            rank->step_applied > 0 ? rank->step_applied : 0,
                            rank->step_applied + 1));
    DPT_TRY(check_range(err, "checkpoint_step", rank->checkpoint_step, -1, DPT_PROTO_TOLD_STEPS));
    DPT_TRY(check_range(err, "grant_step", rank->grant_step, -1, DPT_PROTO_TOLD_STEPS));
    DPT_TRY(check_range(err, "rescued_step", rank->rescued_step, 0, DPT_PROTO_TOLD_STEPS));
    DPT_TRY(check_range(err, "unsaved_step", rank->unsaved_step, 0, DPT_PROTO_TOLD_STEPS));
    DPT_TRY(check_generation(err, "unsaved_generation", rank->unsaved_generation, 0));
    DPT_TRY(check_shards(rank, err));
    DPT_TRY(check_work(rank->activity, DPT_PROTO_TOLD_MS, err));
    DPT_TRY(check_range(err, "silent_ms", rank->silent_ms, 0, DPT_PROTO_TOLD_MS));
    return check_range(err, "step_ms_median", rank->step_ms_median, 0, DPT_PROTO_TOLD_MS);
}

/* The run and the node are names, or "". */
static enum dpt_status check_control(const Dpt__Control *control, struct dpt_err *err)
{
    if (control->run[0] != '\0')
        DPT_TRY(check_name(err, "run", control->run));
    if (control->node[0] != '\0')
        DPT_TRY(check_name(err, "node", control->node));
    DPT_TRY(check_step(err, "step", control->step, -1));
    return check_range(err, "first", control->first, 0, DPT_PROTO_NODES_MAX);
}

enum dpt_status dpt_check_agent_state(const Dpt__AgentState *message, struct dpt_err *err)
{
    DPT_TRY(check_stamp(message->stamp, err));
    if (message->version != DPT_PROTO_VERSION)
        return check_field(&message->base, "software", err);
    DPT_TRY(check_form(&message->base, err));
    if (message->spec != NULL)
        DPT_TRY(check_spec(message->spec, err));
    if (message->secret.len != 0)
        DPT_TRY(check_range(err, "secret", (int64_t)message->secret.len, DPT_PROTO_SECRET_BYTES,
                            DPT_PROTO_SECRET_BYTES));
    if (message->control != NULL)
        DPT_TRY(check_control(message->control, err));
    DPT_TRY(dpt_health_check_ranges(message->health, err));
    DPT_TRY(check_range(err, "step_high", message->step_high, 0, DPT_PROTO_TOLD_STEPS));
    DPT_TRY(check_range(err, "plan_world", message->plan_world, 0, DPT_PROTO_WORLD_MAX));
    DPT_TRY(check_range(err, "ranks", (int64_t)message->n_ranks, 0, DPT_PROTO_RANKS_MAX));
    for (size_t i = 0; i < message->n_ranks; i++) {
        DPT_TRY(check_rank_state(message->ranks[i], err));
        if (message->ranks[i]->local_rank != i)
            return dpt_fail(err, DPT_EPROTO, "field 'ranks': local rank %u at place %zu",
                            message->ranks[i]->local_rank, i);
    }
    return DPT_OK;
}

/* ---- plans ---- */

static enum dpt_status check_plan_rank(const Dpt__PlanRank *rank, const Dpt__Plan *plan,
                                       struct dpt_err *err)
{
    const int64_t last_rank = (int64_t)plan->world_size - 1;
    DPT_TRY(check_range(err, "rank", rank->rank, 0, last_rank));
    DPT_TRY(check_range(err, "position", rank->position, 0, last_rank));
    DPT_TRY(check_range(err, "host", rank->host, 0, (int64_t)plan->n_hosts - 1));
    DPT_TRY(check_range(err, "rack", rank->rack, 0, (int64_t)plan->n_hosts - 1));
    DPT_TRY(check_range(err, "local_rank", rank->local_rank, -1, DPT_PROTO_RANKS_MAX - 1));
    DPT_TRY(check_range(err, "node", rank->node, 0, (int64_t)plan->n_nodes - 1));
    return check_range(err, "checkpoint_slot", rank->checkpoint_slot, -1,
                       (int64_t)plan->checkpoint_writers - 1);
}

static enum dpt_status check_plan(const Dpt__Plan *plan, struct dpt_err *err)
{
    DPT_TRY(check_generation(err, "generation", plan->generation, 1));
    DPT_TRY(check_range(err, "nonce", (int64_t)plan->nonce.len, DPT_PROTO_NONCE_BYTES,
                        DPT_PROTO_NONCE_BYTES));
    DPT_TRY(check_range(err, "world_size", plan->world_size, 1, DPT_PROTO_WORLD_MAX));
    DPT_TRY(check_range(err, "n_hosts", plan->n_hosts, 1, plan->world_size));
    DPT_TRY(check_range(err, "n_nodes", plan->n_nodes, 1, plan->world_size));
    DPT_TRY(check_range(err, "checkpoint_writers", plan->checkpoint_writers, 0, plan->world_size));
    DPT_TRY(check_range(err, "handover_ranks", plan->handover_ranks, 0, plan->world_size - 1));
    if (plan->final_save && plan->handover_ranks > 0)
        return dpt_fail(err, DPT_EPROTO, "field 'final_save' beside handover ranks");
    if (plan->from_seed && (plan->resume_step != 0 || plan->load_checkpoint >= 0))
        return dpt_fail(err, DPT_EPROTO, "field 'from_seed' beside a step to resume from");
    DPT_TRY(check_generation(err, "state_generation", plan->state_generation, 0));
    DPT_TRY(check_step(err, "resume_step", plan->resume_step, 0));
    DPT_TRY(check_step(err, "load_checkpoint", plan->load_checkpoint, -1));
    DPT_TRY(check_step(err, "steps_done_before", plan->steps_done_before, 0));
    if (plan->digest[0] == '\0')
        return dpt_fail(err, DPT_EPROTO, "field 'digest' is empty");
    int64_t last = -1;
    for (size_t i = 0; i < plan->n_ranks; i++) {
        DPT_TRY(check_plan_rank(plan->ranks[i], plan, err));
        if ((int64_t)plan->ranks[i]->rank <= last)
            return dpt_fail(err, DPT_EPROTO, "field 'ranks': rank %u out of order",
                            plan->ranks[i]->rank);
        last = plan->ranks[i]->rank;
    }
    return DPT_OK;
}

/* ---- a run's status ---- */

static enum dpt_status check_status(const Dpt__RunStatus *status, struct dpt_err *err)
{
    DPT_TRY(check_name(err, "run", status->run));
    DPT_TRY(check_generation(err, "generation", status->generation, 0));
    DPT_TRY(check_range(err, "world_size", status->world_size, 0, DPT_PROTO_WORLD_MAX));
    DPT_TRY(check_range(err, "still_ms", status->still_ms, 0, DPT_PROTO_MS_MAX));
    DPT_TRY(check_range(err, "limit_ms", status->limit_ms, 0, DPT_PROTO_MS_MAX));
    DPT_TRY(check_range(err, "step_ms_median", status->step_ms_median, 0, DPT_PROTO_MS_MAX));
    DPT_TRY(check_range(err, "phase_ms", status->phase_ms, 0, DPT_PROTO_MS_MAX));
    DPT_TRY(check_range(err, "heartbeat_ms", status->heartbeat_ms, 0, DPT_PROTO_MS_MAX));
    DPT_TRY(check_range(err, "heard_ms_ago", status->heard_ms_ago, -1, DPT_PROTO_MS_MAX));
    for (size_t i = 0; i < status->n_ranks; i++) {
        const Dpt__RankStatus *rank = status->ranks[i];
        DPT_TRY(check_name(err, "node", rank->node));
        DPT_TRY(check_range(err, "local_rank", rank->local_rank, 0, DPT_PROTO_RANKS_MAX - 1));
        DPT_TRY(check_range(err, "plan_rank", rank->plan_rank, -1, DPT_PROTO_WORLD_MAX - 1));
        DPT_TRY(check_generation(err, "generation", rank->generation, 0));
        DPT_TRY(check_step(err, "step_applied", rank->step_applied, -1));
        DPT_TRY(check_range(err, "heard_ms_ago", rank->heard_ms_ago, 0, DPT_PROTO_MS_MAX));
        DPT_TRY(check_range(err, "node_ms_ago", rank->node_ms_ago, 0, DPT_PROTO_MS_MAX));
        DPT_TRY(check_work(rank->activity, DPT_PROTO_MS_MAX, err));
    }
    return DPT_OK;
}

/* ---- replies to an operator ---- */

static enum dpt_status check_run_info(const Dpt__RunInfo *run, struct dpt_err *err)
{
    DPT_TRY(check_name(err, "run", run->run));
    DPT_TRY(check_generation(err, "generation", run->generation, 0));
    DPT_TRY(check_range(err, "world_size", run->world_size, 0, DPT_PROTO_WORLD_MAX));
    DPT_TRY(check_range(err, "n_nodes", run->n_nodes, 0, DPT_PROTO_NODES_MAX));
    DPT_TRY(check_step(err, "step", run->step, -1));
    DPT_TRY(check_step(err, "saved_step", run->saved_step, -1));
    DPT_TRY(check_range(err, "step_ms_median", run->step_ms_median, 0, DPT_PROTO_MS_MAX));
    DPT_TRY(check_range(err, "heard_ms_ago", run->heard_ms_ago, -1, DPT_PROTO_MS_MAX));
    return check_range(err, "phase_ms", run->phase_ms, 0, DPT_PROTO_MS_MAX);
}

static enum dpt_status check_node_info(const Dpt__NodeInfo *node, struct dpt_err *err)
{
    DPT_TRY(check_name(err, "run", node->run));
    DPT_TRY(check_name(err, "node", node->node));
    DPT_TRY(check_range(err, "n_ranks", node->n_ranks, 0, DPT_PROTO_RANKS_MAX));
    DPT_TRY(check_range(err, "first_rank", node->first_rank, -1, DPT_PROTO_WORLD_MAX - 1));
    DPT_TRY(check_step(err, "step", node->step, -1));
    DPT_TRY(dpt_health_check_ranges(node->health, err));
    return check_range(err, "heard_ms_ago", node->heard_ms_ago, 0, DPT_PROTO_MS_MAX);
}

static enum dpt_status check_reply(const Dpt__ControlReply *reply, struct dpt_err *err)
{
    if (reply->run[0] != '\0')
        DPT_TRY(check_name(err, "run", reply->run));
    DPT_TRY(check_step(err, "step", reply->step, -1));
    for (size_t i = 0; i < reply->n_runs; i++)
        DPT_TRY(check_run_info(reply->runs[i], err));
    for (size_t i = 0; i < reply->n_nodes; i++)
        DPT_TRY(check_node_info(reply->nodes[i], err));
    return DPT_OK;
}

enum dpt_status dpt_check_server_state(const Dpt__ServerState *message, struct dpt_err *err)
{
    DPT_TRY(check_stamp(message->stamp, err));
    if (message->version != DPT_PROTO_VERSION)
        return check_field(&message->base, "text", err);
    DPT_TRY(check_form(&message->base, err));
    if (message->stamp->epoch == 0)
        return check_range(err, "epoch", 0, 1, INT64_MAX);
    if (message->only_run[0] != '\0')
        DPT_TRY(check_name(err, "only_run", message->only_run));
    if (message->spec != NULL)
        DPT_TRY(check_spec(message->spec, err));
    if (message->plan != NULL)
        DPT_TRY(check_plan(message->plan, err));
    if (message->status != NULL)
        DPT_TRY(check_status(message->status, err));
    if (message->reply != NULL)
        DPT_TRY(check_reply(message->reply, err));
    DPT_TRY(check_step(err, "save_from", message->save_from, 0));
    DPT_TRY(check_range(err, "heartbeat_ms", message->heartbeat_ms, 0, DPT_PROTO_TIMEOUT_MS_MAX));
    DPT_TRY(check_step(err, "world_step", message->world_step, 0));
    return check_step(err, "grant_step", message->grant_step, -1);
}

enum dpt_status dpt_check_agent_to_rank(const Dpt__AgentToRank *message, struct dpt_err *err)
{
    DPT_TRY(check_form(&message->base, err));
    if (message->plan != NULL)
        DPT_TRY(check_plan(message->plan, err));
    if (message->plan == NULL && message->command == DPT__RANK_COMMAND__COMMAND_PLAN)
        return dpt_fail(err, DPT_EPROTO, "field 'plan' is missing");
    if (message->plan != NULL && message->plan->generation != message->generation)
        return dpt_fail(err, DPT_EPROTO, "field 'generation': %llu, but the plan is of %llu",
                        (unsigned long long)message->generation,
                        (unsigned long long)message->plan->generation);
    DPT_TRY(check_step(err, "save_from", message->save_from, 0));
    return check_step(err, "grant_step", message->grant_step, -1);
}

/* ---- results ---- */

static enum dpt_status check_steps(const Dpt__RankToAgent *message, struct dpt_err *err)
{
    int64_t last = 0;
    for (size_t i = 0; i < message->n_steps; i++) {
        const Dpt__StepRecord *at = message->steps[i];
        DPT_TRY(check_step(err, "step", at->step, last + 1));
        DPT_TRY(check_range(err, "world_size", at->world_size, 1, DPT_PROTO_WORLD_MAX));
        DPT_TRY(check_range(err, "epoch", at->epoch, 0, at->step));
        if (at->epoch > 0)
            DPT_TRY(check_range(err, "epoch_first_step", at->epoch_first_step, 1, at->step));
        last = at->step;
    }
    return DPT_OK;
}

static enum dpt_status check_accuracy(int64_t right, int64_t samples, struct dpt_err *err)
{
    DPT_TRY(check_range(err, "val_samples", samples, 0, INT64_MAX));
    return check_range(err, "val_right", right, 0, samples);
}

static enum dpt_status check_summary(const Dpt__RunSummary *summary, struct dpt_err *err)
{
    DPT_TRY(check_step(err, "start_step", summary->start_step, 0));
    DPT_TRY(check_step(err, "steps", summary->steps, 0));
    DPT_TRY(check_range(err, "total_ms", summary->total_ms, 0, DPT_PROTO_MS_MAX));
    DPT_TRY(check_range(err, "node_ms", summary->node_ms, 0, DPT_PROTO_MS_MAX));
    DPT_TRY(check_step(err, "saved_step", summary->saved_step, 0));
    DPT_TRY(check_accuracy(summary->val_right, summary->val_samples, err));
    return check_step(err, "steps_lost", summary->steps_lost, 0);
}

enum dpt_status dpt_check_rank_to_agent(const Dpt__RankToAgent *message, struct dpt_err *err)
{
    DPT_TRY(check_form(&message->base, err));
    if (message->state == NULL)
        return dpt_fail(err, DPT_EPROTO, "field 'state' is missing");
    DPT_TRY(check_range(err, "exit_code", message->exit_code, 0, 255));
    DPT_TRY(check_range(err, "step_ms_median", message->step_ms_median, 0, DPT_PROTO_MS_MAX));
    DPT_TRY(check_step(err, "val_step", message->val_step, 0));
    DPT_TRY(check_accuracy(message->val_right, message->val_samples, err));
    DPT_TRY(check_step(err, "saved_step", message->saved_step, 0));
    DPT_TRY(check_steps(message, err));
    if (message->summary != NULL)
        DPT_TRY(check_summary(message->summary, err));
    return check_rank_state(message->state, err);
}
