/* The command line of dpt-worker. The table in options.c serves both parsing and `--help`. The
 * flags of torchrun are aliases of config keys. */
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

/* Strings are borrowed from argv, except the overrides. */
struct dpt_worker_options {
    const char *config_path;   /* NULL: none */
    const char *rdzv_endpoint; /* --rdzv-endpoint; NULL: not given */
    const char *rdzv_token;    /* --rdzv-token; NULL: not given */
    const char *key_dir;       /* --key-dir; NULL: not given */
    const char *node_id;       /* NULL: a random id is drawn */
    /* key=value, in the order given. */
    char overrides[DPT_CONFIG_OVERRIDES_MAX][DPT_OPTION_TEXT_BYTES];
    size_t n_overrides;
    bool names_run; /* the command line names the run: --rdzv-id or --set run= */
    const char *allow[DPT_RANK_ALLOW_MAX];
    int n_allow;
    bool allow_fresh;
    enum dpt_log_level log_level;
    bool quiet;         /* print only warnings, errors and the closing summary */
    bool help, version; /* requested; print it and exit with 0 */
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

/* Where the server is. */
struct dpt_worker_endpoint {
    const char *endpoint; /* HOST:PORT; unused with embed */
    const char *source;   /* "--rdzv-endpoint", …, "the default" */
    /* No endpoint was named and the run has one node: the server runs in this process. */
    bool embed;
};

/* Chooses the endpoint: --rdzv-endpoint, else $DPT_RDZV_ENDPOINT (`environment`, may be NULL), else
 * cluster.rdzv, else 127.0.0.1:29500. `config` may be NULL. DPT_ECONFIG: the endpoint is not
 * HOST:PORT. */
DPT_MUST_USE enum dpt_status dpt_worker_endpoint(const struct dpt_worker_options *options,
                                                 const char *environment,
                                                 const struct dpt_config *config,
                                                 struct dpt_worker_endpoint *ret,
                                                 struct dpt_err *err);

#endif
