/* The command line of dpt-doctor: see args.h. */
#include "worker/doctor/args.h"

#include "base/option.h"
#include "base/parse.h"
#include "worker/doctor/probe.h"

#include <string.h>

enum {
    LISTEN_S = 600,
    LISTEN_S_MAX = 86400,
    STREAM_MIB_MAX = 64 << 10,
    TIMEOUT_MS_MAX = 60000,
    PEER_PORT = 29600
};

static const char usage[] =
    "usage: dpt-doctor [--server HOST:PORT] [--interface NAME] [--nccl-log FILE] [--json FILE]\n"
    "       dpt-doctor net --rdzv-endpoint HOST:PORT [--run NAME] --shell COMMAND | [--port PORT]\n"
    "       dpt-doctor net --listen PORT [--bind ADDRESS] [--for S] [--port-file FILE]\n"
    "       dpt-doctor net --peers HOST:PORT,HOST:PORT… [--ms MS] [--mib MIB] [--json FILE]\n"
    "       dpt-doctor hang --server HOST:PORT [--run NAME] [--seconds S] [--json FILE]\n"
    "       dpt-doctor hang --log DIR [--json FILE]\n"
    "       dpt-doctor --help | --version\n"
    "\n"
    "Finds out why a run of dpt is slow, does not start, or hangs.\n"
    "\n"
    "Without a command: this machine. CPU, memory, limits, clock, network interfaces, RDMA\n"
    "devices, GPUs and their connections; each line with a remedy if dpt would suffer.\n"
    "  --server HOST:PORT  the rendezvous server: says which address dpt-worker would take, and "
    "why\n"
    "  --interface NAME    the same with cluster.interface\n"
    "  --nccl-log FILE     what NCCL chose, and why, from its output under NCCL_DEBUG=INFO\n"
    "  --root DIR          read DIR/proc, DIR/sys, DIR/dev/shm: a copy of another machine's files\n"
    "\n"
    "net: bandwidth and latency between every two nodes. Pairs are measured one after the other.\n"
    "Of a run: the server tells the nodes. `--shell ssh` starts `dpt-doctor net --listen` on each\n"
    "and ends it afterwards; else start it on each with the port of --port. Without a run: start "
    "it\n"
    "on each node, then `dpt-doctor net --peers …` anywhere with all of them. A node that listens\n"
    "has no keys: any process that reaches its port can make it measure.\n"
    "  --rdzv-endpoint HOST:PORT  the rendezvous server of the run\n"
    "  --run NAME          the run (default: the server's only one; also for hang)\n"
    "  --key-dir DIR       this machine's keys (docs/security.md)\n"
    "  --shell COMMAND     runs COMMAND ADDRESS dpt-doctor … for each node, with this program's "
    "path\n"
    "  --port PORT         without --shell: where the nodes listen (29600)\n"
    "  --listen PORT       0: any free port\n"
    "  --bind ADDRESS      a numeric address (default: every address)\n"
    "  --for S             end after this time (600)\n"
    "  --until-eof         and when the standard input ends\n"
    "  --port-file FILE    write the port to FILE once it listens\n"
    "  --peers LIST        2 to 64 nodes\n"
    "  --ms MS             time for one direction of a pair (1000)\n"
    "  --mib MIB           and at most this much data (4096)\n"
    "  --timeout-ms MS     longest wait for an answer (3000; also for hang)\n"
    "\n"
    "hang: which rank of a run is behind, and the collective in which the others wait.\n"
    "  --server HOST:PORT  the rendezvous server of the run\n"
    "  --seconds S         watch the run for this time (3)\n"
    "  --log DIR           the log.dir of a run without a server: how old its newest step is\n"
    "\n"
    "  --json FILE         also write the result as JSON; -: to the standard output alone\n"
    "Exit codes: 0 done, 1 a node does not answer, a link failed, the run hangs, or a file cannot\n"
    "be read; 2 usage.\n";

void dpt_doctor_args_help(FILE *out)
{
    (void)fputs(usage, out);
}

