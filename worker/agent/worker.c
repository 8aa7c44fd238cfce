/* Putting a worker together: options, config, server, loop, closing line. */
#include "worker/agent/worker.h"

#include "base/cores.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/signals.h"
#include "rendezvous/client/client.h"
#include "rendezvous/server/server.h"
#include "worker/agent/loop.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SILENCE_MS_MIN = 500, COMPLAINT_BYTES = 4096 };

struct worker {
    struct dpt_worker_options options;
    char node_id[DPT_CONFIG_NAME_BYTES];
    struct dpt_config config; /* --config's, else the demo's: names the server and the run */
    struct dpt_node *node;    /* NULL until the config is known */
    const char *endpoint, *source;
    bool at_work; /* in its loop: what fails now is not what the user gave */
    bool embed;
    bool live; /* standard output takes a live line */
    struct dpt_server_thread *server;
    struct dpt_client *client;
    /* Everything is printed by it once what ends the program is blocked: a terminal that takes
     * nothing then holds nobody up. */
    struct dpt_terminal *terminal;
};

/* As of a worker that is told to end before it takes part in a run. */
static const char left_early[] = "left as asked while it was starting: nothing was trained\n";

static enum dpt_status make_node(struct worker *worker, enum dpt_node_source source,
                                 const char *text, size_t bytes, const char *name,
                                 struct dpt_err *err)
{
    DPT_TRY(dpt_node_create(&worker->options, source, text, bytes, name, &worker->node, err));
    DPT_ASSERT(worker->node != NULL);
    const char *interface = worker->node->config.cluster.interface;
    char address[DPT_ADDRESS_BYTES]; /* asked for again when a rank starts; now only whether there
                                        is one */
    return interface[0] == '\0' ? DPT_OK : dpt_address_find(interface, "", address, err);
}

static enum dpt_status make_demo_node(struct worker *worker, struct dpt_err *err)
{
    return make_node(worker, DPT_NODE_FROM_DEMO, (const char *)dpt_demo_config,
                     dpt_demo_config_bytes, "demo", err);
}

static enum dpt_status read_config(struct worker *worker, struct dpt_err *err)
{
    const char *path = worker->options.config_path;
    char *text = NULL;
    size_t bytes;
    DPT_TRY(dpt_fs_read_stream(path, DPT_CONFIG_TEXT_BYTES_MAX, &text, &bytes, err));
    enum dpt_status status = make_node(worker, DPT_NODE_FROM_FILE, text, bytes, path, err);
    free(text);
    if (status == DPT_OK)
        worker->config = worker->node->config;
    return status;
}

/* The config's two ways: a file, or whatever the server or the demo says. */
static enum dpt_status find_config(struct worker *worker, struct dpt_err *err)
{
    if (worker->options.config_path != NULL)
        return read_config(worker, err);
    const char *overrides[DPT_CONFIG_OVERRIDES_MAX];
    dpt_worker_options_overrides(&worker->options, overrides);
    DPT_TRY(dpt_config_parse((const char *)dpt_demo_config, dpt_demo_config_bytes, "demo",
                             overrides, worker->options.n_overrides, &worker->config, err));
    if (worker->config.model.init_from[0] != '\0')
        return DPT_OK; /* the sizes are another model's: make_demo_node checks them, if the server
                          has no run */
    return dpt_config_load((const char *)dpt_demo_config, dpt_demo_config_bytes, "demo", overrides,
                           worker->options.n_overrides, &worker->config, err);
}

/* One line; what it was made of is for --verbose. */
static void say_start(const struct worker *worker)
{
    char text[512], threads[64];
    const struct dpt_node *node = worker->node;
    struct dpt_timing timing = dpt_timing_of_run(node->spec.timeout_ms, node->spec.drain_ms);
    dpt_log(DPT_LOG_INFO, "run %s at %s (from %s): %d rank%s here, world of at most %u",
            node->config.run, worker->endpoint, worker->source, node->n_ranks,
            node->n_ranks == 1 ? "" : "s", (unsigned)node->spec.max_world);
    if (node->threads > 0)
        (void)snprintf(threads, sizeof threads, "%d thread%s", node->threads,
                       node->threads == 1 ? "" : "s");
    else
        (void)snprintf(threads, sizeof threads, "as many threads as its share of %d cores",
                       dpt_cores());
    dpt_log(DPT_LOG_DEBUG, "a rank has %s, %s", threads, node->fingerprint);
    dpt_timing_print(&timing, text, sizeof text);
    dpt_log(DPT_LOG_DEBUG, "deadlines from %s", text);
}

