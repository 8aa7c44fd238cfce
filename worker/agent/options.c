/* Command line of dpt-worker: the table, the parser, the help. */
#include "worker/agent/options.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum option_kind {
    OPTION_TEXT, /* field: const char * */
    OPTION_FLAG, /* field: bool */
    OPTION_SET,
    OPTION_KEY, /* an alias of a config key; without a value: true */
    OPTION_ALLOW,
    OPTION_LOG_LEVEL,
    OPTION_QUIET,
    OPTION_VERBOSE
};

struct option_entry {
    const char *name;
    const char *value; /* the value's name in the help; NULL: takes none */
    enum option_kind kind;
    const char *key; /* config key of an OPTION_KEY */
    size_t field;    /* offset of the field of an OPTION_TEXT or OPTION_FLAG */
    const char *help;
};

#define FIELD(name) offsetof(struct dpt_worker_options, name)
static const struct option_entry table[] = {
    {"--config", "FILE", OPTION_TEXT, NULL, FIELD(config_path),
     "the run's config (YAML); without it the run's is taken from the server (see below)"},
    {"--set", "KEY=VALUE", OPTION_SET, NULL, 0, "override a key of the config; may be repeated"},
    {"--nnodes", "N|MIN:MAX", OPTION_KEY, "cluster.nnodes", 0, "how many workers make up the run"},
    {"--nproc-per-node", "N", OPTION_KEY, "cluster.gpus_per_node", 0,
     "rank processes on this node (auto: one per GPU)"},
    {"--rdzv-id", "NAME", OPTION_KEY, "run", 0,
     "name of the run; workers with the same name train together"},
    {"--max-restarts", "N", OPTION_KEY, "cluster.max_restarts", 0,
     "crashes that the run survives without progress"},
    {"--rdzv-endpoint", "HOST:PORT", OPTION_TEXT, NULL, FIELD(rdzv_endpoint),
     "where dpt-rdzv listens ([ADDRESS]:PORT for IPv6)"},
    {"--rdzv-token", "TOKEN", OPTION_TEXT, NULL, FIELD(rdzv_token),
     "admits this machine at the server, as it prints it; @FILE: in a file; none: no keys"},
    {"--key-dir", "DIR", OPTION_TEXT, NULL, FIELD(key_dir),
     "folder of this machine's keys (default: $DPT_KEY_DIR, else ~/.dpt)"},
    {"--node-id", "NAME", OPTION_TEXT, NULL, FIELD(node_id),
     "name of this node in logs and folders (default: random)"},
    {"--eval", NULL, OPTION_KEY, "train.eval_only", 0,
     "train nothing: evaluate the newest checkpoint on data.val, print the loss, end"},
    {"--step", "N", OPTION_KEY, "train.eval_step", 0, "with --eval: the checkpoint of this step"},
    {"--allow-change", "KEY", OPTION_ALLOW, NULL, 0,
     "resume although this key differs from the checkpoint's; may be repeated"},
    {"--allow-fresh", NULL, OPTION_FLAG, NULL, FIELD(allow_fresh),
     "begin from step 0 although checkpoint.dir holds checkpoints, all of them damaged"},
    {"--log-level", "LEVEL", OPTION_LOG_LEVEL, NULL, 0, "debug, info (default), warn or error"},
    {"--quiet", NULL, OPTION_QUIET, NULL, 0, "print errors, warnings and the closing summary only"},
    {"--verbose", NULL, OPTION_VERBOSE, NULL, 0,
     "print what the libraries log, too (--log-level debug)"},
    {"--version", NULL, OPTION_FLAG, NULL, FIELD(version), "print the version"},
    {"--help", NULL, OPTION_FLAG, NULL, FIELD(help), "print this"},
};
#undef FIELD
enum { TABLE_COUNT = sizeof table / sizeof table[0], NEAR_ENOUGH = 4, NAME_BYTES = 33 };

static enum dpt_status fail_unknown(const char *given, size_t bytes, struct dpt_err *err)
{
    char name[NAME_BYTES];
    const char *near = NULL;
    size_t best = NEAR_ENOUGH;
    (void)snprintf(name, sizeof name, "%.*s", (int)bytes, given);
    for (int i = 0; i < TABLE_COUNT; i++) {
        const size_t here = dpt_config_edit_distance(name, table[i].name);
        if (here < best) {
            best = here;
            near = table[i].name;
        }
    }
    return dpt_fail(err, DPT_ECONFIG, "unknown option '%.*s'%s%s%s (see --help)", (int)bytes, given,
                    near != NULL ? ": did you mean " : "", near != NULL ? near : "",
                    near != NULL ? "?" : "");
}

