/* The identity of this node: id, secret and incarnation, host for shared memory, folder ids. */
#ifndef DPT_WORKER_AGENT_IDENTITY_H
#define DPT_WORKER_AGENT_IDENTITY_H

#include "base/config.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum {
    DPT_DIR_ID_BYTES = 33, /* 128 bits in hex and a NUL */
    DPT_HOST_KEY_BYTES = 33,
    DPT_SECRET_BYTES = 16
};

/* 2 * n_bytes random hex digits and a NUL; n_bytes is 16 at most. */
DPT_MUST_USE enum dpt_status dpt_random_hex(size_t n_bytes, char *ret, struct dpt_err *err);

/* DPT_ECONFIG unless the node id has letters, digits, '.', '_', '-', beginning with a letter or
 * digit, at most 63 bytes (it names a folder). */
DPT_MUST_USE enum dpt_status dpt_node_id_check(const char *node_id, struct dpt_err *err);

/* The secret by which a process proves its node id, and its first incarnation. A later process of
 * the same id and folder has the same secret and a higher incarnation, whatever its clock says. */
struct dpt_identity {
    uint8_t secret[DPT_SECRET_BYTES];
    uint64_t incarnation;
    int fd; /* of the file, locked; -1: none */
};

/* Of a random node id, which no other process has: in memory only. */
DPT_MUST_USE enum dpt_status dpt_identity_draw(int64_t wall_ms, struct dpt_identity *ret,
                                               struct dpt_err *err);

/* Of a given id: from `log_dir`/node-ID/identity, which is made if it does not exist. The file
 * stays locked until dpt_identity_fini or the end of the process. DPT_ECONFIG names another living
 * process of this id. */
DPT_MUST_USE enum dpt_status dpt_identity_open(const char *log_dir, const char *node_id,
                                               int64_t wall_ms, struct dpt_identity *ret,
                                               struct dpt_err *err);
void dpt_identity_fini(struct dpt_identity *identity);

/* Equal on two nodes when their ranks can share memory: a hash of boot id, network namespace and
 * cluster.host_group. */
DPT_MUST_USE enum dpt_status dpt_host_key(const char *host_group, char ret[DPT_HOST_KEY_BYTES],
                                          struct dpt_err *err);

/* The random id in `dir`/.dpt-dir-id; folder and file are made if they do not exist. Equal ids are
 * one folder seen by two nodes. The file appears whole or not at all. */
DPT_MUST_USE enum dpt_status dpt_dir_id(const char *dir, char ret[DPT_DIR_ID_BYTES],
                                        struct dpt_err *err);

#endif