static void print_line(const struct worker *worker, const char *line)
{
    if (worker->terminal != NULL) {
        dpt_terminal_print(worker->terminal, line);
        return;
    }
    (void)puts(line);
    (void)fflush(stdout);
}

/* A line for standard output, unless it should be quiet. */
static void say(const struct worker *worker, const char *fmt, ...) DPT_PRINTF(2, 3);
static void say(const struct worker *worker, const char *fmt, ...)
{
    char line[DPT_TEXT_LINE_BYTES];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (!worker->options.quiet)
        print_line(worker, line);
}

/* A line for standard error, after the program's name. */
static void complain(const struct worker *worker, const char *fmt, ...) DPT_PRINTF(2, 3);
static void complain(const struct worker *worker, const char *fmt, ...)
{
    char line[COMPLAINT_BYTES];
    va_list ap;
    int used = snprintf(line, sizeof line, "dpt-worker: ");
    va_start(ap, fmt);
    (void)vsnprintf(line + used, sizeof line - (size_t)used - 1, fmt, ap);
    va_end(ap);
    dpt_one_line(line);
    const size_t bytes = strlen(line) + 1;
    line[bytes - 1] = '\n'; /* in the place of the NUL */
    if (worker->terminal != NULL)
        dpt_terminal_print_error(worker->terminal, line, bytes);
    else
        (void)fwrite(line, 1, bytes, stderr);
}

static void say_demo(const struct worker *worker)
{
    if (worker->embed)
        say(worker, "no config given: running the built-in demo (--config FILE for your own)");
    else
        say(worker,
            "no config given and none at %s: running the built-in demo (--config FILE for your "
            "own)",
            worker->endpoint);
}

static enum dpt_status configure_hook(void *ctx, const Dpt__RunSpec *spec,
                                      const struct dpt_node **ret, struct dpt_err *err)
{
    struct worker *worker = ctx;
    if (spec == NULL)
        say_demo(worker);
    enum dpt_status status = spec == NULL
                                 ? make_demo_node(worker, err)
                                 : make_node(worker, DPT_NODE_FROM_SERVER, spec->config_yaml,
                                             strlen(spec->config_yaml), "config of the run", err);
    if (status != DPT_OK)
        return status;
    say_start(worker);
    *ret = worker->node;
    return DPT_OK;
}

static enum dpt_status address_hook(void *ctx, const struct dpt_node *node,
                                    char ret[DPT_ADDRESS_BYTES], struct dpt_err *err)
{
    const struct worker *worker = ctx;
    return dpt_address_find(node->config.cluster.interface, worker->endpoint, ret, err);
}

static int64_t timeout_ms(const struct worker *worker)
{
    return (int64_t)(worker->config.cluster.timeout_s * 1000.0);
}

static enum dpt_status connect_client(struct worker *worker, struct dpt_err *err)
{
    int64_t silence_ms = timeout_ms(worker) / 2;
    const struct dpt_client_options options = {
        .endpoint = worker->endpoint,
        .silence_ms = silence_ms > SILENCE_MS_MIN ? (int)silence_ms : SILENCE_MS_MIN};
    enum dpt_status status = dpt_client_create(&options, &worker->client, err);
    return status == DPT_OK ? status : dpt_wrap(err, status, "%s", worker->source);
}

static void write_log(void *ctx, const char *line, size_t bytes)
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
    dpt_log_set_sink(write_log, worker->terminal);
    return DPT_OK;
}

static void close_terminal(struct worker *worker)
{
    dpt_log_set_sink(NULL, NULL);
    dpt_terminal_destroy(&worker->terminal);
}

