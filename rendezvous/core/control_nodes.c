/* Commands of an operator about a node: drain, evict, allow. */
#include "rendezvous/core/command.h"

#include "rendezvous/core/apply.h"
#include "rendezvous/core/join.h"
#include "rendezvous/core/kept.h"
#include "rendezvous/core/queries.h"
#include "rendezvous/core/rules.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void dpt_rdzv_set_outcome(struct command *command, Dpt__ControlOutcome outcome, const char *fmt,
                          ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(command->text, sizeof command->text, fmt, ap);
    va_end(ap);
    command->reply->outcome = outcome;
}

/* This removed incarnation of the node (0: the newest one); NULL: it is not remembered. */
static const struct departed *find_removed(const struct run *run, const char *node,
                                           uint64_t incarnation)
{
    const struct departed *newest = NULL;
    for (size_t i = 0; i < run->membership.n_departed_room; i++) {
        const struct departed *each = &run->membership.departed[i];
        if (each->incarnation != 0 && each->id_hash == dpt_rdzv_id_hash(node) &&
            (incarnation == 0 || each->incarnation == incarnation) &&
            (newest == NULL || each->incarnation > newest->incarnation))
            newest = each;
    }
    return newest;
}

/* The node is not here any more. Only a node that was released has left as a drain promises: its
 * state is safe. */
static void answer_drained(struct command *command, const struct departed *removed)
{
    const char *run = command->run->name, *node = command->control->node;
    if (removed != NULL && removed->released)
        dpt_rdzv_set_outcome(command, DONE, "run %s: node %s has left", run, node);
    else
        dpt_rdzv_set_outcome(
            command, REFUSED,
            "run %s: node %s was lost or expelled, and has not left in order: its newest "
            "steps may be lost if no other node has them",
            run, node);
}

/* The answer names the incarnation that shall leave. A later one has come back on purpose. */
void dpt_rdzv_drain_node(struct command *command)
{
    struct run *run = command->run;
    const Dpt__Control *control = command->control;
    struct node *node = dpt_rdzv_find_node(run, control->node);
    const struct departed *removed = find_removed(run, control->node, control->number);
    const bool is_later =
        node != NULL && control->number != 0 && node->incarnation > control->number;
    if (node == NULL && dpt_rdzv_find_kept(run, control->node) != NULL) {
        command->reply->number = control->number;
        dpt_rdzv_set_outcome(command, GOES_ON, "node %s is not back since the server's restart",
                             control->node);
    } else if (is_later || (node == NULL && removed != NULL)) {
        answer_drained(command, removed);
    } else if (node == NULL) {
        dpt_rdzv_set_outcome(command, UNKNOWN, "run %s has no node '%s': dpt-ctl nodes lists them",
                             run->name, control->node);
    } else {
        command->reply->number = node->incarnation;
        dpt_rdzv_set_outcome(command, GOES_ON, "node %s leaves", node->id);
        if (node->order != NODE_ORDER_NONE || node->leaving)
            return;
        node->order = NODE_ORDER_DRAIN;
        run->changed = true;
        dpt_rdzv_log(run, DPT_LOG_INFO, "node %s shall leave: an operator drains it", node->id);
    }
}

static void remove_evicted(struct run *run, const char *id)
{
    struct node *node = dpt_rdzv_find_node(run, id);
    const struct kept_node *kept = dpt_rdzv_find_kept(run, id);
    if (node != NULL) {
        node->order = NODE_ORDER_OUT;
        dpt_rdzv_answer_evicted(run, node, dpt_rdzv_step_kept_by_others(run, node));
        dpt_rdzv_node_lost(run, node, "an operator evicted it");
    } else if (kept != NULL) { /* not back since the server's restart */
        dpt_rdzv_remove_kept(run, kept, false, "an operator evicted it");
    }
}

void dpt_rdzv_evict_node(struct command *command)
{
    struct run *run = command->run;
    const char *node = command->control->node;
    struct deny_list *denied = &command->core->denied;
    if (dpt_rdzv_find_denied(command->core, run->name, node) == denied->n) {
        if (!dpt_rdzv_knows_node(run, node)) {
            dpt_rdzv_set_outcome(command, UNKNOWN,
                                 "run %s has no node '%s': dpt-ctl nodes lists them", run->name,
                                 node);
            return;
        }
        if (denied->n == DENIED_MAX) {
            dpt_rdzv_set_outcome(command, REFUSED,
                                 "%d nodes are denied, which is the most: allow some", DENIED_MAX);
            return;
        }
        dpt_rdzv_decide(command->core, (struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_DENIED,
                                                                .step = -1,
                                                                .count = 1,
                                                                .node = node,
                                                                .text = run->name});
        remove_evicted(run, node);
    }
    dpt_rdzv_set_outcome(command, DONE, "run %s: node %s is out and denied", run->name, node);
}

void dpt_rdzv_allow_node(struct command *command)
{
    const char *run = command->run_name, *node = command->control->node;
    if (dpt_rdzv_find_denied(command->core, run, node) == command->core->denied.n) {
        dpt_rdzv_set_outcome(command, DONE, "run %s: node %s is not denied", run, node);
        return;
    }
    dpt_rdzv_decide(command->core,
                    (struct dpt_rdzv_record){
                        .kind = DPT_RDZV_RECORD_DENIED, .step = -1, .node = node, .text = run});
    dpt_rdzv_set_outcome(command, DONE, "run %s: node %s may join again", run, node);
}
