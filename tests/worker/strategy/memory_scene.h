/* Shared by the tests of memory: a list of strategies, a list of worlds, and one rank of a world,
 * which allocates its memory and trains nothing. */
#ifndef DPT_TESTS_WORKER_STRATEGY_MEMORY_SCENE_H
#define DPT_TESTS_WORKER_STRATEGY_MEMORY_SCENE_H

#include "worker/strategy/memory/memory_formula.h"
#include "worker/strategy/strategy.h"

enum { RANKS_MAX = 8, VARIANTS = 17, WORLDS = 12, TWO_NODES_A_HOST = WORLDS - 3 };

struct variant {
    const char *name;
    enum dpt_sharding sharding;
    int gathered_max;
    enum dpt_redundancy redundancy;
};

extern const struct variant variants[VARIANTS];

/* A world is a list of the numbers of ranks of its nodes. In the last three worlds two nodes make
 * one host. */
extern const int worlds[WORLDS][4];

struct place {
    struct dpt_world world;
    int rank_of_position[RANKS_MAX], host_of_position[RANKS_MAX], node_of_position[RANKS_MAX];
};

/* The objects of one rank. */
struct part {
    struct dpt_account account;
    struct dpt_stream *stream, *comm_stream;
    struct dpt_comm_listener *listener;
    struct dpt_comm_thread *thread;
    struct dpt_strategy *strategy;
};

struct scene {
    struct dpt_config config;
    struct dpt_model *model;
    int64_t offset[DPT_UNITS_MAX + 1];
    struct dpt_grid grid;
    char what[160];
};

/* The device of all parts. It takes some time to make, so the setup of the group makes it once. */
extern struct dpt_device *device;
int make_device(void **state);
int destroy_device(void **state);

/* Makes the model of the scene's present config. */
void make_model(struct scene *s);
void make_124m(struct scene *s);
/* `vocab` decides whether the embedding is the largest or the smallest unit. fp16 selects SGD,
 * which keeps no second moment. bf16 with 5 slots (lanes of one slot) selects compression, if the
 * strategy supports it. */
void open_scene(struct scene *s, const struct variant *v, enum dpt_accumulate accumulate,
                enum dpt_precision precision, int vocab, int slots);
/* Numbers ranks in the reverse order of positions, so that a test finds code that confuses them. */
void make_place(const struct scene *s, int world, struct place *p);
void open_part(const struct scene *s, struct part *p);
void close_part(struct part *p);
void enter_world(struct part *p, const struct place *place, int rank);
struct dpt_memory_spec spec_of(const struct scene *s, const struct place *place, int rank);

#endif
