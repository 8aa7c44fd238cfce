/* Strategies over real communicators, without trainer and agent: ranks are threads on simulated
 * nodes and hosts. A run goes through several worlds; between two worlds the scene holds the whole
 * state. */
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

/* The node and the host of each rank. */
struct layout {
    int node[RANKS_MAX], host[RANKS_MAX];
};

/* A run through several worlds. Between two worlds `vector` holds the whole state. */
struct scene {
    struct dpt_config config;
    const struct layout *layout;
    int n_stages, size[STAGES_MAX], steps; /* of a stage */
    int mesh_max;                          /* 0: every world is a mesh */
    bool rebuilds; /* shadows are copied one unit a step; needs n_stages 1 */
    bool averages; /* some parameters are running statistics */
    bool late[RANKS_MAX];
    int64_t numel;
    float *vector[DPT_VECTOR_COUNT];
    double loss; /* of the evaluation after the last step */
    /* Bytes of the first step: counted by the communicator; said by the plan. */
    uint64_t sent[RANKS_MAX], told[RANKS_MAX];
};

/* Makes a scene of `n_stages` worlds of these sizes, STEPS steps each, from the same weights. */
void begin_scene(struct scene *s, const struct variant *v, enum dpt_accumulate accumulate,
                 enum dpt_precision precision, const int *sizes, int n_stages);
void end_scene(struct scene *s);
/* Runs the scene. Checks that copies on several ranks are equal and that shadows equal their
 * owners' parts. */
void run_scene(struct scene *s, const struct layout *layout);
/* Checks that state and loss have the same bits; a failure prints `what`. */
void check_equal(const struct scene *expected, const struct scene *s, const char *what);

#endif
