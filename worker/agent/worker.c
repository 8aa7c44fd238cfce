/* A worker from its options to its closing line: config, server, loop. */
#include "worker/agent/worker.h"

#include "base/cores.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/signals.h"
#include "rendezvous/client/client.h"
#include "rendezvous/keys/keyring.h"
#include "rendezvous/server/server.h"
#include "worker/agent/loop.h"
#include "worker/agent/node_address.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SILENCE_MS_MIN = 500, ERROR_LINE_BYTES = 4096, RANDOM_ID_BYTES = 6 };

struct worker {
    struct dpt_worker_options options;
    char node_id[DPT_CONFIG_NAME_BYTES];
    struct dpt_config config; /* from --config, else the demo's; names the server and the run */
    struct dpt_node *node;    /* NULL until there is a config */
    struct dpt_worker_endpoint server_at;
    bool in_loop; /* the loop runs: a failure is no longer the fault of the user's input */
    bool live;    /* standard output has a live line */
    struct dpt_server_thread *server;
    struct dpt_client *client;
    /* Prints every line once the signals that end a program are blocked. NULL before: lines are
     * written with stdio. */
    struct dpt_terminal *terminal;
};

static const char left_early[] = "left as asked while it was starting: nothing was trained\n";

static void print_to_stdout(const struct worker *worker, const char *line)
{
    if (worker->terminal != NULL) {
        dpt_terminal_print(worker->terminal, line);
        return;
    }
    (void)puts(line);
    (void)fflush(stdout);
}

/* Prints a line to standard output, unless --quiet is given. */
static DPT_PRINTF(2, 3) void print_info(const struct worker *worker, const char *fmt, ...)
{
    char line[DPT_TEXT_LINE_BYTES];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (!worker->options.quiet)
        print_to_stdout(worker, line);
}

/* Prints a line to standard error, after the program's name. */
static DPT_PRINTF(2, 3) void print_error(const struct worker *worker, const char *fmt, ...)
{
    char line[ERROR_LINE_BYTES];
    va_list ap;
    int used = snprintf(line, sizeof line, "dpt-worker: ");
    va_start(ap, fmt);
    (void)vsnprintf(line + used, sizeof line - (size_t)used - 1, fmt, ap);
    va_end(ap);
    dpt_one_line(line);
    const size_t bytes = strlen(line) + 1;
    line[bytes - 1] = '\n'; /* replaces the NUL */
    if (worker->terminal != NULL)
        dpt_terminal_print_error(worker->terminal, line, bytes);
    else
        (void)fwrite(line, 1, bytes, stderr);
}

static enum dpt_status create_node(struct worker *worker, const struct dpt_node_text *text,
                                   struct dpt_err *err)
{
    DPT_TRY(dpt_node_create(&worker->options, text, &worker->node, err));
    DPT_ASSERT(worker->node != NULL);
    const char *interface = worker->node->config.cluster.interface;
    /* Only checked here: each start of a rank looks the address up again. */
    char address[DPT_ADDRESS_BYTES];
    return interface[0] == '\0' ? DPT_OK : dpt_node_address_find(interface, "", address, err);
}

static enum dpt_status create_demo_node(struct worker *worker, struct dpt_err *err)
{
    const struct dpt_node_text text = {DPT_NODE_FROM_DEMO, (const char *)dpt_demo_config,
                                       dpt_demo_config_bytes, "demo"};
    print_info(worker,
               "no config given%s%s: running the built-in demo (--config FILE for your own)",
               worker->server_at.embed ? "" : " and none at ",
               worker->server_at.embed ? "" : worker->server_at.endpoint);
    return create_node(worker, &text, err);
}

static enum dpt_status load_config_file(struct worker *worker, struct dpt_err *err)
{
    struct dpt_node_text from = {.source = DPT_NODE_FROM_FILE, .name = worker->options.config_path};
    char *text = NULL;
    DPT_TRY(dpt_fs_read_stream(from.name, DPT_CONFIG_TEXT_BYTES_MAX, &text, &from.bytes, err));
    from.text = text;
    const enum dpt_status status = create_node(worker, &from, err);
    free(text);
    if (status == DPT_OK)
        worker->config = worker->node->config;
    return status;
}

/* Loads the config file. Without one, the server's config or the demo is used later; until then the
 * demo's config and the command line name the server and the run. */