static enum dpt_status find_server(struct worker *worker, struct dpt_err *err)
{
    DPT_TRY(dpt_worker_endpoint(&worker->options, getenv("DPT_RDZV_ENDPOINT"), &worker->config,
                                &worker->endpoint, &worker->source, &worker->embed, err));
    if (worker->embed && worker->node == NULL) {
        say_demo(worker);
        DPT_TRY(make_demo_node(worker, err));
    }
    sigset_t ends; /* the loop alone takes them: every thread inherits the mask */
    DPT_TRY(dpt_signals_block_ends(&ends, err));
    DPT_TRY(open_terminal(worker, err));
    if (worker->embed) {
        DPT_TRY(dpt_server_thread_start(&worker->server, err));
        worker->endpoint = dpt_server_thread_endpoint(worker->server);
        worker->source = "the embedded server";
    }
    return connect_client(worker, err);
}

/* Steps of an epoch are counted in data.train, and by what the batch takes of it. */
static bool has_other_data(const struct dpt_config *theirs, const struct dpt_config *mine)
{
    return theirs->train.epochs > 0 && mine->train.epochs > 0 &&
           theirs->train.epoch_steps != mine->train.epoch_steps &&
           theirs->train.global_batch == mine->train.global_batch &&
           theirs->train.seq_len == mine->train.seq_len;
}

/* Both train adapters, of different weights. */
static bool has_other_base(const struct dpt_config *theirs, const struct dpt_config *mine)
{
    return theirs->train.lora.rank > 0 && mine->train.lora.rank > 0 &&
           strcmp(theirs->train.lora.base_hash, mine->train.lora.base_hash) != 0;
}

