/* What an operator wants (dpt-ctl): part of the state in run_state.h. */
#ifndef DPT_RENDEZVOUS_CORE_ORDERS_H
#define DPT_RENDEZVOUS_CORE_ORDERS_H

#include "rendezvous/proto/message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DENIED_MAX = 1024,       /* denied ids of all runs */
    SAVE_REQUEST_MS = 10000, /* a request for a checkpoint that nobody repeats ends then */
    DUMP_REQUEST_MS = 2000,  /* a request for stacks that nobody repeats ends then */
    DUMP_MS = 3000,          /* a rank that has not answered by then does not answer */
    DUMP_RANKS_MAX = 512     /* ranks of a reply with their stacks: 2 MiB */
};

/* A node id that may not join the run of this name. */
struct denied {
    char run[DPT_PROTO_NAME_BYTES], node[DPT_PROTO_NAME_BYTES];
};

/* Durable: only dpt_rdzv_apply changes it. An entry outlives the run. */
struct deny_list {
    struct denied list[DENIED_MAX]; /* (n) in order of their denial */
    size_t n;
};

/* The order for one node. */
enum node_order {
    NODE_ORDER_NONE,
    NODE_ORDER_DRAIN, /* it shall leave; told with each answer */
    NODE_ORDER_OUT    /* it is being evicted: its loss costs no restart */
};

struct dpt_rdzv;
struct rank;
/* runs.c: frees the memory of a rank. */
void dpt_rdzv_rank_fini(struct rank *rank);
/* runs.c: the place of a denied node in the list; denied.n: it is not there. */
size_t dpt_rdzv_find_denied(const struct dpt_rdzv *core, const char *run, const char *node);

/* The answer of a rank to an operator's DUMP. */
struct rank_stacks {
    uint64_t of; /* number of the DUMP; 0: none */
    char *text;  /* owned */
};

/* The work of a rank's threads, as RankActivity of dpt.proto; for a status only, except `done`. */
struct rank_work {
    uint32_t done; /* RankState.work_done: grows while busy */
    Dpt__RankWork main, comm;
    uint32_t main_unit, main_slot, comm_unit;
    int64_t main_ms, comm_ms;
    bool known;
    struct rank_stacks stacks; /* kept from report to report */
};

enum { UNSAVED_TEXT_BYTES = 800 }; /* a reply has room for more around it */

/* A checkpoint that a rank could not save. */
struct unsaved {
    uint64_t generation; /* of the attempt; 0: none has failed */
    int64_t step;
    char text[UNSAVED_TEXT_BYTES]; /* "rank 3 (node b, host gpu7): checkpoint of step 40 in …" */
};

enum { REFUSED_QUESTIONS_MAX = 32 };

/* Questions that were refused, the newest ones. A copy that comes later (the server was suspended,
 * say) is refused likewise, because the operator has heard the first answer, or hears it now. The
 * sender's incarnation tells copies from questions of others: a program that loses its connection
 * asks again over another one. */
struct refused_questions {
    struct refused_question {
        uint64_t incarnation, counter; /* of the question; counter 0: the entry is unused */
        Dpt__ControlOutcome outcome;
        char text[DPT_PROTO_TEXT_BYTES];
    } ring[REFUSED_QUESTIONS_MAX];
    size_t n; /* number ever added to the ring */
};

/* Pending requests. They are not durable: dpt-ctl repeats them until they are fulfilled. */
struct operator_requests {
    int64_t save_from;     /* a checkpoint of this step or a later one; 0: none */
    int64_t save_until_ms; /* the request for the checkpoint ends */
    bool told_unsaved;     /* the log says that STOP cannot save */
    bool told_away;        /* the log says that no node here holds the newest steps */
    uint64_t refused_away; /* incarnation of the program whose STOP was refused for it; 0: none */
    bool leave_unsaved;    /* STOP was given again after that: it ends the run as it is */
    uint64_t dump;         /* number of the newest DUMP; 0: none */
    int64_t dump_ms;       /* start of the newest DUMP */
    int64_t dump_until_ms; /* end of the newest DUMP */
    bool resumed;          /* RESUME is the cause of the next generation */
};

#endif