static enum dpt_status load_config_or_demo(struct worker *worker, struct dpt_err *err)
{
    if (worker->options.config_path != NULL)
        return load_config_file(worker, err);
    const char *overrides[DPT_CONFIG_OVERRIDES_MAX];
    dpt_worker_options_overrides(&worker->options, overrides);
    const struct dpt_config_input input = {.text = (const char *)dpt_demo_config,
                                           .bytes = dpt_demo_config_bytes,
                                           .name = "demo",
                                           .overrides = overrides,
                                           .n_overrides = worker->options.n_overrides};
    DPT_TRY(dpt_config_parse(&input, &worker->config, err));
    if (worker->config.model.init_from[0] != '\0')
        return DPT_OK; /* create_demo_node checks them: the sizes are another model's */
    return dpt_config_load(&input, &worker->config, err);
}

/* Logs one line, and with --verbose its details. */
static void log_node(const struct worker *worker)
{
    char text[512], threads[64];
    const struct dpt_node *node = worker->node;
    struct dpt_timing timing = dpt_timing_from(node->spec.timeout_ms, node->spec.drain_ms);
    dpt_log(DPT_LOG_INFO, "run %s at %s (from %s): %d rank%s here, world of at most %u",
            node->config.run, worker->server_at.endpoint, worker->server_at.source, node->n_ranks,
            node->n_ranks == 1 ? "" : "s", (unsigned)node->spec.max_world);
    if (node->threads > 0)
        (void)snprintf(threads, sizeof threads, "%d thread%s", node->threads,
                       node->threads == 1 ? "" : "s");
    else
        (void)snprintf(threads, sizeof threads, "an equal share of %d cores", dpt_cores());
    dpt_log(DPT_LOG_DEBUG, "a rank has %s, %s", threads, node->fingerprint);
    dpt_timing_print(&timing, text, sizeof text);
    dpt_log(DPT_LOG_DEBUG, "deadlines from %s", text);
}

static enum dpt_status create_node_of_run(void *ctx, const Dpt__RunSpec *spec,
                                          const struct dpt_node **ret, struct dpt_err *err)
{
    struct worker *worker = ctx;
    if (spec == NULL) {
        DPT_TRY(create_demo_node(worker, err));
    } else {
        const struct dpt_node_text text = {DPT_NODE_FROM_SERVER, spec->config_yaml,
                                           strlen(spec->config_yaml), "config of the run"};
        DPT_TRY(create_node(worker, &text, err));
    }
    log_node(worker);
    *ret = worker->node;
    return DPT_OK;
}

static int64_t timeout_ms(const struct worker *worker)
{
    return (int64_t)(worker->config.cluster.timeout_s * 1000.0);
}

static enum dpt_status connect_client(struct worker *worker, struct dpt_err *err)
{
    const int silence_ms = (int)(timeout_ms(worker) / 2);
    struct dpt_keyring keys;
    const struct dpt_keyring_options from = {.token = worker->options.rdzv_token,
                                             .key_dir = worker->options.key_dir,
                                             .endpoint = worker->server_at.endpoint};
    if (worker->server_at.embed)
        keys = *dpt_server_thread_keys(worker->server);
    else
        DPT_TRY(dpt_keyring_load(&from, &keys, err));
    const enum dpt_status status = dpt_client_create(
        worker->server_at.endpoint, silence_ms > SILENCE_MS_MIN ? silence_ms : SILENCE_MS_MIN,
        &keys, &worker->client, err);
    return dpt_wrap(err, status, "%s", worker->server_at.source);
}

static void print_log_line(void *ctx, const char *line, size_t bytes)
{
    dpt_terminal_print_error(ctx, line, bytes);
}

static enum dpt_status open_terminal(struct worker *worker, struct dpt_err *err)
{
    worker->live = !worker->options.quiet &&
                   dpt_terminal_is_live(STDOUT_FILENO, getenv("TERM"), getenv("NO_COLOR"));
    const struct dpt_terminal_options options = {.out_fd = STDOUT_FILENO,
                                                 .err_fd = STDERR_FILENO,
                                                 .live = worker->live,
                                                 .utf8 = dpt_terminal_is_utf8()};
    DPT_TRY(dpt_terminal_create(&options, &worker->terminal, err));
    dpt_log_set_sink(print_log_line, worker->terminal);
    return DPT_OK;
}

static void close_terminal(struct worker *worker)
{
    dpt_log_set_sink(NULL, NULL);
    dpt_terminal_destroy(&worker->terminal);
}

