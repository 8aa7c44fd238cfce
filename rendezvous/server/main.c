/* dpt-rdzv: the rendezvous server. It gives workers their ranks and plans, and carries no training
 * data. */
#include "base/err.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/option.h"
#include "base/signals.h"
#include "base/stdout.h"
#include "base/utc.h"
#include "rendezvous/proto/message.h"
#include "rendezvous/server/announce.h"
#include "rendezvous/server/bind.h"
#include "rendezvous/server/descriptors.h"
#include "rendezvous/server/exit_code.h"
#include "rendezvous/server/gate.h"
#include "rendezvous/server/history_main.h"
#include "rendezvous/server/server.h"
#include "rendezvous/server/tokens.h"
#include "rendezvous/store/store.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

enum { HEAP_GROWS_BY = 4 << 20, HEAP_KEEPS = 512 << 20 };

struct arguments {
    struct dpt_server_options server;
    int64_t port, nodes_max, ranks_max;
    const char *port_file, *state_dir;
    struct dpt_token_order order; /* of tokens that are made; its numbers are 0 while they are read,
                                     if they are not given */
    const char *deny, *revoke;    /* --deny, --revoke; NULL: not given */
    bool new_token, join_only, new_key;
    int64_t after_s; /* of --new-key; -1: not given */
    bool help, version;
};

static const char help_text[] =
    "usage: dpt-rdzv [--port N] [--bind ADDRESS] [--key-dir DIR | --open] [--fresh]\n"
    "                [--state-dir DIR] [--port-file FILE] [--max-nodes N] [--max-ranks N]\n"
    "       dpt-rdzv history [--state-dir DIR | --port N] [--run R] [--json]\n"
    "       dpt-rdzv --new-token [--token-hours N] [--token-uses N] [--join-only] [--run R]\n"
    "                [--key-dir DIR]\n"
    "       dpt-rdzv --revoke TOKEN [--key-dir DIR]\n"
    "       dpt-rdzv --new-key [--after-s N] [--key-dir DIR]\n"
    "       dpt-rdzv --deny MACHINE [--key-dir DIR]\n"
    "\n"
    "The rendezvous server of dpt. Start one on a host that all workers reach, then dpt-worker on "
    "each machine. It serves\n"
    "up to 256 runs at a time, is not on the data path, and may be restarted while they train.\n"
    "\n"
    "  --port N          TCP port (default 29500; 0: any free one)\n"
    "  --bind ADDRESS    where to listen: a numeric IP address, localhost, or * for every address "
    "(default: *)\n"
    "  --key-dir DIR     folder of the keys, for this user alone (default: $DPT_KEY_DIR, else "
    "~/.dpt)\n"
    "  --open            no keys: any process that reaches the port can join, read and stop runs. "
    "Only inside a network\n"
    "                    that you trust; workers then need --rdzv-token none\n"
    "  --new-token       make a token, print it, and end; a running server knows it at once\n"
    "  --token-hours N   time for which a token is good (default 24)\n"
    "  --token-uses N    machines that a token admits (default 64, at most 50000)\n"
    "  --join-only       machines of the token may join runs, but not define one by its config\n"
    "  --run R           machines of the token may take part in run R only\n"
    "  --revoke TOKEN    a token admits no machine from now on: its text, or the first 8 digits or "
    "more of its key, as in the\n"
    "                    file 'tokens' of the key folder\n"
    "  --new-key         draw a new key for the server: a running server tells its machines, and "
    "changes to it later\n"
    "  --after-s N       seconds until then (default 30; a running server takes 5 at least)\n"
    "  --deny MACHINE    cut a machine off: its name, or the first 8 digits or more of its key, as "
    "in the file 'machines' of\n"
    "                    the key folder\n"
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
    "  --max-ranks N     ranks of one run that train (default and at most 131072); a rank takes "
    "about 0.9 KB, and a node\n"
    "                    1.2 KB more. dpt-worker forms worlds of at most 1024. A run that trains "
    "keeps its ranks until its\n"
    "                    next generation\n"
    "  --log-level L     debug, info (default), warn or error\n"
    "  --version         print the version\n"
    "  --help            print this\n"
    "\n"
    "At its first start it draws its keys. When it listens it prints its addresses and the "
    "commands for the other machines,\n"
    "with a token that admits them. Workers of the same user on this machine need no token. "
    "`history` prints runs, generations,\n"
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