/* Names the keys in which it differs from the run's config. False: they are not known. */
static bool say_difference(const struct worker *worker, const char *run_config)
{
    struct dpt_config *theirs = malloc(sizeof *theirs);
    char keys[1024];
    struct dpt_err err;
    int n_keys = 0;
    if (theirs == NULL || worker->node == NULL)
        goto out;
    if (dpt_config_load(run_config, strlen(run_config), "config of the run", NULL, 0, theirs,
                        &err) != DPT_OK) {
        complain(worker, "the run's config cannot be read here: %s", err.text);
        goto out;
    }
    n_keys =
        dpt_config_diff(theirs, &worker->node->config, DPT_CONFIG_RUN, NULL, 0, keys, sizeof keys);
    if (n_keys > 0)
        complain(
            worker,
            "refused by the server: the config differs from that of run %s in: %s. Use the run's "
            "values%s%s, or another name (run: in the config, --rdzv-id)",
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

static void say_done(const struct worker *worker, const struct dpt_loop_end *end)
{
    char text[DPT_TEXT_LINE_BYTES + DPT_TEXT_SUMMARY_BYTES], block[DPT_TEXT_SUMMARY_BYTES] = "";
    const struct dpt_closing_facts facts = {.run = worker->config.run,
                                            .step = end->step,
                                            .generation = end->generation,
                                            .released = end->released,
                                            .no_server = end->why[0] != '\0'};
    dpt_text_closing(&facts, text);
    if (end->has_summary && !end->released) {
        dpt_text_summary(&end->summary, block);
        block[strlen(block) - 1] = '\0'; /* its last newline */
        const size_t used = strlen(text);
        (void)snprintf(text + used, sizeof text - used, "\n%s", block);
    }
    print_line(worker, text);
}

static int close_run(const struct worker *worker, struct dpt_loop_end *end)
{
    dpt_terminal_show(worker->terminal, NULL);
    const bool refused = end->run_config != NULL && end->exit_code != DPT_EXIT_DONE;
    if (end->exit_code == DPT_EXIT_DONE)
        say_done(worker, end);
    else if (refused && say_difference(worker, end->run_config))
        ; /* in more words than the server's */
    else if (end->no_run)
        complain(worker,
                 "nobody brought the config of run %s to %s in time: start a worker of it with "
                 "--config FILE, or give --config here",
                 worker->config.run, worker->endpoint);
    else if (end->exit_code == DPT_EXIT_SERVER)
        complain(worker, "%s; tried %s (from %s): %s", end->text, worker->endpoint, worker->source,
                 end->why[0] != '\0' ? end->why
                                     : "start dpt-rdzv there, or name another place with "
                                       "--rdzv-endpoint HOST:PORT");
    else
        complain(worker, "%s", end->text);
    free(end->run_config);
    return end->exit_code;
}

static enum dpt_status run_once(struct worker *worker, const char *program,
                                struct dpt_loop_end *ret, struct dpt_err *err)
{
    const struct dpt_loop_options options = {
        .agent = {.run = worker->config.run,
                  .node = worker->node_id,
                  .software = "dpt " DPT_VERSION,
                  .incarnation = 1,
                  .timeout_ms = timeout_ms(worker)},
        .node = worker->node,
        .needs_run = worker->options.names_run,
        .transport = dpt_client_transport(worker->client),
        .hooks = {worker, configure_hook, address_hook},
        .program = program,
        .allow = worker->options.allow,
        .n_allow = worker->options.n_allow,
        .allow_fresh = worker->options.allow_fresh,
        .embedded = worker->embed,
        .log_level = worker->options.log_level,
        .terminal = worker->terminal,
        .live = worker->live,
        .quiet = worker->options.quiet,
        .endpoint = worker->endpoint,
        .source = worker->source,
    };
    worker->at_work = true;
    return dpt_loop_run(&options, ret, err);
}

/* Nothing but the server was named: its one run is meant, and this worker joins it from the start.
 */
static enum dpt_status take_other_run(struct worker *worker, const char *run, struct dpt_err *err)
{
    say(worker, "no config given: taking part in run '%s', the one at %s", run, worker->endpoint);
    (void)snprintf(worker->config.run, sizeof worker->config.run, "%s", run);
    worker->options.names_run = true;
    dpt_client_destroy(&worker->client);
    return connect_client(worker, err);
}

static enum dpt_status run_loops(struct worker *worker, const char *program,
                                 struct dpt_loop_end *ret, struct dpt_err *err)
{
    DPT_TRY(run_once(worker, program, ret, err));
    if (ret->other_run[0] == '\0')
        return DPT_OK;
    DPT_TRY(take_other_run(worker, ret->other_run, err));
    return run_once(worker, program, ret, err);
}

static enum dpt_status run_loop(struct worker *worker, const char *program, int *ret_exit,
                                struct dpt_err *err)
{
    struct dpt_loop_end end;
    DPT_TRY(run_loops(worker, program, &end, err));
    *ret_exit = close_run(worker, &end);
    return DPT_OK;
}

static enum dpt_status run(struct worker *worker, int argc, char *const *argv, const char *program,
                           int *ret_exit, struct dpt_err *err)
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
        DPT_TRY(dpt_node_id_random(worker->node_id, err));
    }
    dpt_log_set_level(worker->options.log_level);
    dpt_log_set_who("dpt-worker", worker->node_id);
    /* Reading all the data may take long, and nothing runs yet. */
    DPT_TRY(dpt_signals_end_at_once(left_early, DPT_EXIT_DONE, err));
    DPT_TRY(find_config(worker, err));
    DPT_TRY(find_server(worker, err));
    if (worker->node != NULL)
        say_start(worker);
    return run_loop(worker, program, ret_exit, err);
}

/* Before the loop nearly everything that can go wrong is something the user gave. */
static int exit_code_of(enum dpt_status status)
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
    enum dpt_status status = run(worker, argc, argv, program, &exit_code, &err);
    if (status != DPT_OK) {
        complain(worker, "%s", err.text);
        exit_code = worker->at_work && status == DPT_EIO ? DPT_EXIT_FAILED : exit_code_of(status);
    }
    dpt_client_destroy(&worker->client);
    dpt_server_thread_stop(&worker->server);
    dpt_node_destroy(&worker->node);
    close_terminal(worker);
    free(worker);
    return exit_code;
}
