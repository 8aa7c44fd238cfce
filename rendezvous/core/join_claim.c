/* The right to join a run. A process may join if it has the user, config, device and data of the
 * run, and a node id that is free or belongs to the process. The functions of this file change
 * nothing.
 *
 * A node id belongs to the processes that know the secret with which the node joined. The secret is
 * stored beside the node's logs, where a restarted worker finds it. The server sends it to no
 * process. When a node is removed, a process with another secret may take its id. The ban on a
 * removed incarnation holds for processes that know its secret. */
#include "rendezvous/core/join.h"

#include "rendezvous/core/kept.h"

#include <stdio.h>
#include <string.h>

static bool knows_secret(const Dpt__AgentState *message,
                         const uint8_t secret[DPT_PROTO_SECRET_BYTES])
{
    uint8_t brought[DPT_PROTO_SECRET_BYTES];
    dpt_rdzv_secret_of(message, brought);
    return memcmp(brought, secret, sizeof brought) == 0;
}

bool dpt_rdzv_is_own(const struct node *node, const Dpt__AgentState *message)
{
    return knows_secret(message, node->secret);
}

struct departed *dpt_rdzv_find_departed(struct run *run, const Dpt__AgentState *message)
{
    uint8_t secret[DPT_PROTO_SECRET_BYTES];
    dpt_rdzv_secret_of(message, secret);
    return dpt_rdzv_departed_as(run, dpt_rdzv_id_hash(message->stamp->node),
                                message->stamp->incarnation, secret);
}

uint64_t dpt_rdzv_newest_ran(const Dpt__AgentState *message)
{
    uint64_t newest = 0;
    for (size_t i = 0; i < message->n_ranks; i++) {
        const Dpt__RankState *rank = message->ranks[i];
        if (rank->phase == DPT__RANK_PHASE__RANK_DEAD)
            continue;
        newest =
            dpt_rdzv_newer(newest, dpt_rdzv_newer(rank->ran_generation, rank->pending_generation));
        newest = dpt_rdzv_newer(newest, rank->failed_generation);
        if (rank->phase == DPT__RANK_PHASE__RANK_RUNNING ||
            rank->phase == DPT__RANK_PHASE__RANK_READY ||
            rank->phase == DPT__RANK_PHASE__RANK_FINISHED)
            newest = dpt_rdzv_newer(newest, rank->generation);
    }
    return newest;
}

bool dpt_rdzv_may_return(const struct inquiry *from, const struct run *run,
                         const struct departed *departed)
{
    const Dpt__Stamp *stamp = from->message->stamp;
    const struct forgotten_run *forgotten = dpt_rdzv_find_forgotten(from->core, stamp->run);
    const uint64_t carried_out = dpt_rdzv_newest_ran(from->message);
    uint64_t ran = forgotten != NULL ? forgotten->run_generation : 0;
    if (run != NULL)
        ran = dpt_rdzv_newer(run->kept.ran, run->formation.ran_before);
    if (departed != NULL && (!departed->cut_off || departed->incarnation != stamp->incarnation))
        return false;
    return carried_out > 0 && carried_out >= ran;
}

bool dpt_rdzv_differs(const struct run *run, const Dpt__AgentState *message, struct refusal *ret)
{
    ret->show_spec = false;
    const Dpt__RunSpec *mine = &run->spec, *theirs = message->spec;
    const size_t text_bytes = sizeof ret->text;
    if (strcmp(mine->user, theirs->user) != 0) {
        (void)snprintf(ret->text, text_bytes,
                       "run '%s' belongs to user '%s', not to '%s': choose another run name",
                       run->name, mine->user, theirs->user);
    } else if (strcmp(mine->config_digest, theirs->config_digest) != 0) {
        ret->show_spec = true;
        (void)snprintf(ret->text, text_bytes, "the config differs from that of run '%s'",
                       run->name);
    } else if (strcmp(run->fingerprint, message->fingerprint) != 0) {
        (void)snprintf(ret->text, text_bytes,
                       "this node has other devices or libraries (%s) than the run (%s); "
                       "train.reduction 'canonical' needs equal devices and libraries, 'fast' and "
                       "'ring' one cluster.backend and strategy.offload that all nodes can have",
                       message->fingerprint, run->fingerprint);
    } else if (run->data_digest[0] != '\0' && message->data_digest[0] != '\0' &&
               strcmp(run->data_digest, message->data_digest) != 0) {
        (void)snprintf(ret->text, text_bytes,
                       "the data of this node (%s) differ from those of run '%s' (%s): compare "
                       "data.train, and data.val when it evaluates",
                       message->data_digest, run->name, run->data_digest);
    } else if (mine->one_checkpoint_dir &&
               strcmp(run->checkpoint_dir_id, message->checkpoint_dir_id) != 0) {
        (void)snprintf(ret->text, text_bytes,
                       "%s of this node is not that of run '%s': under this strategy every rank "
                       "writes its part of the state into one folder; give all nodes the same "
                       "folder of a shared file system, or none (checkpoint.dir=null), or take "
                       "strategy.name=ddp",
                       message->checkpoint_dir_id[0] ? "checkpoint.dir"
                                                     : "The missing checkpoint.dir",
                       run->name);
    } else {
        return false;
    }
    return true;
}