static enum dpt_status add_override(struct dpt_worker_options *options, const char *key,
                                    const char *value, struct dpt_err *err)
{
    if (options->n_overrides == DPT_CONFIG_OVERRIDES_MAX)
        return dpt_fail(err, DPT_ECONFIG, "more than %d overrides; write them into the config file",
                        DPT_CONFIG_OVERRIDES_MAX);
    char *text = options->overrides[options->n_overrides];
    int length = snprintf(text, DPT_OPTION_TEXT_BYTES, "%s%s%s", key != NULL ? key : "",
                          key != NULL ? "=" : "", value);
    if (length < 0 || length >= DPT_OPTION_TEXT_BYTES)
        return dpt_fail(err, DPT_ECONFIG, "override '%.40s…' is too long", value);
    options->names_run = options->names_run || strncmp(text, "run=", 4) == 0;
    options->n_overrides++;
    return DPT_OK;
}

static enum dpt_status set_log_level(struct dpt_worker_options *options, const char *value,
                                     struct dpt_err *err)
{
    static const char *const names[DPT_LOG_LEVEL_COUNT] = {"debug", "info", "warn", "error"};
    for (int i = 0; i < DPT_LOG_LEVEL_COUNT; i++)
        if (strcmp(value, names[i]) == 0) {
            options->log_level = (enum dpt_log_level)i;
            return DPT_OK;
        }
    return dpt_fail(err, DPT_ECONFIG, "--log-level '%s' is not one of debug, info, warn, error",
                    value);
}

static enum dpt_status add_allowed(struct dpt_worker_options *options, const char *key,
                                   struct dpt_err *err)
{
    if (options->n_allow == DPT_RANK_ALLOW_MAX)
        return dpt_fail(err, DPT_ECONFIG, "more than %d --allow-change", DPT_RANK_ALLOW_MAX);
    if (dpt_config_check_path(key, err) != DPT_OK)
        return dpt_wrap(err, DPT_ECONFIG, "--allow-change");
    options->allow[options->n_allow++] = key;
    return DPT_OK;
}

static enum dpt_status store_option(const struct option_entry *entry, const char *value,
                                    struct dpt_worker_options *options, struct dpt_err *err)
{
    char *field = (char *)options + entry->field;
    switch (entry->kind) {
    case OPTION_TEXT:
        memcpy(field, &value, sizeof value);
        return DPT_OK;
    case OPTION_FLAG:
        *(bool *)field = true;
        return DPT_OK;
    case OPTION_SET:
        if (strchr(value, '=') == NULL || value[0] == '=')
            return dpt_fail(err, DPT_ECONFIG, "--set '%s' is not KEY=VALUE", value);
        return add_override(options, NULL, value, err);
    case OPTION_KEY:
        return add_override(options, entry->key, value != NULL ? value : "true", err);
    case OPTION_ALLOW:
        return add_allowed(options, value, err);
    case OPTION_LOG_LEVEL:
        return set_log_level(options, value, err);
    case OPTION_QUIET:
    case OPTION_VERBOSE:
        options->quiet = entry->kind == OPTION_QUIET;
        options->log_level = options->quiet ? DPT_LOG_WARN : DPT_LOG_DEBUG;
        return DPT_OK;
    }
    return DPT_OK;
}

enum dpt_status dpt_worker_options_parse(int argc, char *const *argv,
                                         struct dpt_worker_options *ret, struct dpt_err *err)
{
    *ret = (struct dpt_worker_options){.log_level = DPT_LOG_INFO};
    for (int i = 1; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        size_t bytes = equals != NULL ? (size_t)(equals - argv[i]) : strlen(argv[i]);
        if (strncmp(argv[i], "--", 2) != 0)
            return dpt_fail(err, DPT_ECONFIG, "unexpected argument '%s' (see --help)", argv[i]);
        const struct option_entry *entry = NULL;
        for (int k = 0; k < TABLE_COUNT; k++)
            if (strlen(table[k].name) == bytes && strncmp(table[k].name, argv[i], bytes) == 0)
                entry = &table[k];
        if (entry == NULL)
            return fail_unknown(argv[i], bytes, err);
        const char *value = equals != NULL ? equals + 1 : NULL;
        if (entry->value == NULL && value != NULL)
            return dpt_fail(err, DPT_ECONFIG, "%s takes no value", entry->name);
        if (entry->value != NULL && value == NULL && i + 1 < argc)
            value = argv[++i];
        if (entry->value != NULL && (value == NULL || value[0] == '\0'))
            return dpt_fail(err, DPT_ECONFIG, "%s needs a value: %s %s", entry->name, entry->name,
                            entry->value);
        DPT_TRY(store_option(entry, value, ret, err));
    }
    return DPT_OK;
}

