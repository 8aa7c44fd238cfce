/* Putting a worker together: options, config, server, loop, closing line. */
#include "worker/agent/worker.h"

#include "base/cores.h"
#include "base/fs.h"
#include "base/log.h"
#include "rendezvous/client/client.h"
#include "rendezvous/server/server.h"
#include "worker/agent/loop.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { SILENCE_MS_MIN = 500 };

struct worker {
    struct dpt_worker_options options;
    char node_id[DPT_CONFIG_NAME_BYTES];
    struct dpt_config config; /* --config's, else the demo's: names the server and the run */
    struct dpt_node *node;    /* NULL until the config is known */
    const char *endpoint, *source;
    bool at_work; /* in its loop: what fails now is not what the user gave */
    bool embed;
    struct dpt_server_thread *server;
    struct dpt_client *client;
};

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
    DPT_TRY(dpt_fs_read_file(path, DPT_CONFIG_TEXT_BYTES_MAX, &text, &bytes, err));
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
    return dpt_config_load((const char *)dpt_demo_config, dpt_demo_config_bytes, "demo", overrides,
                           worker->options.n_overrides, &worker->config, err);
}

static void say_node(const struct dpt_node *node)
{
    char text[512], threads[64];
    struct dpt_timing timing = dpt_timing_from(node->spec.timeout_ms);
    if (node->threads > 0)
        (void)snprintf(threads, sizeof threads, "%d thread%s", node->threads,
                       node->threads == 1 ? "" : "s");
    else
        (void)snprintf(threads, sizeof threads, "as many threads as its share of %d cores",
                       dpt_cores());
    dpt_log(DPT_LOG_INFO,
            "%d rank%s of %s, %s, world of at most %u; timeout %" PRId64 " ms: lease %" PRId64
            ", join %" PRId64 ", drain %" PRId64,
            node->n_ranks, node->n_ranks == 1 ? "" : "s", threads, node->fingerprint,
            (unsigned)node->spec.max_world, timing.timeout_ms, timing.lease_ms, timing.join_ms,
            timing.drain_ms);
    dpt_timing_print(&timing, text, sizeof text);
    dpt_log(DPT_LOG_INFO, "deadlines from %s", text);
}

static void say_demo(const struct worker *worker)
{
    if (worker->embed)
        (void)puts("no config given: running the built-in demo (--config FILE for your own)");
    else
        (void)printf("no config given and none at %s: running the built-in demo (--config FILE for "
                     "your own)\n",
                     worker->endpoint);
    (void)fflush(stdout);
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
    say_node(worker->node);
    *ret = worker->node;
    return DPT_OK;
}

static enum dpt_status address_hook(void *ctx, const struct dpt_node *node,
                                    char ret[DPT_ADDRESS_BYTES], struct dpt_err *err)
{
    const struct worker *worker = ctx;
    return dpt_address_find(node->config.cluster.interface, worker->endpoint, ret, err);
}

/* Before any thread is started, so that every thread inherits it: the loop alone takes these
 * signals. */
static enum dpt_status block_signals(struct dpt_err *err)
{
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    if (sigprocmask(SIG_BLOCK, &ends, NULL) != 0 || signal(SIGPIPE, SIG_IGN) == SIG_ERR)
        return dpt_fail_errno(err, errno, "block signals");
    return DPT_OK;
}

static int64_t timeout_ms(const struct worker *worker)
{
    return (int64_t)(worker->config.cluster.timeout_s * 1000.0);
}

static enum dpt_status find_server(struct worker *worker, struct dpt_err *err)
{
    DPT_TRY(dpt_worker_endpoint(&worker->options, getenv("DPT_RDZV_ENDPOINT"), &worker->config,
                                &worker->endpoint, &worker->source, &worker->embed, err));
    if (worker->embed && worker->node == NULL) {
        say_demo(worker);
        DPT_TRY(make_demo_node(worker, err));
    }
    DPT_TRY(block_signals(err));
    if (worker->embed) {
        DPT_TRY(dpt_server_thread_start(&worker->server, err));
        worker->endpoint = dpt_server_thread_endpoint(worker->server);
        worker->source = "the embedded server";
    }
    int64_t silence_ms = timeout_ms(worker) / 2;
    const struct dpt_client_options options = {
        .endpoint = worker->endpoint,
        .silence_ms = silence_ms > SILENCE_MS_MIN ? (int)silence_ms : SILENCE_MS_MIN};
    enum dpt_status status = dpt_client_create(&options, &worker->client, err);
    return status == DPT_OK ? status : dpt_wrap(err, status, "%s", worker->source);
}

