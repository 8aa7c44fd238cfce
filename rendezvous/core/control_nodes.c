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

void dpt_rdzv_add_silence(struct command *command)
{
    const struct run *run = command->run;
    const size_t used = strlen(command->text);
    if (run == NULL || command->reply->outcome != GOES_ON || !dpt_rdzv_is_unheard(run))
        return;
    (void)snprintf(command->text + used, sizeof command->text - used,
                   "; but no node of the run is heard for more than %.1f s, a lease: dpt-ctl nodes "
                   "says for how long",
                   (double)run->timing.lease_ms / 1000);
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

/* The node is not here any more. Only a node that was released, and not as the last one with its
 * steps, has left as a drain promises: its state is safe. */
static void answer_drained(struct command *command, const struct departed *removed)
{
    const struct progress *progress = &command->run->progress;
    const char *run = command->run->name, *node = command->control->node;
    const int64_t without = dpt_rdzv_step_without_checkpoint(command->run);
    if (removed != NULL && removed->released && removed->last_holder && without > 0)
        dpt_rdzv_set_outcome(
            command, REFUSED,
            "run %s: node %s has left, and no checkpoint and no node here has the steps after %lld "
            "up to %lld: its log says whether it has written a rescue%s%.300s",
            run, node, (long long)(progress->saved_step > 0 ? progress->saved_step : 0),
            (long long)without, progress->unsaved.text[0] != '\0' ? "; not saved: " : "",
            progress->unsaved.text);
    else if (removed != NULL && removed->released)
        dpt_rdzv_set_outcome(command, DONE, "run %s: node %s has left", run, node);
    else
        dpt_rdzv_set_outcome(
            command, REFUSED,
            "run %s: node %s was lost or expelled, and has not left in order: its newest "
            "steps may be lost if no other node has them",
            run, node);
}

/* True: the run makes no checkpoint, and without the node no node has its steps. */
static bool is_only_memory(const struct run *run, const struct node *node)
{
    bool others = false;
    for (size_t i = 0; i < run->n_nodes; i++)
        others = others || (run->nodes[i] != node && !run->nodes[i]->leaving &&
                            dpt_rdzv_node_is_member(run->nodes[i]));
    return run->checkpoint_dir_id[0] == '\0' && !others && run->progress.step > 0 &&
           node->order == NODE_ORDER_NONE && !node->leaving;
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
    } else if (is_only_memory(run, node)) {
        dpt_rdzv_set_outcome(
            command, REFUSED,
            "run %s has no checkpoint.dir, and no other node has its steps, so all of them would "
            "be lost: let another node join first, or take this one out by dpt-ctl evict",
            run->name);
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

/* Returns the newest step of a member of the plan if no node that stays has it, nor a checkpoint;
 * otherwise 0. *ret_had_all: the member had the whole state of the step, not a part. */
static int64_t remove_evicted(struct run *run, const char *id, bool *ret_had_all)
{
    struct node *node = dpt_rdzv_find_node(run, id);
    const struct kept_node *kept = dpt_rdzv_find_kept(run, id);
    int64_t lost = 0;
    if (node != NULL) {
        const int64_t kept_step = dpt_rdzv_step_kept_by_others(run, node);
        if (dpt_rdzv_node_is_member(node) && kept_step == 0 &&
            run->progress.step > run->progress.saved_step)
            lost = run->progress.step;
        *ret_had_all = !run->spec.sharded || run->plan.n_nodes == 1;
        node->order = NODE_ORDER_OUT;
        dpt_rdzv_answer_evicted(run, node, kept_step);
        dpt_rdzv_node_lost(run, node, "an operator evicted it");
    } else if (kept != NULL) { /* not back since the server's restart */
        dpt_rdzv_remove_kept(run, kept, false, "an operator evicted it");
    }
    return lost;
}

void dpt_rdzv_evict_node(struct command *command)
{
    struct run *run = command->run;
    const char *node = command->control->node;
    struct deny_list *denied = &command->core->denied;
    int64_t lost = 0;
    bool had_all = false;
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
        lost = remove_evicted(run, node, &had_all);
    }
    if (lost > 0)
        dpt_rdzv_set_outcome(
            command, DONE,
            "run %s: node %s is out and denied; it had %sthe steps after %lld up to %lld, which no "
            "other node and no checkpoint has",
            run->name, node, had_all ? "" : "a part of ",
            (long long)(run->progress.saved_step > 0 ? run->progress.saved_step : 0),
            (long long)lost);
    else
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