void dpt_worker_options_help(FILE *out)
{
    (void)fputs("usage: dpt-worker [--config FILE] [--nnodes N|MIN:MAX] [options]\n"
                "       dpt-worker [--config FILE] --eval [--step N] [options]\n"
                "\n"
                "The part of one node in a training run: joins the run at its server, starts\n"
                "one rank process per device, watches them, and goes on when other nodes die\n"
                "or join.\n"
                "\n",
                out);
    for (int i = 0; i < TABLE_COUNT; i++) {
        char left[64];
        (void)snprintf(left, sizeof left, "%s%s%s", table[i].name,
                       table[i].value != NULL ? " " : "",
                       table[i].value != NULL ? table[i].value : "");
        (void)fprintf(out, "  %-28s %s", left, table[i].help);
        if (table[i].key != NULL)
            (void)fprintf(out, " [%s]", table[i].key);
        (void)fputc('\n', out);
    }
    (void)fputs(
        "\n"
        "The server is found by --rdzv-endpoint, else $DPT_RDZV_ENDPOINT, else cluster.rdzv in\n"
        "the config, else " DPT_WORKER_ENDPOINT_DEFAULT ". With --nnodes 1 and none of them\n"
        "named, the server is embedded in this process.\n"
        "\n"
        "The server must know this machine's key, which is drawn at the first start. It knows the\n"
        "key of its own user on its own machine. On another machine give --rdzv-token (or\n"
        "$DPT_RDZV_TOKEN) once; it is not needed again, but may stay on the command line.\n"
        "\n"
        "Without --config the worker takes the config of the run that --rdzv-id names, else of\n"
        "the only run at the server. If there is none yet, a worker with --rdzv-id waits for it\n"
        "until the join deadline (12 x cluster.timeout_s: 60 s); one without --rdzv-id runs the\n"
        "built-in demo. If there are several, a worker without --rdzv-id ends with 2.\n"
        "\n"
        "On a terminal a live line shows the newest step. Elsewhere, and on a terminal with\n"
        "TERM=dumb or NO_COLOR set, a line is printed every train.log_every steps. The node of\n"
        "rank 0 shows the steps, and a summary at the end.\n"
        "\n"
        "SIGTERM, SIGINT, SIGQUIT or SIGHUP (unless nohup made it ignored) leaves the run at the\n"
        "next step boundary, within cluster.drain_s; a second one leaves at once.\n"
        "Exit codes: 0 done, 2 bad or refused config, 3 server unreachable or no worker gave\n"
        "the run's config in time, 4 run failed, 5 the server does not take this machine's keys,\n"
        "75 left with steps that are not saved, or out of the run: did not drain in time, told\n"
        "twice to leave, evicted by an operator, expelled and not let in again, or its folders\n"
        "taken over while it was suspended or could not write there.\n"
        "\n"
        "Keys of the config, for the file and for --set:\n",
        out);
    dpt_config_help(out);
}

void dpt_worker_options_overrides(const struct dpt_worker_options *options,
                                  const char *ret[DPT_CONFIG_OVERRIDES_MAX])
{
    for (size_t i = 0; i < options->n_overrides; i++)
        ret[i] = options->overrides[i];
}

enum dpt_status dpt_worker_endpoint(const struct dpt_worker_options *options,
                                    const char *environment, const struct dpt_config *config,
                                    struct dpt_worker_endpoint *ret, struct dpt_err *err)
{
    const char *key = config != NULL ? config->cluster.rdzv : "";
    struct dpt_worker_endpoint found = {DPT_WORKER_ENDPOINT_DEFAULT, "the default",
                                        config != NULL && config->cluster.nnodes_max == 1};
    if (options->rdzv_endpoint != NULL)
        found = (struct dpt_worker_endpoint){options->rdzv_endpoint, "--rdzv-endpoint", false};
    else if (environment != NULL && environment[0] != '\0')
        found = (struct dpt_worker_endpoint){environment, "DPT_RDZV_ENDPOINT", false};
    else if (key[0] != '\0')
        found = (struct dpt_worker_endpoint){key, "cluster.rdzv", false};
    if (strchr(found.endpoint, ':') == NULL)
        return dpt_fail(err, DPT_ECONFIG, "%s '%s' is not HOST:PORT", found.source, found.endpoint);
    *ret = found;
    return DPT_OK;
}
