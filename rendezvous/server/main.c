/* dpt-rdzv: the rendezvous server. It gives workers their ranks and plans, and carries no training
 * data. */
#include "base/err.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/option.h"
#include "base/signals.h"
#include "rendezvous/proto/message.h"
#include "rendezvous/server/announce.h"
#include "rendezvous/server/bind.h"
#include "rendezvous/server/history_main.h"
#include "rendezvous/server/server.h"
#include "rendezvous/store/store.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { EXIT_OK = 0, EXIT_CONFIG = 2, EXIT_BROKEN = 4 };

struct arguments {
    struct dpt_server_options server;
    int64_t port, nodes_max, ranks_max;
    const char *port_file, *state_dir;
    bool help, version;
};

static const char help_text[] =
    "usage: dpt-rdzv [--port N] [--bind ADDRESS] [--insecure] [--fresh] [--state-dir DIR]\n"
    "                [--port-file FILE] [--max-nodes N] [--max-ranks N]\n"
    "       dpt-rdzv history [--state-dir DIR | --port N] [--run R] [--json]\n"
    "\n"
    "The rendezvous server of dpt. Start one on a host that all workers reach, then dpt-worker on "
    "each machine. It serves\n"
    "any number of runs, is not on the data path, and may be restarted while they train.\n"
    "\n"
    "  --port N          TCP port (default 29500; 0: any free one)\n"
    "  --bind ADDRESS    where to listen: a numeric IP address, localhost, or * for every address "
    "(default: localhost;\n"
    "                    with --insecure: *)\n"
    "  --insecure        let other hosts connect. There are no keys yet: any process that reaches "
    "the port "
    "can join and stop runs\n"
    "  --fresh           no earlier server had the runs that come here: a run with its minimum of "
    "nodes begins at once. Leave it\n"
    "                    out when a server is started again while runs train: it then waits for "
    "their nodes\n"
    "  --state-dir DIR   folder of the journal: a server that is started again with it knows its "
    "runs. none: no journal\n"
    "                    (default: $XDG_STATE_HOME/dpt-rdzv/PORT, without that variable "
    "~/.local/state/dpt-rdzv/PORT, for root\n"
    "                    /var/lib/dpt-rdzv/PORT; with --port 0: none)\n"
    "  --port-file FILE  write the port to FILE once it listens\n"
    "  --max-nodes N     nodes of one run (default 16384, at most 65536)\n"
    "  --max-ranks N     ranks of one run (default and at most 131072); a rank takes about 1.7 KB\n"
    "  --log-level L     debug, info (default), warn or error\n"
    "  --version         print the version\n"
    "  --help            print this\n"
    "\n"
    "When it listens it prints its addresses and the commands for the other machines. `history` "
    "prints runs, generations,\n"
    "failures and checkpoints of a journal.\n"
    "SIGTERM, SIGINT, SIGQUIT or SIGHUP (unless nohup made it ignored) ends it; running training "
    "goes on. Exit codes: 0 ended, 2 bad option, "
    "port in use or journal that cannot be used, 4 internal failure.\n";

static enum dpt_status set_log_level(void *ctx, const char *text, struct dpt_err *err)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    (void)ctx;
    for (int i = 0; i < DPT_LOG_LEVEL_COUNT; i++)
        if (strcmp(text, names[i]) == 0) {
            dpt_log_set_level((enum dpt_log_level)i);
            return DPT_OK;
        }
    return dpt_fail(err, DPT_EINVAL, "'%s' is not one of debug, info, warn, error", text);
}

static enum dpt_status parse_arguments(int argc, char **argv, struct arguments *ret,
                                       struct dpt_err *err)
{
    const struct dpt_option options[] = {
        {"--port", "N", .number = &ret->port, .max = 65535},
        {"--bind", "ADDRESS", .text = &ret->server.address},
        {"--insecure", .flag = &ret->server.insecure},
        {"--fresh", .flag = &ret->server.fresh},
        {"--state-dir", "DIR", .text = &ret->state_dir},
        {"--port-file", "FILE", .text = &ret->port_file},
        {"--max-nodes", "N", .number = &ret->nodes_max, .min = 1, .max = DPT_PROTO_NODES_MAX},
        {"--max-ranks", "N", .number = &ret->ranks_max, .min = 1, .max = DPT_PROTO_WORLD_MAX},
        {"--log-level", "L", .set = set_log_level},
        {"--version", .flag = &ret->version},
        {"--help", .flag = &ret->help},
    };
    struct dpt_err why;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0)
            return dpt_fail(err, DPT_ECONFIG, "unexpected argument '%s' (see --help)", argv[i]);
        if (dpt_option_read(options, sizeof options / sizeof options[0], argc, argv, &i, &why) !=
            DPT_OK)
            return dpt_fail(err, DPT_ECONFIG, "%s (see --help)", why.text);
    }
    ret->server.port = (int)ret->port;
    ret->server.nodes_max = (uint32_t)ret->nodes_max;
    ret->server.ranks_max = (uint32_t)ret->ranks_max;
    return DPT_OK;
}

/* Opens a descriptor for the signals that end the server. Threads that are started later inherit
 * the signal mask. */
