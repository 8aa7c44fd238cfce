/* This node's part in a run, once the config is known: what it tells the server, how many ranks it
 * starts and with what. */
#ifndef DPT_WORKER_AGENT_NODE_H
#define DPT_WORKER_AGENT_NODE_H

#include "base/config.h"
#include "base/err.h"
#include "base/hash.h"
#include "worker/agent/core.h"
#include "worker/agent/identity.h"
#include "worker/agent/options.h"
#include "worker/data/data.h"

#include <stddef.h>

/* Where a config comes from. */
enum dpt_node_source {
    DPT_NODE_FROM_FILE,   /* --config */
    DPT_NODE_FROM_SERVER, /* the run's: device, ranks, threads and interface are not taken over,
                             they are each node's own */
    DPT_NODE_FROM_DEMO    /* built in */
};

/* Built once, borrowed by the loop; points into itself, so it is not copied. */
struct dpt_node {
    struct dpt_config config;
    char *config_text; /* canonical; what ranks and server get */
    size_t config_bytes;
    int n_ranks;
    int threads;                     /* a rank; 0: its share of the cores of its host */
    char digest[DPT_HASH_HEX_BYTES]; /* of the run-wide keys */
    char fingerprint[DPT_PROTO_DIGEST_BYTES];
    char host[DPT_HOST_KEY_BYTES];
    /* "": no such folder, or none that the run writes to */
    char log_dir_id[DPT_DIR_ID_BYTES], checkpoint_dir_id[DPT_DIR_ID_BYTES];
    struct dpt_identity identity;
    struct dpt_data_digest data;
    char user[DPT_PROTO_NAME_BYTES], host_name[DPT_CONFIG_NAME_BYTES];
    Dpt__RunSpec spec;
    struct dpt_agent_facts facts;
};

/* Loads `text` (named `name` in errors) with the command line's overrides and finds out the rest:
 * makes the folders, opens the device for a moment, reads the data, and with train.lora the base,
 * once for their digests (which takes as long as reading them does). DPT_ECONFIG and others say
 * what to do. */
DPT_MUST_USE enum dpt_status dpt_node_create(const struct dpt_worker_options *options,
                                             enum dpt_node_source source, const char *text,
                                             size_t bytes, const char *name, struct dpt_node **ret,
                                             struct dpt_err *err);
void dpt_node_destroy(struct dpt_node **node);

/* Hash of the run-wide keys: equal digests are configs that agree on them. */
DPT_MUST_USE enum dpt_status dpt_node_config_digest(const struct dpt_config *config,
                                                    char ret_hex[DPT_HASH_HEX_BYTES],
                                                    struct dpt_err *err);

/* The demo's config and its text, both built into the program. The text is written to
 * `log.dir/demo-text.txt` of each node that runs the demo. */
extern const unsigned char dpt_demo_config[], dpt_demo_text[];
extern const size_t dpt_demo_config_bytes, dpt_demo_text_bytes;
#define DPT_DEMO_TEXT_NAME "demo-text.txt"

#endif
