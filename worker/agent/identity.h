/* Who this node is: its id, its secret and incarnation, the host it shares memory with, the folders
 * it shares, its user. Host names play no part. */
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

/* A random node id: 12 hex digits. `ret` holds DPT_CONFIG_NAME_BYTES. */
DPT_MUST_USE enum dpt_status dpt_node_id_random(char *ret, struct dpt_err *err);

/* A given one: letters, digits, '.', '_', '-', beginning with a letter or digit, at most 63 bytes
 * (it names a folder). */
DPT_MUST_USE enum dpt_status dpt_node_id_check(const char *node_id, struct dpt_err *err);

/* What a process of this node id proves itself with, and its first incarnation. A process of the
 * same id and folder knows the secret of those before it, and has a higher incarnation than any of
 * them, whatever its clock says. */
struct dpt_identity {
    uint8_t secret[DPT_SECRET_BYTES];
    uint64_t incarnation;
    int fd; /* of the file, locked; -1: none */
};

/* Of a random node id, which no other process has: in memory alone. */
DPT_MUST_USE enum dpt_status dpt_identity_draw(int64_t wall_ms, struct dpt_identity *ret,
                                               struct dpt_err *err);

/* Of a given one: from `log_dir`/node-ID/identity, which is made when it is not there. The file
 * stays locked until dpt_identity_fini or the end of the process: another one of this id that is
 * alive there is DPT_ECONFIG, and named. */
DPT_MUST_USE enum dpt_status dpt_identity_open(const char *log_dir, const char *node_id,
                                               int64_t wall_ms, struct dpt_identity *ret,
                                               struct dpt_err *err);
void dpt_identity_fini(struct dpt_identity *identity);

/* Equal on two nodes when their ranks can share memory: a hash of boot id, network namespace and
 * cluster.host_group. */
DPT_MUST_USE enum dpt_status dpt_host_key(const char *host_group, char ret[DPT_HOST_KEY_BYTES],
                                          struct dpt_err *err);

/* What this machine calls itself, for people; "" when it has no name that may be shown. `ret` holds
 * DPT_CONFIG_NAME_BYTES. */
void dpt_host_name(char *ret);

/* The random id that lies in `dir` (created with the id when absent): equal ids are one folder,
 * seen by two nodes. The file
 * `.dpt-dir-id` appears whole or not at all, whoever comes first. */
DPT_MUST_USE enum dpt_status dpt_dir_id(const char *dir, char ret[DPT_DIR_ID_BYTES],
                                        struct dpt_err *err);

/* Name of the user who runs this, "uid 1000" when it has none. */
void dpt_user_name(char *ret, size_t bytes);

#endif