static enum dpt_status open_signals(int *ret_fd, struct dpt_err *err)
{
    sigset_t ends;
    DPT_TRY(dpt_signals_block_ends(&ends, err));
    *ret_fd = signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
    return *ret_fd >= 0 ? DPT_OK : dpt_fail_errno(err, errno, "signal descriptor");
}

/* Each agent takes one descriptor: allow as many as the system permits. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

/* Opens the journal for a server that is bound; *ret stays NULL if there is none. With --port 0 the
 * next server has another port, so no node would find its way to the journal. */
static enum dpt_status open_journal(const struct arguments *arguments, struct dpt_store **ret,
                                    struct dpt_err *err)
{
    const char *dir = arguments->state_dir;
    char default_dir[PATH_MAX];
    struct dpt_err why;
    if (dir == NULL ? arguments->port == 0 : strcmp(dir, "none") == 0)
        return DPT_OK;
    if (dir != NULL && dir[0] == '\0')
        return dpt_fail(err, DPT_ECONFIG, "--state-dir: expected a folder or 'none', got ''");
    if (dir == NULL) {
        DPT_TRY(dpt_store_folder((int)arguments->port, default_dir, err));
        dir = default_dir;
    }
    if (dpt_store_open(dir, ret, &why) != DPT_OK)
        return dpt_fail(err, DPT_ECONFIG, "--state-dir%s: %s",
                        arguments->state_dir == NULL ? " (default; 'none': no journal)" : "",
                        why.text);
    dpt_log(DPT_LOG_INFO, "the journal is in '%s'", dir);
    return DPT_OK;
}

static enum dpt_status print_announcement(const struct dpt_server *server,
                                          const struct arguments *arguments, struct dpt_err *err)
{
    const struct dpt_server_options *options = &arguments->server;
    const char *address = options->address != NULL ? options->address : "*"; /* with --insecure */
    struct dpt_announce facts = {.version = DPT_VERSION,
                                 .endpoint = dpt_server_endpoint(server),
                                 .port = dpt_server_port(server),
                                 .open = options->insecure && !dpt_server_is_loopback(address),
                                 .anywhere = strcmp(address, "*") == 0};
    dpt_announce_look(&facts);
    dpt_announce_print(&facts, stdout);
    if (fflush(stdout) != 0 || ferror(stdout))
        return dpt_fail_errno(err, errno, "write to standard output");
    if (arguments->port_file == NULL)
        return DPT_OK;
    char text[16];
    int bytes = snprintf(text, sizeof text, "%d\n", dpt_server_port(server));
    struct dpt_err why;
    if (dpt_fs_write_file_atomic(arguments->port_file, text, (size_t)bytes, &why) != DPT_OK)
        return dpt_fail(err, DPT_ECONFIG, "--port-file: %s", why.text);
    return DPT_OK;
}

static enum dpt_status run_server(int argc, char **argv, struct dpt_err *err)
{
    struct arguments arguments = {.port = DPT_SERVER_PORT,
                                  .nodes_max = DPT_SERVER_NODES_MAX,
                                  .ranks_max = DPT_SERVER_RANKS_MAX};
    DPT_TRY(parse_arguments(argc, argv, &arguments, err));
    if (arguments.help || arguments.version) {
        (void)fputs(arguments.help ? help_text : "dpt-rdzv " DPT_VERSION "\n", stdout);
        return DPT_OK;
    }
    raise_descriptor_limit();
    DPT_TRY(open_signals(&arguments.server.stop_fd, err));
    /* A write beyond a limit on the size of files fails like a write to a full disk. */
    if (signal(SIGXFSZ, SIG_IGN) == SIG_ERR)
        return dpt_fail_errno(err, errno, "ignore SIGXFSZ");
    struct dpt_store *store = NULL;
    struct dpt_server *server = NULL;
    DPT_TRY(dpt_server_create(&arguments.server, &server, err));
    enum dpt_status status = open_journal(&arguments, &store, err);
    const struct dpt_journal journal = dpt_store_journal(store);
    if (status == DPT_OK && store != NULL)
        status = dpt_server_use_journal(server, &journal, err);
    if (status == DPT_OK)
        status = print_announcement(server, &arguments, err);
    if (status == DPT_OK)
        status = dpt_server_run(server, err);
    dpt_server_destroy(&server);
    dpt_store_close(&store);
    if (status == DPT_OK)
        dpt_log(DPT_LOG_INFO, "ended by a signal; runs that train go on without a server");
    return status;
}

int main(int argc, char **argv)
{
    struct dpt_err err;
    dpt_log_set_who("dpt-rdzv", "");
    const bool history = argc > 1 && strcmp(argv[1], "history") == 0;
    enum dpt_status status =
        history ? dpt_rdzv_print_history(argc - 1, argv + 1, &err) : run_server(argc, argv, &err);
    if (status == DPT_OK)
        return EXIT_OK;
    (void)fprintf(stderr, "dpt-rdzv: %s\n", err.text);
    return status == DPT_ECONFIG || status == DPT_EEXIST || status == DPT_ECORRUPT ||
                   status == DPT_EVERSION || status == DPT_ENOENT
               ? EXIT_CONFIG
               : EXIT_BROKEN;
}
