/* The inside of a listener and of registered memory (comm.h), for the files of worker/comm and the
 * simulated network of the tests. */
#ifndef DPT_WORKER_COMM_LISTENER_H
#define DPT_WORKER_COMM_LISTENER_H

#include "worker/comm/comm.h"

enum {
    COMM_REGIONS = DPT_COMM_REGIONS_MAX + 1, /* users' regions and the staging */
    COMM_STAGING_BYTES = DPT_COMM_SMALL_BYTES_MAX
};

struct dpt_comm_mem {
    struct dpt_comm_listener *listener;
    int region; /* index in the listener's table; peers name the region by it */
    int fd;
    uint8_t *data;
    size_t bytes, map_bytes;
    enum dpt_memory_tag tag;
    bool open;      /* peers map it to write */
    bool withdrawn; /* withdrawn from the present communicator */
};

/* Replaces sockets: a test's simulated network (tests/worker/comm/sim_net.h). */
struct dpt_comm_network {
    /* dpt_comm_create calls this after it has checked the spec. */
    enum dpt_status (*create)(struct dpt_comm_listener *listener, const struct dpt_comm_spec *spec,
                              int abort_fd, struct dpt_comm **ret, int *ret_suspect,
                              struct dpt_err *err);
    /* Called before each exchange, poll and settling. A failure becomes the communicator's
     * failure. */
    enum dpt_status (*call)(struct dpt_comm *comm, struct dpt_err *err);
    /* The communicator is being destroyed; its links are gone. */
    void (*forget)(struct dpt_comm *comm);
    /* The listener is being destroyed. */
    void (*unlisten)(struct dpt_comm_listener *listener);
};

struct dpt_comm_listener {
    int shm_fd, tcp_fd; /* listening, nonblocking; -1: none */
    char shm_addr[DPT_COMM_ADDR_BYTES], tcp_addr[DPT_COMM_ADDR_BYTES];
    struct dpt_comm_mem *mems[COMM_REGIONS];
    struct dpt_comm_mem *staging; /* for small all-gathers of more than DPT_COMM_BUF_BYTES_MAX */
    int comms;                    /* communicators that exist */
    struct dpt_account *account;  /* NULL: nothing is counted */
    const struct dpt_comm_network *network; /* NULL: sockets */
};

/* Replaces the pages that peers have mapped by private ones of equal content. */
DPT_MUST_USE enum dpt_status dpt_comm_mem_exchange(struct dpt_comm_mem *mem, struct dpt_err *err);

#endif
