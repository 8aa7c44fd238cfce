/* Which rank of a run is behind, and what the others wait for. Pure, except hang_ask.c. */
#ifndef DPT_WORKER_DOCTOR_HANG_H
#define DPT_WORKER_DOCTOR_HANG_H

#include "rendezvous/proto/message.h"
#include "worker/doctor/finding.h"

#include <stdbool.h>
#include <stdint.h>

enum { DPT_HANG_RANKS_MAX = DPT_PROTO_STATUS_RANKS_MAX, DPT_HANG_BLAMED_MAX = 8 };

/* One rank, as the server knows it. */
struct dpt_hang_rank {
    int rank; /* in the newest plan; -1: none */
    char node[DPT_PROTO_NAME_BYTES], host[DPT_PROTO_NAME_BYTES];
    uint32_t local_rank;
    Dpt__RankPhase phase;
    int64_t step; /* completed steps; -1: no state */
    bool busy, connected;
    int64_t heard_ms; /* since its agent last heard the process */
    int64_t node_ms;  /* since the server last heard the agent */
    bool known;       /* the five members below */
    Dpt__RankWork main, comm;
    int main_unit, main_slot, comm_unit; /* -1: none */
    int64_t main_ms, comm_ms;            /* since the work began */
};

/* A run at one time. */
struct dpt_hang_view {
    char run[DPT_PROTO_NAME_BYTES];
    Dpt__ServerPhase phase;
    uint64_t generation;
    int world_size;
    int64_t still_ms, limit_ms, step_ms_median, phase_ms, heartbeat_ms;
    int64_t heard_ms; /* since the server heard a node of it; -1: it has none */
    bool unheard;     /* that is longer than a lease */
    char cause[DPT_PROTO_TEXT_BYTES], text[DPT_PROTO_TEXT_BYTES];
    int n, left_out;
    struct dpt_hang_rank rank[DPT_HANG_RANKS_MAX];
};

enum dpt_hang_kind {
    DPT_HANG_ADVANCES, /* a step was made between the two views */
    DPT_HANG_NOT_YET,  /* no step, but less time than a step may take */
    DPT_HANG_FORMING,  /* no generation runs: it is formed, or waits for nodes */
    DPT_HANG_ENDED,    /* the run has ended */
    DPT_HANG_NODE,     /* a node is silent: the whole machine or its network */
    DPT_HANG_UNHEARD,  /* all nodes of the run are silent for longer than a lease */
    DPT_HANG_PROCESS,  /* a rank process is silent: stopped, or starved */
    DPT_HANG_BEHIND,   /* a rank lives and works while the others wait for it */
    DPT_HANG_CIRCLE,   /* all ranks wait: the transfers between them stand still */
    DPT_HANG_UNKNOWN   /* the ranks do not say what they do */
};

/* The verdict. */
struct dpt_hang {
    enum dpt_hang_kind kind;
    const struct dpt_hang_view *view; /* the later one; borrowed */
    int64_t steps;                    /* made between the views */
    int n_blamed;
    const struct dpt_hang_rank *blamed[DPT_HANG_BLAMED_MAX]; /* in the view */
    int n_waiting;                                           /* ranks that wait for others */
    /* What most of the waiting ranks wait in. */
    const struct dpt_hang_rank *waiting; /* one of them; NULL: none */
    int64_t silent_limit_ms;             /* silence of a process or node counts from here */
};

/* Compares two views of a run, `seconds` apart. `later` is kept. */
void dpt_hang_judge(const struct dpt_hang_view *earlier, const struct dpt_hang_view *later,
                    struct dpt_hang *ret);

/* Whether the main thread waits for the communication thread, and that for other ranks. */
bool dpt_hang_waits_for_transfer(const struct dpt_hang_rank *rank);

/* Whether the verdict is a hang. */
bool dpt_hang_is_bad(const struct dpt_hang *hang);

/* Adds the lines of the verdict. */
void dpt_hang_explain(const struct dpt_hang *hang, struct dpt_findings *findings);

/* "all-reduce of bucket 3"; the work of a thread in words. unit -1: none. */
enum { DPT_HANG_WORK_BYTES = 96 };
void dpt_hang_print_work(Dpt__RankWork work, int unit, int slot, char ret[DPT_HANG_WORK_BYTES]);
/* "rank 2 (node b, host gpu7)". */
enum { DPT_HANG_WHO_BYTES = 2 * DPT_PROTO_NAME_BYTES + 48 };
void dpt_hang_print_who(const struct dpt_hang_rank *rank, char ret[DPT_HANG_WHO_BYTES]);
const char *dpt_hang_kind_word(enum dpt_hang_kind kind);

/* Takes a server's answer into a view. DPT_ENOENT: the server has no such run (the text lists its
 * runs). DPT_EVERSION: the server is of a version that tells no status. */
DPT_MUST_USE enum dpt_status dpt_hang_take(const Dpt__ServerState *message,
                                           struct dpt_hang_view *ret, struct dpt_err *err);

/* hang_ask.c: asks the server at HOST:PORT for the status of `run` ("": its only run), within
 * timeout_ms. DPT_ESERVER: no answer; the text has the reason. DPT_EINVAL: `run` is no name. */
DPT_MUST_USE enum dpt_status dpt_hang_ask(const char *server, const char *run, int64_t timeout_ms,
                                          struct dpt_hang_view *ret, struct dpt_err *err);

#endif
