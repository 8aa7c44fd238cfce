/* Keys as owners: a node id belongs to the key that used it first in a run, and only a key that may
 * define a run brings the config of a new one. Without keys every key is zero, and nothing is
 * refused here: nor is a node of a time without keys, or of one with keys on a server without. */
#include "rendezvous/core/join.h"
#include "rendezvous/core/kept.h"
#include "rendezvous/core/tally.h"

#include <stdio.h>
#include <string.h>

enum { SHORT_KEY_BYTES = 2 * 4 + 1 };

static void print_key(const uint8_t key[DPT_RDZV_KEY_BYTES], char ret[SHORT_KEY_BYTES])
{
    for (size_t i = 0; 2 * i + 1 < SHORT_KEY_BYTES; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", key[i]);
}

/* The key to which the id belongs: that of the node, else of the newest one that was removed; NULL:
 * to none. */
static const uint8_t *owner_of(const struct run *run, const struct node *node, const char *id)
{
    if (node != NULL)
        return node->key;
    const struct kept_node *kept = dpt_rdzv_find_kept(run, id);
    if (kept != NULL)
        return kept->key;
    const struct membership *membership = &run->membership;
    const uint64_t hash = dpt_rdzv_id_hash(id);
    for (size_t i = 0; i < DEPARTED_MAX && i < membership->n_departed; i++) {
        const struct departed *departed =
            &membership->departed[(membership->n_departed - 1 - i) % DEPARTED_MAX];
        if (departed->id_hash == hash)
            return departed->key;
    }
    return NULL;
}

bool dpt_rdzv_answer_other_key(const struct inquiry *from, const struct run *run,
                               const struct node *node)
{
    char text[DPT_PROTO_TEXT_BYTES], theirs[SHORT_KEY_BYTES], mine[SHORT_KEY_BYTES];
    const char *id = from->message->stamp->node;
    const uint8_t *owner = owner_of(run, node, id);
    if (owner == NULL || dpt_rdzv_is_no_key(owner) || dpt_rdzv_is_no_key(from->key) ||
        memcmp(owner, from->key, DPT_RDZV_KEY_BYTES) == 0)
        return false;
    print_key(from->key, mine);
    print_key(owner, theirs);
    (void)snprintf(text, sizeof text,
                   "node id '%s' of run '%s' belongs to the machine with key %s, and this machine "
                   "has key %s: give this worker another --node-id",
                   id, run->name, theirs, mine);
    dpt_rdzv_log_refused(from, run, text);
    const struct answer answer = {
        .phase = DPT__SERVER_PHASE__SERVER_REFUSED, .run = run, .text = text};
    dpt_rdzv_answer_outsider(from, &answer);
    return true;
}

bool dpt_rdzv_answer_other_run(const struct inquiry *from)
{
    char text[DPT_PROTO_TEXT_BYTES], mine[SHORT_KEY_BYTES];
    const char *only = from->only_run, *run = from->message->stamp->run;
    const bool looks = from->message->asks_status; /* dpt-doctor; "-": any run */
    if (only == NULL || only[0] == '\0' || strcmp(only, run) == 0 ||
        (looks && strcmp(run, "-") == 0))
        return false;
    print_key(from->key, mine);
    (void)snprintf(text, sizeof text,
                   "this machine (key %s) may take part in run '%s' only, and run '%s' was asked "
                   "for: give %s %s, or a token for every run on a machine with another key",
                   mine, only, run, looks ? "--run" : "--rdzv-id", only);
    const struct answer answer = {.phase = DPT__SERVER_PHASE__SERVER_REFUSED, .text = text};
    dpt_rdzv_answer_outsider(from, &answer);
    return true;
}

/* A process that trains comes from a server before this one, where its run was defined: it waits
 * for a process that may define the run again. */
bool dpt_rdzv_answer_no_definer(const struct inquiry *from)
{
    char text[DPT_PROTO_TEXT_BYTES], mine[SHORT_KEY_BYTES];
    if (!from->join_only)
        return false;
    print_key(from->key, mine);
    (void)snprintf(text, sizeof text,
                   "this machine (key %s) may join runs but not define one, and there is no run "
                   "'%s': start a worker with the config on a machine with the right 'define' "
                   "first (file 'machines' of the server's key folder)",
                   mine, from->message->stamp->run);
    const bool trains = from->message->stamp->generation > 0;
    const struct answer answer = {.phase = trains ? DPT__SERVER_PHASE__SERVER_WAITING
                                                  : DPT__SERVER_PHASE__SERVER_REFUSED,
                                  .text = text};
    dpt_rdzv_answer_outsider(from, &answer);
    return true;
}

bool dpt_rdzv_may_command(const struct inquiry *from, const Dpt__Control *control,
                          char ret_why[DPT_PROTO_TEXT_BYTES])
{
    const bool lists = control->verb == DPT__CONTROL_VERB__CONTROL_RUNS;
    const bool reads = lists || control->verb == DPT__CONTROL_VERB__CONTROL_NODES ||
                       control->verb == DPT__CONTROL_VERB__CONTROL_SHOW ||
                       control->verb == DPT__CONTROL_VERB__CONTROL_DUMP;
    const char *only = from->only_run != NULL ? from->only_run : "";
    if (only[0] != '\0' && strcmp(control->run, only) != 0)
        (void)snprintf(ret_why, DPT_PROTO_TEXT_BYTES,
                       "this machine may take part in run '%s' only: name that run, or none", only);
    else if (from->join_only && !reads)
        (void)snprintf(ret_why, DPT_PROTO_TEXT_BYTES,
                       "this machine may join runs but not steer them: run dpt-ctl on a machine "
                       "with the right 'define' (file 'machines' of the server's key folder)");
    else
        return true;
    return false;
}

void dpt_rdzv_note_denied(struct dpt_rdzv *core, uint64_t conn)
{
    struct node *node = dpt_rdzv_index_find(&core->conns, conn);
    if (node == NULL || node->link.denied)
        return;
    node->link.denied = true;
    dpt_rdzv_list_last(node, LIST_DENIED);
    if (!dpt_rdzv_has_ended(node->run))
        dpt_rdzv_log(node->run, DPT_LOG_WARN,
                     "node %s: its key was denied; lost when its lease ends, unless its machine is "
                     "let in again before",
                     node->id);
}

void dpt_rdzv_log_definer(const struct run *run)
{
    char text[SHORT_KEY_BYTES];
    if (dpt_rdzv_is_no_key(run->kept.definer))
        return;
    print_key(run->kept.definer, text);
    dpt_rdzv_log(run, DPT_LOG_INFO, "the run is defined by the machine with key %s", text);
}