/* The process may replace `former` in two cases. It is a later process of the same node. Or it
 * trains, so an earlier server gave it the id, and `former` takes part in no generation. */
static bool may_replace(const struct node *former, const Dpt__AgentState *message)
{
    return dpt_rdzv_is_own(former, message) ||
           (message->stamp->generation > 0 && former->generation == 0 &&
            !dpt_rdzv_node_is_member(former));
}

static void print_owner(const struct run *run, const struct node *node,
                        char ret_text[DPT_PROTO_TEXT_BYTES])
{
    char at[DPT_PROTO_ADDR_BYTES + 8] = "";
    const char *address = node->n_ranks > 0 ? node->ranks[0].tcp_addr : "";
    const char *port = strrchr(address, ':');
    if (port != NULL)
        (void)snprintf(at, sizeof at, "at %.*s, ", (int)(port - address), address);
    (void)snprintf(ret_text, DPT_PROTO_TEXT_BYTES,
                   "node '%s' of run '%s' is alive (%sjoined %lld s ago) and another process: give "
                   "this one another --node-id, or wait until that node is lost",
                   node->id, run->name, at,
                   (long long)((run->core->now_ms - node->joined_ms) / 1000));
}

enum claim dpt_rdzv_judge_claim(const struct run *run, const struct node *former,
                                const Dpt__AgentState *message, struct refusal *ret)
{
    static const uint8_t none[DPT_PROTO_SECRET_BYTES];
    if (dpt_rdzv_find_denied(run->core, run->name, message->stamp->node) < run->core->denied.n) {
        (void)snprintf(ret->text, sizeof ret->text,
                       "an operator has evicted node '%s' from run '%s'; `dpt-ctl allow %s --run "
                       "%s` takes that back",
                       message->stamp->node, run->name, message->stamp->node, run->name);
        ret->show_spec = false;
        return CLAIM_REFUSED;
    }
    if (dpt_rdzv_differs(run, message, ret))
        return CLAIM_REFUSED;
    const struct kept_node *kept = dpt_rdzv_find_kept(run, message->stamp->node);
    const size_t n_kept = run->kept.n_nodes;
    if (former == NULL && kept == NULL && n_kept >= run->core->nodes_max) {
        (void)snprintf(ret->text, sizeof ret->text,
                       "run '%s' has %zu node%s, the most that this server takes (dpt-rdzv "
                       "--max-nodes)",
                       run->name, n_kept, n_kept == 1 ? "" : "s");
        return CLAIM_REFUSED;
    }
    if (knows_secret(message, none)) {
        (void)snprintf(ret->text, sizeof ret->text,
                       "it sends no secret of its node, so any process could take its place: this "
                       "worker (%s) is not a dpt-worker of the server's version",
                       message->software);
        return CLAIM_REFUSED;
    }
    if (former == NULL) /* a member that the server has not heard since its restart keeps its id */
        return kept == NULL || knows_secret(message, kept->secret) ? CLAIM_GRANTED : CLAIM_WAITS;
    if (may_replace(former, message))
        return CLAIM_GRANTED;
    print_owner(run, former, ret->text);
    return former->link.conn == 0 ? CLAIM_WAITS : CLAIM_REFUSED;
}
