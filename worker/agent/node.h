/* This node's part in a run, made from a config: the facts for the server, the number of ranks and
 * the ranks' config. */
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

enum dpt_node_source {
    DPT_NODE_FROM_FILE, /* --config */
    /* The run's config, without the keys that describe one node: device, ranks, threads, … */
    DPT_NODE_FROM_SERVER,
    DPT_NODE_FROM_DEMO /* built in */
};

/* A config as text. */
struct dpt_node_text {
    enum dpt_node_source source;
    const char *text;
    size_t bytes;
    const char *name; /* the config's name in errors */
};

/* Points into itself: do not copy. */
struct dpt_node {
    struct dpt_config config;
    char *config_text; /* canonical, for ranks and server */
    size_t config_bytes;
    int n_ranks;
    /* Compute threads of a rank; 0: an equal share of the host's cores. */
    int threads;
    char digest[DPT_HASH_HEX_BYTES];          /* hash of the run-wide keys */
    char fingerprint[DPT_PROTO_DIGEST_BYTES]; /* fingerprint of the device */
    struct dpt_identity identity;
    struct dpt_data_digest data;
    char user[DPT_PROTO_NAME_BYTES];
    Dpt__RunSpec spec;
    struct dpt_agent_facts facts;
};

/* Loads the config text with the command line's overrides, creates the folders and reads the
 * device's fingerprint. Reads all data and, with train.lora, all weights of the base, for their
 * digests. The error texts of DPT_ECONFIG and other errors name the remedy. */
DPT_MUST_USE enum dpt_status dpt_node_create(const struct dpt_worker_options *options,
                                             const struct dpt_node_text *text,
                                             struct dpt_node **ret, struct dpt_err *err);
void dpt_node_destroy(struct dpt_node **node);

/* Hash of the run-wide keys. */
DPT_MUST_USE enum dpt_status dpt_node_config_digest(const struct dpt_config *config,
                                                    char ret_hex[DPT_HASH_HEX_BYTES],
                                                    struct dpt_err *err);

/* The demo's config and its data, built into the program. Each node that runs the demo writes the
 * data to `log.dir/demo-text.txt`. */
extern const unsigned char dpt_demo_config[], dpt_demo_text[];
extern const size_t dpt_demo_config_bytes, dpt_demo_text_bytes;
#define DPT_DEMO_TEXT_NAME "demo-text.txt"

#endif
