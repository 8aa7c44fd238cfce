/* The identity of this node: its id, its secret and incarnation, the key of hosts that share
 * memory, and the ids of folders. */
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

/* Writes 2 * n_bytes random hex digits and a NUL. n_bytes is at most 16. */
DPT_MUST_USE enum dpt_status dpt_random_hex(size_t n_bytes, char *ret, struct dpt_err *err);

/* DPT_ECONFIG unless the node id consists of letters, digits, '.', '_' and '-', begins with a
 * letter or digit, and has at most 63 bytes (the id names a folder). */
DPT_MUST_USE enum dpt_status dpt_node_id_check(const char *node_id, struct dpt_err *err);

/* The secret by which a process proves its node id, and its first incarnation. A later process with
 * the same id and folder has the same secret and a higher incarnation, whatever its clock shows. */
struct dpt_identity {
    uint8_t secret[DPT_SECRET_BYTES];
    uint64_t incarnation;
    int fd; /* the locked identity file; -1: none */
};

/* Makes the identity of a random node id, which no other process has. The identity is in memory
 * only. */
DPT_MUST_USE enum dpt_status dpt_identity_draw(int64_t wall_ms, struct dpt_identity *ret,
                                               struct dpt_err *err);

/* Reads the identity of a given id from `log_dir`/node-ID/identity. Creates the file if it does not
 * exist. The file stays locked until dpt_identity_fini or the end of the process. DPT_ECONFIG,
 * whose text names the process: another living process has this id. */
DPT_MUST_USE enum dpt_status dpt_identity_open(const char *log_dir, const char *node_id,
                                               int64_t wall_ms, struct dpt_identity *ret,
                                               struct dpt_err *err);
void dpt_identity_fini(struct dpt_identity *identity);

/* The key of this host: a hash of boot id, network namespace and cluster.host_group. Two nodes have
 * equal keys if their ranks can share memory. */
DPT_MUST_USE enum dpt_status dpt_host_key(const char *host_group, char ret[DPT_HOST_KEY_BYTES],
                                          struct dpt_err *err);

/* Reads the random id in `dir`/.dpt-dir-id. Creates the folder and the file if they do not exist;
 * the file appears whole or not at all. If two nodes read equal ids, they see one folder. */
DPT_MUST_USE enum dpt_status dpt_dir_id(const char *dir, char ret[DPT_DIR_ID_BYTES],
                                        struct dpt_err *err);

#endif
