/* The command line of dpt-worker. One table (options.c) is what parsing and `--help` are made from;
 * flags that torchrun's users know are keys of the config under another name. */
#ifndef DPT_WORKER_AGENT_OPTIONS_H
#define DPT_WORKER_AGENT_OPTIONS_H

#include "base/config.h"
#include "base/err.h"
#include "base/log.h"
#include "worker/agent/rank_protocol.h"

#include <stdbool.h>
#include <stdio.h>

#define DPT_WORKER_ENDPOINT_DEFAULT "127.0.0.1:29500"

enum { DPT_OPTION_TEXT_BYTES = DPT_CONFIG_PATH_BYTES + 64 };

/* Strings are argv's own, except overrides, which are made here. */
struct dpt_worker_options {
    const char *config_path;   /* NULL: none */
    const char *rdzv_endpoint; /* --rdzv-endpoint; NULL: not given */
    const char *node_id;       /* NULL: draw one */
    char overrides[DPT_CONFIG_OVERRIDES_MAX]
                  [DPT_OPTION_TEXT_BYTES]; /* key=value, in the order given */
    size_t n_overrides;
    bool names_run; /* --rdzv-id, or --set run= */
    const char *allow[DPT_RANK_ALLOW_MAX];
    int n_allow;
    bool allow_fresh;
    enum dpt_log_level log_level;
    bool quiet;         /* warnings, errors and the closing summary only */
    bool help, version; /* asked for: print it and end well */
};

/* Reads argv. DPT_ECONFIG: an unknown option (with the nearest known one), a missing value, too
 * many. */
DPT_MUST_USE enum dpt_status dpt_worker_options_parse(int argc, char *const *argv,
                                                      struct dpt_worker_options *ret,
                                                      struct dpt_err *err);

/* `--help`: options, how the server is found, exit codes, then the config's keys. */
void dpt_worker_options_help(FILE *out);

/* Pointers to the overrides, as dpt_config_load takes them. */
void dpt_worker_options_overrides(const struct dpt_worker_options *options,
                                  const char *ret[DPT_CONFIG_OVERRIDES_MAX]);

/* Where the server is: --rdzv-endpoint, else $DPT_RDZV_ENDPOINT (`environment`, may be NULL), else
 * cluster.rdzv, else 127.0.0.1:29500. `config` may be NULL. *ret_source says who named it
 * ("--rdzv-endpoint", …, "the default"). *ret_embed: nobody named one and the run is of one node:
 * the server is embedded and the returned endpoint unused. */
DPT_MUST_USE enum dpt_status dpt_worker_endpoint(const struct dpt_worker_options *options,
                                                 const char *environment,
                                                 const struct dpt_config *config,
                                                 const char **ret_endpoint, const char **ret_source,
                                                 bool *ret_embed, struct dpt_err *err);

#endif