static enum dpt_status check_combination(const struct arguments *arguments, struct dpt_err *err)
{
    const struct dpt_token_order *order = &arguments->order;
    const int commands = arguments->new_token + arguments->new_key + (arguments->deny != NULL) +
                         (arguments->revoke != NULL);
    if (arguments->server.open && (commands > 0 || arguments->server.key_dir != NULL))
        return dpt_fail(err, DPT_ECONFIG,
                        "--open means that there are no keys: leave out --key-dir, --new-token, "
                        "--revoke, --new-key and --deny, or leave out --open");
    if (order->run != NULL && !dpt_admission_is_run(order->run))
        return dpt_fail(err, DPT_ECONFIG,
                        "--run '%.70s' is no name of a run: 1 to 63 letters, digits, '.', '_' and "
                        "'-', the first no '.'",
                        order->run);
    if (arguments->server.open && (order->run != NULL || arguments->join_only))
        return dpt_fail(err, DPT_ECONFIG,
                        "--open means that there are no keys, so nobody is bound by --run or "
                        "--join-only, which are of tokens: leave them out, or leave out --open");
    if (commands > 1)
        return dpt_fail(err, DPT_ECONFIG,
                        "give one of --new-token, --revoke, --new-key and --deny");
    if (arguments->revoke != NULL && order->run != NULL)
        return dpt_fail(err, DPT_ECONFIG,
                        "--revoke takes no --run: a token is revoked for every run");
    if (arguments->deny != NULL && order->run != NULL)
        return dpt_fail(err, DPT_ECONFIG,
                        "--deny takes no --run, because it cuts the machine off from every run: "
                        "leave out --run, or remove its node from run '%s' by dpt-ctl evict",
                        order->run);
    if (commands > 0 && !arguments->new_token && (order->run != NULL || arguments->join_only))
        return dpt_fail(err, DPT_ECONFIG,
                        "--join-only and --run are of a token that is made: leave them out with "
                        "--revoke, --new-key and --deny");
    if (arguments->after_s >= 0 && !arguments->new_key)
        return dpt_fail(err, DPT_ECONFIG,
                        "--after-s is the time until a new key is in force: give --new-key, too, "
                        "or leave it out");
    if ((order->hours > 0 || order->uses > 0) && !arguments->new_token)
        return dpt_fail(
            err, DPT_ECONFIG,
            "--token-hours and --token-uses are of a token that --new-token makes: give "
            "--new-token, too, or leave them out");
    return DPT_OK;
}