static enum dpt_status open_server(struct worker *worker, struct dpt_err *err)
{
    DPT_TRY(dpt_worker_endpoint(&worker->options, getenv("DPT_RDZV_ENDPOINT"), &worker->config,
                                &worker->server_at, err));
    if (worker->server_at.embed && worker->node == NULL)
        DPT_TRY(create_demo_node(worker, err));
    /* The loop reads these signals. All threads inherit the mask. */
    sigset_t ends;
    DPT_TRY(dpt_signals_block_ends(&ends, err));
    DPT_TRY(open_terminal(worker, err));
    if (worker->server_at.embed) {
        DPT_TRY(dpt_server_thread_start(&worker->server, err));
        worker->server_at.endpoint = dpt_server_thread_endpoint(worker->server);
        worker->server_at.source = "the embedded server";
    }
    return connect_client(worker, err);
}

/* Whether the two configs have different data. The number of steps of an epoch follows from
 * data.train and the batch. */
static bool has_other_data(const struct dpt_config *theirs, const struct dpt_config *mine)
{
    return theirs->train.epochs > 0 && mine->train.epochs > 0 &&
           theirs->train.epoch_steps != mine->train.epoch_steps &&
           theirs->train.global_batch == mine->train.global_batch &&
           theirs->train.seq_len == mine->train.seq_len;
}

/* Whether both configs train adapters, but of different base weights. */
static bool has_other_base(const struct dpt_config *theirs, const struct dpt_config *mine)
{
    return theirs->train.lora.rank > 0 && mine->train.lora.rank > 0 &&
           strcmp(theirs->train.lora.base_hash, mine->train.lora.base_hash) != 0;
}

/* Prints the keys in which this config differs from the run's. False: there are none, or the run's
 * config cannot be read. */
static bool print_difference(const struct worker *worker, const char *run_config)
{
    struct dpt_config *theirs = malloc(sizeof *theirs);
    char keys[1024];
    struct dpt_err err;
    int n_keys = 0;
    if (theirs == NULL || worker->node == NULL)
        goto out;
    if (dpt_config_load_text(run_config, "config of the run", NULL, 0, theirs, &err) != DPT_OK) {
        print_error(worker, "the run's config cannot be read here: %s", err.text);
        goto out;
    }
    n_keys =
        dpt_config_diff(theirs, &worker->node->config, DPT_CONFIG_RUN, NULL, keys, sizeof keys);
    if (n_keys > 0)
        print_error(
            worker,
            "refused by the server: the config differs from that of run %s in: %s. Use the run's "
            "values%s%s, or another name (run: in the config, --rdzv-id), or stop the run's "
            "workers first",
            worker->config.run, keys,
            has_other_data(theirs, &worker->node->config)
                ? " (train.epoch_steps is counted in data.train: the run has other data)"
                : "",
            has_other_base(theirs, &worker->node->config)
                ? " (train.lora.base_hash is of the weights in model.init_from: the run has others)"
                : "");
out:
    free(theirs);
    return n_keys > 0;
}

static void print_closing(const struct worker *worker, const struct dpt_loop_end *end)
{
    char line[DPT_TEXT_LINE_BYTES], block[DPT_TEXT_SUMMARY_BYTES];
    dpt_progress_text_closing(&end->closing, line);
    print_to_stdout(worker, line);
    if (end->has_summary && !end->closing.released) {
        dpt_progress_text_summary(&end->summary, block);
        print_to_stdout(worker, block);
    }
}

static int report_end(const struct worker *worker, struct dpt_loop_end *end)
{
    dpt_terminal_show(worker->terminal, NULL);
    const bool refused = end->run_config != NULL && end->exit_code != DPT_EXIT_DONE;
    /* print_difference prints the differing keys in place of the server's text. */
    if (end->exit_code == DPT_EXIT_DONE)
        print_closing(worker, end);
    else if (refused && print_difference(worker, end->run_config))
        ;
    else if (end->no_run)
        print_error(worker,
                    "no worker gave the config of run %s to %s in time: start a worker of it with "
                    "--config FILE, or give --config here",
                    worker->config.run, worker->server_at.endpoint);
    else if (end->exit_code == DPT_EXIT_SERVER)
        print_error(worker, "%s; tried %s (from %s): %s", end->text, worker->server_at.endpoint,
                    worker->server_at.source,
                    end->why[0] != '\0' ? end->why
                                        : "start dpt-rdzv there, or name another place with "
                                          "--rdzv-endpoint HOST:PORT");
    else
        print_error(worker, "%s", end->text);
    free(end->run_config);
    return end->exit_code;
}