static void say_start(const struct worker *worker)
{
    dpt_log(DPT_LOG_INFO, "run %s at %s (from %s)%s", worker->config.run, worker->endpoint,
            worker->source, worker->node == NULL ? "; its config is asked for there" : "");
    if (worker->node != NULL)
        say_node(worker->node);
}

/* Why the server refused us, key by key, if it is the config. */
static void say_difference(const struct worker *worker, const char *run_config)
{
    struct dpt_config *theirs = malloc(sizeof *theirs);
    char keys[1024];
    struct dpt_err err;
    if (theirs == NULL || worker->node == NULL)
        goto out;
    if (dpt_config_load(run_config, strlen(run_config), "config of the run", NULL, 0, theirs,
                        &err) != DPT_OK) {
        (void)fprintf(stderr, "dpt-worker: the run's config cannot be read here: %s\n", err.text);
        goto out;
    }
    if (dpt_config_diff(theirs, &worker->node->config, DPT_CONFIG_RUN, NULL, 0, keys, sizeof keys) >
        0)
        (void)fprintf(
            stderr,
            "dpt-worker: the config differs from that of run %s in: %s. Use the run's values, or "
            "another name (run: in the config, --rdzv-id)\n",
            worker->config.run, keys);
out:
    free(theirs);
}

static int close_run(const struct worker *worker, struct dpt_loop_end *end)
{
    if (end->exit_code == DPT_EXIT_DONE)
        (void)printf("%s: run %s, step %" PRId64 ", generation %" PRIu64 "\n",
                     end->released ? "left the run as asked" : "done", worker->config.run,
                     end->step, end->generation);
    else if (end->no_run)
        (void)fprintf(
            stderr,
            "dpt-worker: nobody brought the config of run %s to %s in time: start a worker of it "
            "with --config FILE, or give --config here\n",
            worker->config.run, worker->endpoint);
    else if (end->exit_code == DPT_EXIT_SERVER)
        (void)fprintf(
            stderr,
            "dpt-worker: %s; tried %s (from %s): start dpt-rdzv there, or name another place with "
            "--rdzv-endpoint HOST:PORT\n",
            end->text, worker->endpoint, worker->source);
    else
        (void)fprintf(stderr, "dpt-worker: %s\n", end->text);
    if (end->run_config != NULL && end->exit_code != DPT_EXIT_DONE)
        say_difference(worker, end->run_config);
    free(end->run_config);
    return end->exit_code;
}

static enum dpt_status run_loop(struct worker *worker, const char *program, int *ret_exit,
                                struct dpt_err *err)
{
    const struct dpt_loop_options options = {
        .agent = {.run = worker->config.run,
                  .node = worker->node_id,
                  .software = "dpt " DPT_VERSION,
                  .incarnation = dpt_node_incarnation(),
                  .timeout_ms = timeout_ms(worker)},
        .node = worker->node,
        .needs_run = worker->options.names_run,
        .transport = dpt_client_transport(worker->client),
        .hooks = {worker, configure_hook, address_hook},
        .program = program,
        .allow = worker->options.allow,
        .n_allow = worker->options.n_allow,
        .log_level = worker->options.log_level,
        .out = stdout,
        .endpoint = worker->endpoint,
        .source = worker->source,
    };
    struct dpt_loop_end end;
    worker->at_work = true;
    DPT_TRY(dpt_loop_run(&options, &end, err));
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
    DPT_TRY(find_config(worker, err));
    DPT_TRY(find_server(worker, err));
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
        (void)fprintf(stderr, "dpt-worker: %s\n", err.text);
        exit_code = worker->at_work && status == DPT_EIO ? DPT_EXIT_FAILED : exit_code_of(status);
    }
    dpt_client_destroy(&worker->client);
    dpt_server_thread_stop(&worker->server);
    dpt_node_destroy(&worker->node);
    free(worker);
    return exit_code;
}
