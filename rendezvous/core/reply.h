/* Messages to agents. Each message contains everything in the state of the run that concerns the
 * agent. */
#ifndef DPT_RENDEZVOUS_CORE_REPLY_H
#define DPT_RENDEZVOUS_CORE_REPLY_H

#include "rendezvous/core/run_state.h"

/* plan_message.c: the newest plan for one of its nodes. A plan lists all ranks of a mesh, and of a
 * larger world the ranks of the node and those to which they have links (rendezvous/proto/links.h).
 * Only nodes of the same host get a rank's shared-memory address. The entries of Plan.ranks are
 * encoded already, as fields that protobuf-c copies into the message. NULL: no memory. */
Dpt__Plan *dpt_rdzv_plan_for(struct run *run, const struct node *node);

/* Answers the node that spoke in this step, or all nodes if the run has changed. */
void dpt_rdzv_answer_nodes(struct run *run);

/* The phase of the run as a placed node is told. */
Dpt__ServerPhase dpt_rdzv_phase_told(const struct run *run);

/* A message, and the connection over which it came. */
struct inquiry {
    struct dpt_rdzv *core;
    uint64_t conn;
    const Dpt__AgentState *message;
    const uint8_t *key;   /* (DPT_RDZV_KEY_BYTES) of the sender */
    bool join_only;       /* the sender may not define a run */
    const char *only_run; /* of the sender; NULL or "": every run */
};

/* Whether the machine may take part in this run, and so read of it. */
bool dpt_rdzv_may_see(const struct inquiry *from, const struct run *run);

/* An answer to a process that is not a node of the run, or no longer. */
struct answer {
    Dpt__ServerPhase phase;
    const struct run *run; /* the answer has its number of nodes; NULL: no run */
    bool with_spec; /* send the run's config; without a run, the name of the server's only run */
    int64_t world_step;     /* EXPELLED: step of the world that trains on with its steps; 0: none */
    const char *text;       /* NULL: none */
    bool stopped;           /* DONE because of an operator: some steps may not be saved */
    int64_t saved_step;     /* stopped, without a run: of its newest checkpoint; <= 0: none */
    Dpt__RunStatus *status; /* memory of the outbox; NULL: none */
    Dpt__ControlReply *reply; /* likewise */
};
void dpt_rdzv_answer_outsider(const struct inquiry *from, const struct answer *answer);
/* Logs that a node is refused, up to a number of lines in ten seconds: a machine may be refused as
 * often as it may send. */
void dpt_rdzv_log_refused(const struct inquiry *from, const struct run *run, const char *why);

/* status.c: sends the status of the run that the message names, or of the server's only run; if
 * there is none, a text. Sends nothing if many were sent within a second. Changes no run. */
void dpt_rdzv_answer_status(const struct inquiry *from);
/* The status of a run, with the stacks that answer this DUMP (0: none); NULL: no memory. */
Dpt__RunStatus *dpt_rdzv_new_status(const struct run *run, uint64_t dump);
/* False: many questions were answered within a second, of the sender or of machines with its right.
 * A true answer counts. */
bool dpt_rdzv_may_answer(const struct inquiry *from);
/* Writes "no run 'x' is here; the server has the runs …". */
void dpt_rdzv_list_runs(const struct dpt_rdzv *core, const char *name, char *text, size_t bytes);

/* Tells the node that it may go; the caller removes it. Reads last_holder and n_nodes of
 * `departed`. */
void dpt_rdzv_answer_released(const struct run *run, const struct node *node,
                              const struct departed *departed);
/* Tells the node that it is expelled; the caller removes it. world_step: as in struct answer. */
void dpt_rdzv_answer_evicted(const struct run *run, const struct node *node, int64_t world_step);
/* Tells it again to a removed node that has not received the first answer. */
void dpt_rdzv_answer_released_again(const struct inquiry *from, const struct departed *departed);

#endif