static enum dpt_status run_loop_once(struct worker *worker, const char *program,
                                     struct dpt_loop_end *ret, struct dpt_err *err)
{
    const struct dpt_loop_options options = {.worker = &worker->options,
                                             .agent = {.run = worker->config.run,
                                                       .node = worker->node_id,
                                                       .software = "dpt " DPT_VERSION,
                                                       .incarnation = 1,
                                                       .timeout_ms = timeout_ms(worker)},
                                             .node = worker->node,
                                             .client = worker->client,
                                             .configure = create_node_of_run,
                                             .ctx = worker,
                                             .program = program,
                                             .embedded = worker->server_at.embed,
                                             .terminal = worker->terminal,
                                             .live = worker->live,
                                             .endpoint = worker->server_at.endpoint,
                                             .source = worker->server_at.source};
    worker->in_loop = true;
    return dpt_loop_run(&options, ret, err);
}

/* Joins the only run at the server, because the user named neither a config nor a run. */
static enum dpt_status join_other_run(struct worker *worker, const char *run, struct dpt_err *err)
{
    print_info(worker, "no config given: taking part in run '%s', the one at %s", run,
               worker->server_at.endpoint);
    (void)snprintf(worker->config.run, sizeof worker->config.run, "%s", run);
    worker->options.names_run = true;
    dpt_client_destroy(&worker->client);
    return connect_client(worker, err);
}

static enum dpt_status run_loop_and_report(struct worker *worker, const char *program,
                                           int *ret_exit, struct dpt_err *err)
{
    struct dpt_loop_end end;
    DPT_TRY(run_loop_once(worker, program, &end, err));
    if (end.other_run[0] != '\0') {
        DPT_TRY(join_other_run(worker, end.other_run, err));
        DPT_TRY(run_loop_once(worker, program, &end, err));
    }
    *ret_exit = report_end(worker, &end);
    return DPT_OK;
}

static enum dpt_status run_worker(struct worker *worker, int argc, char *const *argv,
                                  const char *program, int *ret_exit, struct dpt_err *err)
{
    DPT_TRY(dpt_worker_options_parse(argc, argv, &worker->options, err));
    if (worker->options.help) {
        dpt_worker_options_help(stdout);
        return DPT_OK;
    }
    if (worker->options.version) {
        (void)puts("dpt-worker " DPT_VERSION);
        return DPT_OK;
    }
    if (worker->options.node_id != NULL) {
        DPT_TRY(dpt_node_id_check(worker->options.node_id, err));
        memcpy(worker->node_id, worker->options.node_id, strlen(worker->options.node_id) + 1);
    } else {
        DPT_TRY(dpt_random_hex(RANDOM_ID_BYTES, worker->node_id, err));
    }
    dpt_log_set_level(worker->options.log_level);
    dpt_log_set_who("dpt-worker", worker->node_id);
    /* Reading all the data may take long, and no rank runs yet: signals end the program at once. */
    DPT_TRY(dpt_signals_end_at_once(left_early, DPT_EXIT_DONE, err));
    DPT_TRY(load_config_or_demo(worker, err));
    DPT_TRY(open_server(worker, err));
    if (worker->node != NULL)
        log_node(worker);
    return run_loop_and_report(worker, program, ret_exit, err);
}

/* Before the loop nearly every failure is a fault of the user's input. */
static int exit_code_of_status(enum dpt_status status)
{
    switch (status) {
    case DPT_ECONFIG:
    case DPT_EINVAL:
    case DPT_ENOENT:
    case DPT_EEXIST:
    case DPT_EIO:
    case DPT_ECORRUPT:
    case DPT_EVERSION:
    case DPT_EUNSUPPORTED:
    case DPT_EOVERFLOW:
        return DPT_EXIT_CONFIG;
    case DPT_ESERVER:
        return DPT_EXIT_SERVER;
    case DPT_EREFUSED:
        return DPT_EXIT_DENIED;
    default:
        return DPT_EXIT_FAILED;
    }
}

int dpt_worker_run(int argc, char *const *argv, const char *program)
{
    struct worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL) {
        (void)fputs("dpt-worker: out of memory\n", stderr);
        return DPT_EXIT_FAILED;
    }
    struct dpt_err err;
    int exit_code = DPT_EXIT_DONE;
    enum dpt_status status = run_worker(worker, argc, argv, program, &exit_code, &err);
    if (status != DPT_OK) {
        print_error(worker, "%s", err.text);
        exit_code =
            worker->in_loop && status == DPT_EIO ? DPT_EXIT_FAILED : exit_code_of_status(status);
    }
    dpt_client_destroy(&worker->client);
    dpt_server_thread_stop(&worker->server);
    dpt_node_destroy(&worker->node);
    close_terminal(worker);
    free(worker);
    return exit_code;
}