static enum dpt_status parse_arguments(int argc, char **argv, struct arguments *ret,
                                       struct dpt_err *err)
{
    const struct dpt_option options[] = {
        {"--port", "N", .number = &ret->port, .max = 65535},
        {"--bind", "ADDRESS", .text = &ret->server.address},
        {"--open", .flag = &ret->server.open},
        {"--key-dir", "DIR", .text = &ret->server.key_dir},
        {"--new-token", .flag = &ret->new_token},
        {"--token-hours", "N", .number = &ret->order.hours, .min = 1,
         .max = DPT_ADMISSION_TOKEN_HOURS_MAX},
        {"--token-uses", "N", .number = &ret->order.uses, .min = 1,
         .max = DPT_ADMISSION_NEW_USES_MAX},
        {"--join-only", .flag = &ret->join_only},
        {"--run", "R", .text = &ret->order.run},
        {"--revoke", "TOKEN", .text = &ret->revoke},
        {"--new-key", .flag = &ret->new_key},
        {"--after-s", "N", .number = &ret->after_s, .max = DPT_NEW_KEY_AFTER_S_MAX},
        {"--deny", "MACHINE", .text = &ret->deny},
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
    ret->order.right = ret->join_only ? DPT_RIGHT_JOIN : DPT_RIGHT_DEFINE;
    DPT_TRY(check_combination(ret, err));
    if (ret->order.hours == 0)
        ret->order.hours = DPT_TOKEN_HOURS_DEFAULT;
    if (ret->order.uses == 0)
        ret->order.uses = DPT_TOKEN_USES_DEFAULT;
    return DPT_OK;
}

/* ---- commands that start no server ---- */

/* False: no server has drawn its key there. Whoever forgets --key-dir, or is another user than the
 * server, has such a folder. */
static bool is_of_a_server(const struct dpt_key_folder *folder)
{
    return dpt_key_folder_state(folder, "server.key").inode != 0;
}

static enum dpt_status print_new_token(const struct arguments *arguments, struct dpt_err *err)
{
    struct dpt_key_folder folder;
    struct dpt_issued_token token;
    char hex[DPT_KEY_HEX_BYTES], until[DPT_UTC_TEXT_BYTES];
    DPT_TRY(dpt_key_folder_open(arguments->server.key_dir, &folder, err));
    if (!is_of_a_server(&folder))
        dpt_log(DPT_LOG_WARN,
                "no server has used the key folder '%s' yet: the token is for a server that is "
                "started with this folder. For one that runs, name its folder with --key-dir, as "
                "its user",
                folder.path);
    DPT_TRY(dpt_token_issue(&folder, &arguments->order, (int64_t)time(NULL), &token, err));
    if (token.ends_s < token.entry.expires_s) {
        dpt_utc_text(token.ends_s, until);
        dpt_log(DPT_LOG_WARN,
                "the server's key changes at %s, and the token admits nobody from then on: make "
                "another when the log of the server says that it has a new key",
                until);
    }
    dpt_key_hex(&token.entry.key, hex);
    dpt_log(DPT_LOG_INFO,
            "the token's line in '%s/tokens' begins with 'token %.8s'; dpt-rdzv --revoke %.8s "
            "revokes it",
            folder.path, hex, hex);
    (void)printf("%s\n", token.text);
    return dpt_stdout_flush(err);
}

static enum dpt_status revoke_token(const struct arguments *arguments, struct dpt_err *err)
{
    struct dpt_key_folder folder;
    struct dpt_admission_token token;
    char hex[DPT_KEY_HEX_BYTES];
    DPT_TRY(dpt_key_folder_open(arguments->server.key_dir, &folder, err));
    DPT_TRY(dpt_token_revoke(&folder, arguments->revoke, &token, err));
    dpt_key_hex(&token.key, hex);
    (void)printf("the token %.8s admits no machine any more; machines that it has admitted stay: "
                 "cut them off with dpt-rdzv --deny\n",
                 hex);
    return dpt_stdout_flush(err);
}

static enum dpt_status announce_new_key(const struct arguments *arguments, struct dpt_err *err)
{
    struct dpt_key_folder folder;
    const int64_t after_s = arguments->after_s >= 0 ? arguments->after_s : DPT_NEW_KEY_AFTER_S;
    DPT_TRY(dpt_key_folder_open(arguments->server.key_dir, &folder, err));
    if (!is_of_a_server(&folder))
        return dpt_fail(err, DPT_ECONFIG,
                        "--new-key: no server has used the key folder '%s' yet, so there is no key "
                        "to change: name the server's folder with --key-dir, as its user",
                        folder.path);
    DPT_TRY(dpt_token_new_server_key(&folder, (int64_t)time(NULL) + after_s, err));
    (void)printf("a running server tells its machines the new key and has it in %lld s; tokens of "
                 "the earlier key then admit no new machine\n",
                 (long long)(after_s > DPT_GATE_NOTICE_S ? after_s : DPT_GATE_NOTICE_S));
    return dpt_stdout_flush(err);
}

static enum dpt_status deny_machine(const struct arguments *arguments, struct dpt_err *err)
{
    struct dpt_key_folder folder;
    struct dpt_admitted_machine machine;
    char hex[DPT_KEY_HEX_BYTES];
    DPT_TRY(dpt_key_folder_open(arguments->server.key_dir, &folder, err));
    DPT_TRY(dpt_token_deny_machine(&folder, arguments->deny, &machine, err));
    dpt_key_hex(&machine.key, hex);
    (void)printf("machine %s (key %.8s) is denied; a running server cuts it off within a second. A "
                 "token that it has may still admit it with a new key: revoke the token (dpt-rdzv "
                 "--revoke). The line 'used TOKEN %.8s…' of '%s/tokens' has its digits\n",
                 machine.name, hex, hex, folder.path);
    return dpt_stdout_flush(err);
}

/* ---- the server ---- */

/* Opens a descriptor for the signals that end the server. Threads that are started later inherit
 * the signal mask. */
static enum dpt_status open_signals(int *ret_fd, struct dpt_err *err)
{
    sigset_t ends;
    DPT_TRY(dpt_signals_block_ends(&ends, err));
    *ret_fd = signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
    return *ret_fd >= 0 ? DPT_OK : dpt_fail_errno(err, errno, "signal descriptor");
}

/* A clock that was set back, or a machine that starts without a clock: what this server writes is
 * older than what is there. */
static void warn_if_clock_is_behind(const char *dir)
{
    char now[DPT_UTC_TEXT_BYTES], newest[DPT_UTC_TEXT_BYTES];
    struct dpt_err why;
    int64_t newest_ms = 0;
    if (dpt_store_newest_ms(dir, &newest_ms, &why) != DPT_OK) {
        dpt_log(DPT_LOG_WARN, "the clock is not compared with the journal: %s", why.text);
        return;
    }
    const int64_t now_s = (int64_t)time(NULL), behind_s = newest_ms / 1000 - now_s;
    if (behind_s <= DPT_ADMISSION_CLOCK_S)
        return;
    dpt_utc_text(now_s, now);
    dpt_utc_text(newest_ms / 1000, newest);
    dpt_log(DPT_LOG_WARN,
            "this machine's clock says %s, %lld h %lld min before the newest record (%s) of the "
            "journal in '%s': it is behind, or was ahead then. A token that is made now expires "
            "early when the clock is set, and dpt-rdzv history has wrong times. If the clock is "
            "wrong, set it, then make another token (dpt-rdzv --new-token); else move the journal "
            "away before the next start",
            now, (long long)(behind_s / 3600), (long long)(behind_s % 3600 / 60), newest, dir);
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
    warn_if_clock_is_behind(dir);
    return DPT_OK;
}

/* Finds or makes the token that the server prints, before the server reads the list of tokens. A
 * full list is no reason not to serve, nor is a next key that is due: *ret then has no text. */
static enum dpt_status find_token(const struct arguments *arguments, struct dpt_issued_token *ret,
                                  struct dpt_err *err)
{
    struct dpt_key_folder folder;
    struct dpt_err why;
    if (arguments->server.open)
        return DPT_OK;
    DPT_TRY(dpt_key_folder_open(arguments->server.key_dir, &folder, err));
    const enum dpt_status status =
        dpt_token_current(&folder, &arguments->order, (int64_t)time(NULL), ret, &why);
    ret->waits_for_key = status == DPT_EREFUSED;
    if (status != DPT_EOVERFLOW && status != DPT_EREFUSED)
        return status == DPT_OK ? DPT_OK : dpt_pass(err, &why);
    dpt_log(DPT_LOG_WARN, "%s", why.text);
    return DPT_OK;
}

/* Before the log's first line, which is of the journal. */
static enum dpt_status warn_if_open(const struct arguments *arguments, struct dpt_err *err)
{
    if (!arguments->server.open)
        return DPT_OK;
    dpt_announce_no_keys(stdout);
    return dpt_stdout_flush(err);
}

static enum dpt_status print_announcement(const struct dpt_server *server,
                                          const struct arguments *arguments,
                                          const struct dpt_issued_token *token, struct dpt_err *err)
{
    const struct dpt_server_options *options = &arguments->server;
    const struct dpt_key_folder *keys = &dpt_server_keys(server)->folder;
    char folder[PATH_MAX];
    const bool is_found = realpath(keys->path, folder) != NULL;
    struct dpt_announce facts = {.version = DPT_VERSION,
                                 .endpoint = dpt_server_endpoint(server),
                                 .port = dpt_server_port(server),
                                 .anywhere =
                                     options->address == NULL || strcmp(options->address, "*") == 0,
                                 .key_folder = is_found ? folder : keys->path,
                                 .is_default_folder = keys->is_default};
    if (!options->open) {
        facts.token = token->text[0] != '\0' ? token->text : "TOKEN";
        facts.token_uses = token->entry.uses - token->entry.used;
        facts.token_ends_s = token->ends_s;
        facts.waits_for_key = token->waits_for_key;
    }
    dpt_announce_look(&facts);
    dpt_announce_print(&facts, stdout);
    DPT_TRY(dpt_stdout_flush(err));
    if (arguments->port_file == NULL)
        return DPT_OK;
    char text[16];
    int bytes = snprintf(text, sizeof text, "%d\n", dpt_server_port(server));
    struct dpt_err why;
    if (dpt_fs_write_file_atomic(arguments->port_file, text, (size_t)bytes, &why) != DPT_OK)
        return dpt_fail(err, DPT_ECONFIG, "--port-file: %s", why.text);
    return DPT_OK;
}

/* ZeroMQ's thread takes what this thread frees, thousands of times a second. With one heap that
 * stays large the kernel need not clear these pages again. If a setting is refused, the server is
 * slower. */
static void keep_memory(void)
{
    (void)mallopt(M_ARENA_MAX, 1);
    (void)mallopt(M_TOP_PAD, HEAP_GROWS_BY);
    (void)mallopt(M_TRIM_THRESHOLD, HEAP_KEEPS);
}

static enum dpt_status run_server(int argc, char **argv, struct dpt_err *err)
{
    struct arguments arguments = {.port = DPT_SERVER_PORT,
                                  .nodes_max = DPT_SERVER_NODES_MAX,
                                  .ranks_max = DPT_SERVER_RANKS_MAX,
                                  .after_s = -1};
    DPT_TRY(parse_arguments(argc, argv, &arguments, err));
    if (arguments.help || arguments.version) {
        (void)fputs(arguments.help ? help_text : "dpt-rdzv " DPT_VERSION "\n", stdout);
        return dpt_stdout_flush(err);
    }
    if (arguments.new_token)
        return print_new_token(&arguments, err);
    if (arguments.revoke != NULL)
        return revoke_token(&arguments, err);
    if (arguments.new_key)
        return announce_new_key(&arguments, err);
    if (arguments.deny != NULL)
        return deny_machine(&arguments, err);
    DPT_TRY(warn_if_open(&arguments, err));
    dpt_descriptors_raise(arguments.server.nodes_max);
    keep_memory();
    DPT_TRY(open_signals(&arguments.server.stop_fd, err));
    /* A write beyond a limit on the size of files fails like a write to a full disk. */
    if (signal(SIGXFSZ, SIG_IGN) == SIG_ERR)
        return dpt_fail_errno(err, errno, "ignore SIGXFSZ");
    struct dpt_store *store = NULL;
    struct dpt_server *server = NULL;
    struct dpt_issued_token token = {.text = ""};
    DPT_TRY(find_token(&arguments, &token, err));
    DPT_TRY(dpt_server_create(&arguments.server, &server, err));
    enum dpt_status status = open_journal(&arguments, &store, err);
    const struct dpt_journal journal = dpt_store_journal(store);
    if (status == DPT_OK && store != NULL)
        status = dpt_server_use_journal(server, &journal, err);
    if (status == DPT_OK)
        status = print_announcement(server, &arguments, &token, err);
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
    if (status != DPT_OK)
        (void)fprintf(stderr, "dpt-rdzv: %s\n", err.text);
    return dpt_rdzv_exit_code(status);
}
