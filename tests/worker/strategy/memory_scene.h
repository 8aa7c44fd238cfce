/* What the tests of memory share: strategies and worlds by the dozen, and one rank's part of a
 * world whose memory is made, though nothing is trained in it. */
#ifndef DPT_TESTS_WORKER_STRATEGY_MEMORY_SCENE_H
#define DPT_TESTS_WORKER_STRATEGY_MEMORY_SCENE_H

#include "worker/strategy/memory/memory_formula.h"
#include "worker/strategy/strategy.h"

enum { RANKS_MAX = 8, VARIANTS = 16, WORLDS = 12, TWO_NODES_A_HOST = WORLDS - 3 };

struct variant {
    const char *name;
    enum dpt_sharding sharding;
    int gathered_max;
    enum dpt_redundancy redundancy;
};

extern const struct variant variants[VARIANTS];

/* Ranks by node: nodes in a row, of so many ranks each. In the last three two nodes are a host. */
extern const int worlds[WORLDS][4];

struct place {
    struct dpt_world world;
    int rank_of_position[RANKS_MAX], host_of_position[RANKS_MAX], node_of_position[RANKS_MAX];
};

/* One rank's parts. */
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

/* The device of all parts, which takes some time to make: tests begin and end with these. */
extern struct dpt_device *device;
int make_device(void **state);
int destroy_device(void **state);

/* Of the config as it is now. */
void make_model(struct scene *s);
void make_124m(struct scene *s);
/* Vocabularies: one whose embedding is the largest unit, one whose is the smallest. fp16 goes with
 * SGD here, which keeps no second moment, and bf16 with lanes of one slot with compression. */
void open_scene(struct scene *s, const struct variant *v, enum dpt_accumulate accumulate,
                enum dpt_precision precision, int vocab, int slots);
/* Ranks are numbered against the order of positions, so that taking one for the other shows. */
void make_place(const struct scene *s, int world, struct place *p);
void open_part(const struct scene *s, struct part *p);
void close_part(struct part *p);
void enter_world(struct part *p, const struct place *place, int rank);
struct dpt_memory_spec spec_of(const struct scene *s, const struct place *place, int rank);

#endif