/* Cuts a list at its commas. */
static enum dpt_status set_peers(void *ctx, const char *value, struct dpt_err *err)
{
    struct dpt_doctor_args *a = ctx;
    if (strlen(value) >= sizeof a->text)
        return dpt_fail(err, DPT_EINVAL, "longer than %zu characters", sizeof a->text - 1);
    (void)snprintf(a->text, sizeof a->text, "%s", value);
    a->n_peers = 0;
    for (char *at = a->text; at;) {
        char *comma = strchr(at, ',');
        if (comma)
            *comma = '\0';
        if (a->n_peers == DPT_MATRIX_NODES_MAX)
            return dpt_fail(err, DPT_EINVAL, "more than %d nodes", DPT_MATRIX_NODES_MAX);
        if (strlen(at) >= DPT_MATRIX_NAME_BYTES)
            return dpt_fail(err, DPT_EINVAL, "'%.60s…' is longer than %d characters", at,
                            DPT_MATRIX_NAME_BYTES - 1);
        DPT_TRY(dpt_parse_endpoint(at, err));
        for (int i = 0; i < a->n_peers; i++)
            if (strcmp(a->peer[i], at) == 0)
                return dpt_fail(err, DPT_EINVAL, "'%s' is listed twice", at);
        a->peer[a->n_peers++] = at;
        at = comma ? comma + 1 : NULL;
    }
    return a->n_peers >= 2 ? DPT_OK : dpt_fail(err, DPT_EINVAL, "expected at least two nodes");
}

static enum dpt_status set_endpoint(void *ctx, const char *value, struct dpt_err *err)
{
    DPT_TRY(dpt_parse_endpoint(value, err));
    *(const char **)ctx = value;
    return DPT_OK;
}

/* The options of a command: those with its bit. */
enum { MACHINE = 1, NET = 2, HANG = 4 };

static enum dpt_status read_options(int argc, char **argv, int at, int command,
                                    struct dpt_doctor_args *a, struct dpt_err *err)
{
    const struct {
        int commands;
        struct dpt_option option;
    } all[] = {
        {MACHINE | NET | HANG, {"--help", .flag = &a->help}},
        {MACHINE | NET | HANG, {"--version", .flag = &a->version}},
        {MACHINE | NET | HANG, {"--json", "FILE", .text = &a->json}},
        {MACHINE | HANG, {"--server", "HOST:PORT", .set = set_endpoint, .ctx = &a->server}},
        {MACHINE, {"--interface", "NAME", .text = &a->interface}},
        {MACHINE, {"--nccl-log", "FILE", .text = &a->nccl_log}},
        {MACHINE, {"--root", "DIR", .text = &a->root}},
        {NET, {"--listen", "PORT", .number = &a->port, .min = 0, .max = 65535}},
        {NET, {"--bind", "ADDRESS", .text = &a->bind_to}},
        {NET, {"--for", "S", .number = &a->listen_s, .min = 1, .max = LISTEN_S_MAX}},
        {NET, {"--port-file", "FILE", .text = &a->port_file}},
        {NET, {"--until-eof", .flag = &a->until_eof}},
        {NET, {"--peers", "LIST", .set = set_peers, .ctx = a}},
        {NET, {"--rdzv-endpoint", "HOST:PORT", .set = set_endpoint, .ctx = &a->endpoint}},
        {NET, {"--key-dir", "DIR", .text = &a->key_dir}},
        {NET, {"--shell", "COMMAND", .text = &a->shell}},
        {NET, {"--port", "PORT", .number = &a->peer_port, .min = 1, .max = 65535}},
        {NET,
         {"--ms", "MS", .number = &a->stream_ms, .min = DPT_PROBE_STREAM_MS_MIN,
          .max = DPT_PROBE_STREAM_MS_MAX}},
        {NET, {"--mib", "MIB", .number = &a->stream_mib, .min = 1, .max = STREAM_MIB_MAX}},
        {NET | HANG,
         {"--timeout-ms", "MS", .number = &a->timeout_ms, .min = 50, .max = TIMEOUT_MS_MAX}},
        {NET | HANG, {"--run", "NAME", .text = &a->run}},
        {HANG, {"--log", "DIR", .text = &a->log}},
        {HANG, {"--seconds", "S", .number = &a->seconds, .min = 0, .max = 3600}},
    };
    enum { ALL = sizeof all / sizeof *all };
    struct dpt_option options[ALL];
    size_t n = 0;
    for (int i = 0; i < ALL; i++)
        if (all[i].commands & command)
            options[n++] = all[i].option;
    for (; at < argc && !a->help && !a->version; at++) {
        if (strncmp(argv[at], "--", 2) != 0)
            return dpt_fail(err, DPT_EINVAL, "expected an option, got '%.80s'", argv[at]);
        DPT_TRY(dpt_option_read(options, n, argc, argv, &at, err));
    }
    return DPT_OK;
}

