/* What goes wrong in a simulation, and when (faults.c, faults_net.c). */
#ifndef DPT_TESTS_SIM_FAULTS_H
#define DPT_TESTS_SIM_FAULTS_H

#include "tests/sim/sim.h"

void faults_plan(struct sim *sim);
/* The first writer of the last checkpoint begins; a fault may hit it before the commit. */
void fault_at_end(struct sim *sim, int machine, uint32_t local);
void fault_strike(struct sim *sim, const struct fault *fault);
void fault_later(struct sim *sim, int64_t after_ms, enum event_kind kind, int machine,
                 uint64_t life);
void fault_stop_machine(struct sim *sim, const struct fault *fault, bool with_ranks);
void fault_partition(struct sim *sim, const struct fault *fault);

void profile_random(struct rng *rng, struct profile *ret);
/* `machines`: 0: 200 to 300. */
void profile_big(struct rng *rng, int machines, struct profile *ret);
/* The profile of a run that shares the server of a run with profile `host`; its timeout differs. */
void profile_beside(struct rng *rng, const struct profile *host, struct profile *ret);

/* faults_net.c: what a network and clocks do besides. */
void net_faults_plan(struct sim *sim);
/* The clocks of the machines, and of a server that starts, show any time. */
void net_clocks_begin(struct sim *sim);
void net_server_clock_begin(struct sim *host);
/* False: the fault is of another kind. */
bool net_fault_strike(struct sim *sim, const struct fault *fault);
const char *net_fault_name(int kind);

enum fault_kind {
    FAULT_KILL_AGENT,
    FAULT_KILL_RANK,
    FAULT_EXIT_RANK,
    FAULT_STOP_MACHINE,
    FAULT_STOP_AGENT,
    FAULT_STOP_RANK,
    FAULT_WEDGE_RANK,
    FAULT_LEAVE,
    FAULT_LEAVE_TWICE,
    FAULT_CRASH_SERVER,
    FAULT_STOP_SERVER,
    FAULT_OVERLOAD_SERVER,
    FAULT_CUT_OFF_SERVER, /* the server is cut off from all nodes */
    FAULT_PARTITION,
    FAULT_BLIP,
    FAULT_REFUSE, /* the connection breaks and cannot be made again for the fault's length */
    FAULT_SLOW,
    FAULT_BAD_PAIR,
    FAULT_STRANGER,
    FAULT_COUNT, /* number of the faults that may be drawn at any time */
    FAULT_OUTAGE = FAULT_COUNT,
    /* faults_net.c; drawn with `dpt_sim --net` */
    FAULT_UNHEARD,       /* one-way partition: the server does not hear the machine */
    FAULT_HEARS_NOTHING, /* one-way partition: the machine does not hear the server */
    FAULT_SPLIT,         /* machines from this one on reach neither the server nor the others */
    FAULT_SLOW_AGENT,    /* the agent runs for some ms at a time, between pauses */
    FAULT_CLOCK,         /* the machine's clock jumps ahead */
    FAULT_SERVER_CLOCK,  /* the server's clock jumps ahead */
    FAULT_END
};

#endif
