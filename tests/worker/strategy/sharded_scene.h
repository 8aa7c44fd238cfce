/* Strategies over real communicators, ranks as threads on pretended nodes and hosts, without
 * trainer and agent: a run through several worlds, whose whole state lies in the scene between
 * them. */
#ifndef DPT_TESTS_WORKER_STRATEGY_SHARDED_SCENE_H
#define DPT_TESTS_WORKER_STRATEGY_SHARDED_SCENE_H

#include "tests/worker/comm/comm_world.h"
#include "worker/strategy/strategy.h"

enum {
    STAGES_MAX = 6,
    STEPS = 2,
    REBUILT_STEPS = 7,
    SLOTS = 11,
    MICRO_BATCH = 2,
    SEQ_LEN = 8,
    VOCAB = 300
};

struct variant {
    const char *name;
    enum dpt_sharding sharding;
    int gathered_max;
    bool prefetch;
    enum dpt_redundancy redundancy;
};

/* Which node each rank is of, and which host. */
struct layout {
    int node[RANKS_MAX], host[RANKS_MAX];
};

/* A run through several worlds, whose whole state lies in `vector` between them. */
struct scene {
    struct dpt_config config;
    const struct layout *layout;
    int n_stages, size[STAGES_MAX], steps; /* of a stage */
    bool rebuilds;                         /* shadows come a unit a step; with one stage */
    bool averages;                         /* some parameters are running statistics */
    bool late[RANKS_MAX];
    int64_t numel;
    float *vector[DPT_VECTOR_COUNT];
    double loss; /* of the evaluation after the last step */
    uint64_t sent[RANKS_MAX],
        told[RANKS_MAX]; /* bytes in the first step, by communicator and plan */
};

/* Makes a scene of `n_stages` worlds of these sizes, STEPS steps each, from the same weights. */
void begin_scene(struct scene *s, const struct variant *v, enum dpt_accumulate accumulate,
                 enum dpt_precision precision, const int *sizes, int n_stages);
void end_scene(struct scene *s);
/* Runs it; what several ranks hold must be equal, and shadows as their owners' parts. */
void run_scene(struct scene *s, const struct layout *layout);
/* The same state and loss, to the bit; `what` is told when not. */
void check_equal(const struct scene *expected, const struct scene *s, const char *what);

#endif