/* Options of net that belong to another way of it. */
static enum dpt_status check_net_options(const struct dpt_doctor_args *a, struct dpt_err *err)
{
    const bool listens = a->command == DPT_DOCTOR_LISTEN, of_run = a->command == DPT_DOCTOR_RUN;
    if (!listens && (a->bind_to || a->port_file || a->until_eof))
        return dpt_fail(err, DPT_EINVAL, "--bind, --port-file and --until-eof belong to --listen");
    if (listens && a->json)
        return dpt_fail(err, DPT_EINVAL,
                        "--json belongs to --peers and --rdzv-endpoint: a node that listens has no "
                        "result");
    if (!of_run && (a->run[0] != '\0' || a->key_dir || a->shell || a->peer_port >= 0))
        return dpt_fail(err, DPT_EINVAL,
                        "--run, --key-dir, --shell and --port belong to --rdzv-endpoint");
    if (a->shell && (a->shell[0] == '\0' || a->peer_port >= 0))
        return dpt_fail(err, DPT_EINVAL, "%s",
                        a->shell[0] == '\0' ? "--shell: expected a command, such as ssh"
                                            : "--port does not go with --shell, which lets the "
                                              "nodes choose");
    return DPT_OK;
}

static enum dpt_status choose_net(struct dpt_doctor_args *a, struct dpt_err *err)
{
    const bool listens = a->port >= 0, asks = a->n_peers > 0, of_run = a->endpoint != NULL;
    if (listens + asks + of_run != 1)
        return dpt_fail(err, DPT_EINVAL,
                        "net needs --rdzv-endpoint HOST:PORT, --listen PORT or --peers LIST%s",
                        listens + asks + of_run > 0 ? ", not several" : "");
    a->command = listens ? DPT_DOCTOR_LISTEN : asks ? DPT_DOCTOR_PEERS : DPT_DOCTOR_RUN;
    DPT_TRY(check_net_options(a, err));
    if (a->peer_port < 0)
        a->peer_port = PEER_PORT;
    return DPT_OK;
}

static enum dpt_status choose_command(struct dpt_doctor_args *a, int command, struct dpt_err *err)
{
    if (command == HANG) {
        a->command = a->log ? DPT_DOCTOR_LOG : DPT_DOCTOR_HANG;
        return !a->server != !a->log
                   ? DPT_OK
                   : dpt_fail(err, DPT_EINVAL, "hang needs --server HOST:PORT or --log DIR%s",
                              a->log ? ", not both" : "");
    }
    return command == MACHINE ? DPT_OK : choose_net(a, err);
}

enum dpt_status dpt_doctor_args_read(int argc, char **argv, struct dpt_doctor_args *ret,
                                     struct dpt_err *err)
{
    *ret = (struct dpt_doctor_args){.command = DPT_DOCTOR_MACHINE,
                                    .root = "",
                                    .run = "",
                                    .port = -1,
                                    .peer_port = -1,
                                    .listen_s = LISTEN_S,
                                    .stream_ms = 1000,
                                    .stream_mib = 4096,
                                    .timeout_ms = 3000,
                                    .seconds = 3};
    int command = MACHINE, at = 1;
    if (argc > 1 && argv[1][0] != '-') {
        if (strcmp(argv[1], "net") != 0 && strcmp(argv[1], "hang") != 0)
            return dpt_fail(err, DPT_EINVAL, "expected net, hang or an option, got '%.80s'",
                            argv[1]);
        command = argv[1][0] == 'n' ? NET : HANG;
        at = 2;
    }
    DPT_TRY(read_options(argc, argv, at, command, ret, err));
    return ret->help || ret->version ? DPT_OK : choose_command(ret, command, err);
}
