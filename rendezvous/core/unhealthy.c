/* Refuses a node after a failed health check. The node is no member and defines no run. The journal
 * has it as history. */
#include "rendezvous/core/join.h"

#include "rendezvous/core/apply.h"

#include <stdio.h>
#include <string.h>

/* False: this process was among the last that were refused. */
static bool note_refusal(struct unhealthy_list *list, const Dpt__Stamp *stamp)
{
    const uint64_t id_hash = dpt_rdzv_id_hash(stamp->node);
    for (size_t i = 0; i < UNHEALTHY_MAX; i++)
        if (list->ring[i].id_hash == id_hash && list->ring[i].incarnation == stamp->incarnation)
            return false;
    list->ring[list->n % UNHEALTHY_MAX].id_hash = id_hash;
    list->ring[list->n++ % UNHEALTHY_MAX].incarnation = stamp->incarnation;
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
    if (note_refusal(&from->core->unhealthy, from->message->stamp))
        record_refusal(from);
    (void)snprintf(text, sizeof text, "the health check of this machine has failed: %s",
                   health->fault);
    const struct answer answer = {.phase = DPT__SERVER_PHASE__SERVER_REFUSED, .text = text};
    dpt_rdzv_answer_outsider(from, &answer);
    return true;
}
