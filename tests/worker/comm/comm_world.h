/* A small world for tests of the communicator: ranks as threads or as forked processes, on
 * simulated hosts.
 *
 * A failing CHECK ends the whole program (or the forked rank) with a message: ranks are not
 * cmocka's thread. */
#ifndef DPT_TESTS_WORKER_COMM_COMM_WORLD_H
#define DPT_TESTS_WORKER_COMM_COMM_WORLD_H

#include "tests/worker/comm/sim_net.h"
#include "worker/comm/comm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            (void)fprintf(stderr, "%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #cond);         \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* Fails with the error's text unless the call returns the expected status. */
#define CHECK_STATUS(expected, call, err)                                                          \
    do {                                                                                           \
        const enum dpt_status got_ = (call);                                                       \
        if (got_ != (expected)) {                                                                  \
            (void)fprintf(stderr, "%s:%d: %s: %s (%s)\n", __FILE__, __LINE__, #call,               \
                          dpt_status_text(got_), got_ == DPT_OK ? "" : (err)->text);               \
            abort();                                                                               \
        }                                                                                          \
    } while (0)
#define CHECK_OK(call, err) CHECK_STATUS(DPT_OK, call, err)

/* TIMEOUT_MS ends a test that hangs. It is so long that no tested operation reaches it, even on a
 * loaded core. */
enum { RANKS_MAX = 9, TIMEOUT_MS = 30000 };

struct world {
    int size;
    int hosts[RANKS_MAX];
    int mesh_max;             /* 0: every world is a mesh */
    const char *address;      /* the address on which TCP listens */
    enum dpt_encrypt encrypt; /* of connections between hosts */
    struct dpt_sim_net *sim;  /* or NULL */
    uint64_t seed;
    void *arg;
    /* Shared between processes too. */
    pthread_barrier_t barrier;
    char shm_addr[RANKS_MAX][DPT_COMM_ADDR_BYTES], tcp_addr[RANKS_MAX][DPT_COMM_ADDR_BYTES];
    pid_t pids[RANKS_MAX];
    int marks[RANKS_MAX]; /* for the test: atomic builtins */
    int64_t killed_ms;    /* for the test */
    int64_t noticed_ms;   /* for the test: the longest time until a rank noticed it */
};

struct rank {
    struct world *world;
    int rank;
    struct dpt_comm_listener *listener;
    struct dpt_comm_peer peers[RANKS_MAX];
    struct dpt_err err;
};

typedef void (*rank_fn)(struct rank *self);

/* Runs fn in `size` threads, each with a listener whose address all threads know. */
void world_run_threads(struct world *world, rank_fn fn);

/* The same in forked processes; ret_status[rank] is the status of waitpid. World must come from
 * world_shared. */
void world_run_forks(struct world *world, rank_fn fn, int *ret_status);

/* A world in memory that forked processes share; world_free unmaps it. */
struct world *world_shared(int size, const int *hosts);
void world_free(struct world *world);

/* The spec of a generation of all ranks; the generation determines the nonce. */
struct dpt_comm_spec world_spec(struct rank *self, uint64_t generation);

/* Of connections between hosts: that of the world, else DPT_TEST_ENCRYPT (mac, data) of the
 * environment. The tests of connections run with each. */
enum dpt_encrypt world_encrypt(const struct world *world);

/* Creates the communicator; it must succeed. */
struct dpt_comm *world_comm(struct rank *self, uint64_t generation);

/* An all-gather: each rank sends its bytes[rank] bytes at offsets[rank] of `mem` to the same place
 * of every other rank's `mem`. Blocks. */
enum dpt_status world_gather(struct rank *self, struct dpt_comm *comm, struct dpt_comm_mem *mem,
                             const size_t *offsets, const size_t *bytes);

/* Waits, at most 20 s, until *mark (a shared atomic) is at least `value`. */
void mark_wait(const int *mark, int value);
void mark_set(int *mark, int value);

/* Waits for this time before a fault, so that faults come at random moments. No result depends on
 * it. */
void let_pass_us(uint64_t us);

/* Copies a text, which must fit. */
void set_text(char *ret, size_t bytes, const char *text);

int count_fds(void);
int count_maps(void);

/* xorshift; state must not be 0. */
uint64_t next_random(uint64_t *state);

#endif
