/* Refuses a node after a failed health check. The node is no member and defines no run. The journal
 * has it as history. */
#include "rendezvous/core/join.h"

#include "rendezvous/core/apply.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void log_left_out(struct dpt_rdzv *core)
{
    char text[DPT_PROTO_TEXT_BYTES];
    const uint64_t n = dpt_log_bound_each(&core->unhealthy.left_out, core->now_ms, UNHEALTHY_MS);
    if (n == 0)
        return;
    (void)snprintf(text, sizeof text,
                   "%" PRIu64 " node(s) refused after a failed health check are in neither the log "
                   "nor the journal, which take %d a minute, with keys %d of one machine",
                   n, UNHEALTHY_MAX, UNHEALTHY_OF_KEY);
    dpt_outbox_log(&core->out,
                   (struct dpt_rdzv_log_line){.level = DPT_LOG_ERROR, .run = "", .text = text});
}

/* False: this process was among the last that were refused, or there were too many in a minute. */
static bool note_refusal(const struct inquiry *from)
{
    struct dpt_rdzv *core = from->core;
    struct unhealthy_list *list = &core->unhealthy;
    struct unhealthy *next = &list->ring[list->n % UNHEALTHY_MAX];
    const Dpt__Stamp *stamp = from->message->stamp;
    const uint64_t id_hash = dpt_rdzv_id_hash(stamp->node);
    int n = 0;
    for (size_t i = 0; i < UNHEALTHY_MAX; i++) {
        const struct unhealthy *each = &list->ring[i];
        if (each->at_ms == 0)
            continue;
        if (each->id_hash == id_hash && each->incarnation == stamp->incarnation)
            return false;
        n += core->now_ms - each->at_ms < UNHEALTHY_MS &&
             memcmp(each->key, from->key, DPT_RDZV_KEY_BYTES) == 0;
    }
    if ((next->at_ms != 0 && core->now_ms - next->at_ms < UNHEALTHY_MS) ||
        (!dpt_rdzv_is_no_key(from->key) && n >= UNHEALTHY_OF_KEY)) {
        log_left_out(core);
        return false;
    }
    list->n++;
    *next = (struct unhealthy){
        .id_hash = id_hash, .incarnation = stamp->incarnation, .at_ms = core->now_ms};
    memcpy(next->key, from->key, DPT_RDZV_KEY_BYTES);
    return true;
}

static void record_refusal(const struct inquiry *from)
{
    const Dpt__AgentState *message = from->message;
    char text[DPT_PROTO_TEXT_BYTES];
    struct dpt_rdzv_record record = {.kind = DPT_RDZV_RECORD_UNHEALTHY,
                                     .run = "",
                                     .step = -1,
                                     .text = message->health->fault,
                                     .cause = message->stamp->run,
                                     .node = message->stamp->node,
                                     .host = message->host_name,
                                     .incarnation = message->stamp->incarnation};
    memcpy(record.key, from->key, sizeof record.key);
    dpt_health_from_message(message->health, &record.health);
    dpt_rdzv_decide(from->core, record);
    (void)snprintf(text, sizeof text, "node %s (host %s) refused: its health check has failed: %s",
                   message->stamp->node, message->host_name, message->health->fault);
    dpt_outbox_log(&from->core->out, (struct dpt_rdzv_log_line){.level = DPT_LOG_ERROR,
                                                                .run = message->stamp->run,
                                                                .text = text});
}

bool dpt_rdzv_answer_unhealthy(const struct inquiry *from)
{
    const Dpt__NodeHealth *health = from->message->health;
    char text[DPT_PROTO_TEXT_BYTES];
    if (health == NULL || health->fault[0] == '\0')
        return false;
    if (note_refusal(from))
        record_refusal(from);
    (void)snprintf(text, sizeof text, "the health check of this machine has failed: %s",
                   health->fault);
    const struct answer answer = {.phase = DPT__SERVER_PHASE__SERVER_REFUSED, .text = text};
    dpt_rdzv_answer_outsider(from, &answer);
    return true;
}
