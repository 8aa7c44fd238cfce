/* Who this node is: its id, its incarnation, the host it shares memory with, the folders it shares,
 * its user. Host names play no part. */
#ifndef DPT_WORKER_AGENT_IDENTITY_H
#define DPT_WORKER_AGENT_IDENTITY_H

#include "base/config.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum {
    DPT_DIR_ID_BYTES = 33, /* 128 bits in hex and a NUL */
    DPT_HOST_KEY_BYTES = 33
};

/* A random node id: 12 hex digits. `ret` holds DPT_CONFIG_NAME_BYTES. */
DPT_MUST_USE enum dpt_status dpt_node_id_random(char *ret, struct dpt_err *err);

/* A given one: letters, digits, '.', '_', '-', beginning with a letter or digit, at most 63 bytes
 * (it names a folder). */
DPT_MUST_USE enum dpt_status dpt_node_id_check(const char *node_id, struct dpt_err *err);

/* First incarnation of a process: wall-clock milliseconds, above what an earlier process of this
 * node id had. */
uint64_t dpt_node_incarnation(void);

/* Equal on two nodes when their ranks can share memory: a hash of boot id, network namespace and
 * cluster.host_group. */
DPT_MUST_USE enum dpt_status dpt_host_key(const char *host_group, char ret[DPT_HOST_KEY_BYTES],
                                          struct dpt_err *err);

/* The random id that lies in `dir` (created with the id when absent): equal ids are one folder,
 * seen by two nodes. The file
 * `.dpt-dir-id` appears whole or not at all, whoever comes first. */
DPT_MUST_USE enum dpt_status dpt_dir_id(const char *dir, char ret[DPT_DIR_ID_BYTES],
                                        struct dpt_err *err);

/* Name of the user who runs this, "uid 1000" when it has none. */
void dpt_user_name(char *ret, size_t bytes);

#endif
