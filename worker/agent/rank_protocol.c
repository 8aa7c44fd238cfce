/* The command line of a rank, frames between agent and rank, the rank's report. */
#include "worker/agent/rank_protocol.h"

#include "base/fs.h"
#include "base/log.h"
#include "base/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the command line ---- */

enum arg_kind { ARG_TEXT, ARG_INT, ARG_NUMBER, ARG_FLAG, ARG_ALLOW };

/* The arguments in the order of the command line. An empty TEXT, a NUMBER of 0 and a FLAG that is
 * false are left out. A NUMBER has 64 bits. */
static const struct arg {
    const char *key;
    enum arg_kind kind;
    size_t offset, bytes;
    int min; /* smallest value of an INT */
} table[] = {
#define ARG(name, kind, min)                                                                       \
    {                                                                                              \
#name, kind, offsetof(struct dpt_rank_start, name),                                        \
            sizeof((struct dpt_rank_start *)NULL)->name, min                                       \
    }
    ARG(node, ARG_TEXT, 0),        ARG(incarnation, ARG_NUMBER, 0),
    ARG(local_rank, ARG_INT, 0),   ARG(ranks, ARG_INT, 1),
    ARG(spawn, ARG_INT, 1),        ARG(threads, ARG_INT, 0),
    ARG(agent, ARG_INT, 1),        ARG(address, ARG_TEXT, 0),
    ARG(log_level, ARG_INT, 0),    ARG(data, ARG_TEXT, 0),
    ARG(data_stamp, ARG_TEXT, 0),  ARG(val, ARG_TEXT, 0),
    ARG(val_stamp, ARG_TEXT, 0),   ARG(allow, ARG_ALLOW, 0),
    ARG(allow_fresh, ARG_FLAG, 0), ARG(claim_number, ARG_NUMBER, 0),
    ARG(claim_token, ARG_TEXT, 0),
#undef ARG
};
enum { TABLE_COUNT = sizeof table / sizeof table[0] };
_Static_assert(sizeof(pid_t) == sizeof(int), "agent is an ARG_INT");

static DPT_PRINTF(3, 4) void add_arg(struct dpt_rank_args *args, int *n, const char *fmt, ...)
{
    DPT_ASSERT(*n < DPT_RANK_ARGS_MAX);
    va_list ap;
    va_start(ap, fmt);
    const int length = vsnprintf(args->text[*n], sizeof args->text[*n], fmt, ap);
    va_end(ap);
    DPT_ASSERT(length >= 0 && (size_t)length < sizeof args->text[*n]);
    args->argv[*n] = args->text[*n];
    args->argv[++*n] = NULL;
}

static void encode_arg(const struct arg *arg, const struct dpt_rank_start *start,
                       struct dpt_rank_args *ret, int *n)
{
    const void *field = (const char *)start + arg->offset;
    switch (arg->kind) {
    case ARG_TEXT:
        if (*(const char *)field != '\0')
            add_arg(ret, n, "%s=%s", arg->key, (const char *)field);
        break;
    case ARG_INT:
        add_arg(ret, n, "%s=%d", arg->key, *(const int *)field);
        break;
    case ARG_NUMBER:
        if (*(const uint64_t *)field > 0)
            add_arg(ret, n, "%s=%" PRIu64, arg->key, *(const uint64_t *)field);
        break;
    case ARG_FLAG:
        if (*(const bool *)field)
            add_arg(ret, n, "%s=1", arg->key);
        break;
    case ARG_ALLOW:
        for (int i = 0; i < start->n_allow; i++)
            add_arg(ret, n, "%s=%s", arg->key, start->allow[i]);
        break;
    }
}

void dpt_rank_start_encode(const struct dpt_rank_start *start, const char *program,
                           struct dpt_rank_args *ret)
{
    int n = 0;
    add_arg(ret, &n, "%s", program);
    add_arg(ret, &n, "--rank");
    for (int i = 0; i < TABLE_COUNT; i++)
        encode_arg(&table[i], start, ret, &n);
}

/* Copies `value`. False: it is empty or too long. */
static bool copy_value(const char *value, char *ret, size_t bytes)
{
    const size_t length = strlen(value);
    if (length == 0 || length >= bytes)
        return false;
    memcpy(ret, value, length + 1);
    return true;
}

/* Stores the value in its field. False: the value is out of range. */
static bool decode_arg(const struct arg *arg, const char *value, struct dpt_rank_start *start)
{
    void *field = (char *)start + arg->offset;
    int64_t number;
    switch (arg->kind) {
    case ARG_TEXT:
        return copy_value(value, field, arg->bytes);
    case ARG_INT:
        if (dpt_parse_i64(value, arg->min, INT_MAX, &number, NULL) != DPT_OK)
            return false;
        *(int *)field = (int)number;
        return true;
    case ARG_NUMBER:
        return dpt_parse_u64(value, INT64_MAX, field, NULL) == DPT_OK;
    case ARG_FLAG:
        return *(bool *)field = strcmp(value, "1") == 0;
    case ARG_ALLOW:
        return start->n_allow < DPT_RANK_ALLOW_MAX &&
               copy_value(value, start->allow[start->n_allow++], sizeof start->allow[0]);
    }
    return false;
}

static bool decode_key_value(const char *text, struct dpt_rank_start *start)
{
    const size_t key_bytes = strcspn(text, "=");
    for (int i = 0; i < TABLE_COUNT && text[key_bytes] != '\0'; i++)
        if (strlen(table[i].key) == key_bytes && memcmp(table[i].key, text, key_bytes) == 0)
            return decode_arg(&table[i], text + key_bytes + 1, start);
    return false;
}

enum dpt_status dpt_rank_start_decode(int argc, char *const *argv, struct dpt_rank_start *ret,
                                      struct dpt_err *err)
{
    struct dpt_rank_start start = {.local_rank = -1, .threads = -1};
    if (argc < 2 || strcmp(argv[1], "--rank") != 0)
        return dpt_fail(err, DPT_EINVAL, "rank process without --rank");
    for (int i = 2; i < argc; i++)
        if (!decode_key_value(argv[i], &start))
            return dpt_fail(err, DPT_EINVAL, "rank process: bad argument '%s'", argv[i]);
    if (start.node[0] == '\0' || start.address[0] == '\0' || start.spawn == 0 ||
        start.threads < 0 || start.agent == 0 || start.local_rank < 0 ||
        start.local_rank >= start.ranks || start.log_level >= DPT_LOG_LEVEL_COUNT ||
        (start.data[0] == '\0') != (start.data_stamp[0] == '\0') ||
        (start.val[0] == '\0') != (start.val_stamp[0] == '\0') ||
        (start.claim_number == 0) != (start.claim_token[0] == '\0'))
        return dpt_fail(err, DPT_EINVAL,
                        "rank process: incomplete arguments; ranks are started by dpt-worker");
    *ret = start;
    return DPT_OK;
}

enum dpt_status dpt_rank_start_enter(const struct dpt_rank_start *start, struct dpt_err *err)
{
    /* PR_SET_PDEATHSIG comes first: the getppid check then notices an agent that died before the
     * call. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        return dpt_fail_errno(err, errno, "rank process: PR_SET_PDEATHSIG");
    if (getppid() != start->agent)
        return dpt_fail(err, DPT_EPEER, "rank process: the agent (pid %d) is gone",
                        (int)start->agent);
    const int ignored[] = {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGPIPE, SIGXFSZ};
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        if (signal(ignored[i], SIG_IGN) == SIG_ERR)
            return dpt_fail_errno(err, errno, "rank process: ignore signal %d", ignored[i]);
    const int inherited[] = {DPT_RANK_FD_LINK, DPT_RANK_FD_CONFIG, DPT_RANK_FD_STEP};
    for (size_t i = 0; i < sizeof inherited / sizeof inherited[0]; i++)
        if (fcntl(inherited[i], F_SETFD, FD_CLOEXEC) != 0)
            return dpt_fail_errno(err, errno,
                                  "rank process: descriptor %d (ranks are started by dpt-worker)",
                                  inherited[i]);
    return DPT_OK;
}

enum dpt_status dpt_rank_start_config(int config_fd, struct dpt_config *ret, struct dpt_err *err)
{
    struct stat st;
    if (fstat(config_fd, &st) != 0)
        return dpt_fail_errno(err, errno, "inherited config (descriptor %d)", config_fd);
    if (st.st_size <= 0 || st.st_size > DPT_CONFIG_TEXT_BYTES_MAX)
        return dpt_fail(err, DPT_EINVAL, "inherited config is %lld bytes long",
                        (long long)st.st_size);
    size_t bytes = (size_t)st.st_size;
    char *text = malloc(bytes + 1);
    if (text == NULL)
        return dpt_fail_nomem(err, "inherited config of %zu bytes", bytes);
    text[bytes] = '\0';
    enum dpt_status status = dpt_fs_pread_all(config_fd, text, bytes, 0, "inherited config", err);
    if (status == DPT_OK)
        status = dpt_config_load_text(text, "config of the node agent", NULL, 0, ret, err);
    free(text);
    if (status == DPT_OK)
        close(config_fd);
    return status;
}

/* ---- frames ---- */

static const char link_ended[] = "the other end of the link between agent and rank has ended";

enum dpt_status dpt_rank_link_pair(int ret_fds[2], struct dpt_err *err)
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0)
        return dpt_fail_errno(err, errno, "socket pair for a rank");
    /* The kernel doubles the number and caps it at twice net.core.wmem_max (212,992 by default),
       which still holds one largest frame with its overhead. */
    int bytes = 2 * DPT_RANK_FRAME_BYTES_MAX;
    for (int i = 0; i < 2; i++)
        if (setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) != 0) {
            int saved = errno;
            close(fds[0]);
            close(fds[1]);
            return dpt_fail_errno(err, saved, "socket pair for a rank: SO_SNDBUF");
        }
    memcpy(ret_fds, fds, sizeof fds);
    return DPT_OK;
}

enum dpt_status dpt_rank_link_send(int fd, const void *frame, size_t bytes, struct dpt_err *err)
{
    if (bytes == 0 || bytes > DPT_RANK_FRAME_BYTES_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "frame of %zu bytes between agent and rank (1 … %d)",
                        bytes, DPT_RANK_FRAME_BYTES_MAX);
    ssize_t sent;
    do
        sent = send(fd, frame, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent >= 0)
        return DPT_OK; /* SEQPACKET sends a frame whole or not at all */
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS)
        return DPT_INPROGRESS;
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
        return dpt_fail(err, DPT_EPEER, link_ended);
    return dpt_fail_errno(err, errno, "send between agent and rank");
}

enum dpt_status dpt_rank_link_recv(int fd, int timeout_ms, void *buf, size_t *ret_bytes,
                                   struct dpt_err *err)
{
    if (timeout_ms != 0) {
        struct pollfd item = {.fd = fd, .events = POLLIN};
        int n = poll(&item, 1, timeout_ms);
        if (n < 0 && errno != EINTR)
            return dpt_fail_errno(err, errno, "poll between agent and rank");
        if (n <= 0)
            return DPT_INPROGRESS;
    }
    /* 0 bytes are the end of file, since no side sends an empty frame. With MSG_TRUNC the return
       value is the frame's true length. */
    ssize_t got = recv(fd, buf, DPT_RANK_FRAME_BYTES_MAX, MSG_DONTWAIT | MSG_TRUNC);
    /* If an end closes while it has unread frames, the kernel resets the connection. It reports the
     * reset once, before the frames that the closed end had sent. These frames still arrive. */
    if (got < 0 && errno == ECONNRESET)
        got = recv(fd, buf, DPT_RANK_FRAME_BYTES_MAX, MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
            return DPT_INPROGRESS;
        if (errno != ECONNRESET)
            return dpt_fail_errno(err, errno, "receive between agent and rank");
    }
    if (got <= 0)
        return dpt_fail(err, DPT_EPEER, link_ended);
    if (got > DPT_RANK_FRAME_BYTES_MAX)
        return dpt_fail(err, DPT_EPROTO, "frame of %zd bytes between agent and rank (at most %d)",
                        got, DPT_RANK_FRAME_BYTES_MAX);
    *ret_bytes = (size_t)got;
    return DPT_OK;
}

/* ---- the rank's report ---- */

/* Points the strings, lists and bytes of the messages to the arrays of `report`. */
static void point_into_report(struct dpt_report *report, size_t outcome_bytes)
{
    Dpt__RankState *state = &report->state;
    report->message.state = state;
    report->message.steps = report->step_list;
    state->shm_addr = report->shm_addr;
    state->tcp_addr = report->tcp_addr;
    state->text = report->text;
    state->stacks = report->stacks;
    state->unsaved_why = report->unsaved_why;
    state->weights_hash = report->weights_hash;
    state->shards = report->shard_list;
    state->outcome = (ProtobufCBinaryData){outcome_bytes, report->outcome};
}

void dpt_report_init(struct dpt_report *report)
{
    dpt__rank_to_agent__init(&report->message);
    dpt__rank_state__init(&report->state);
    dpt__run_summary__init(&report->summary);
    dpt__rank_activity__init(&report->activity);
    for (int i = 0; i < DPT_PROTO_SHARDS_MAX; i++)
        report->shard_list[i] = &report->shards[i];
    for (int i = 0; i < DPT_PROTO_STEPS_MAX; i++)
        report->step_list[i] = &report->steps[i];
    Dpt__RankState *state = &report->state;
    state->step_applied = state->outcome_step = state->checkpoint_step = state->grant_step = -1;
    state->suspect = state->plan_rank = -1;
    report->shm_addr[0] = report->tcp_addr[0] = report->text[0] = report->stacks[0] = '\0';
    report->weights_hash[0] = report->unsaved_why[0] = '\0';
    point_into_report(report, 0);
}

/* Drops fields that only a newer version knows: they are in the sender's memory. */
static void drop_unknown_fields(ProtobufCMessage *message)
{
    message->n_unknown_fields = 0;
    message->unknown_fields = NULL;
}

void dpt_report_copy(struct dpt_report *report, const Dpt__RankToAgent *from)
{
    const Dpt__RankState *state = from->state;
    const size_t n_steps = from->n_steps > 0 ? from->n_steps : report->message.n_steps;
    const size_t outcome_bytes =
        state->phase == DPT__RANK_PHASE__RANK_QUIESCED ? state->outcome.len : 0;
    DPT_ASSERT(n_steps <= DPT_PROTO_STEPS_MAX && state->n_shards <= DPT_PROTO_SHARDS_MAX &&
               outcome_bytes <= sizeof report->outcome);
    for (size_t i = 0; i < from->n_steps; i++) {
        report->steps[i] = *from->steps[i];
        drop_unknown_fields(&report->steps[i].base);
    }
    for (size_t i = 0; i < state->n_shards; i++) {
        report->shards[i] = *state->shards[i];
        drop_unknown_fields(&report->shards[i].base);
    }
    if (outcome_bytes > 0)
        memcpy(report->outcome, state->outcome.data, outcome_bytes);
    (void)snprintf(report->shm_addr, sizeof report->shm_addr, "%s", state->shm_addr);
    (void)snprintf(report->tcp_addr, sizeof report->tcp_addr, "%s", state->tcp_addr);
    (void)snprintf(report->text, sizeof report->text, "%s", state->text);
    (void)snprintf(report->stacks, sizeof report->stacks, "%s", state->stacks);
    (void)snprintf(report->weights_hash, sizeof report->weights_hash, "%s", state->weights_hash);
    (void)snprintf(report->unsaved_why, sizeof report->unsaved_why, "%s", state->unsaved_why);
    report->state = *state;
    drop_unknown_fields(&report->state.base);
    if (state->activity != NULL) {
        report->activity = *state->activity;
        drop_unknown_fields(&report->activity.base);
        report->state.activity = &report->activity;
    }
    report->message = *from;
    drop_unknown_fields(&report->message.base);
    report->message.n_steps = n_steps;
    if (from->summary != NULL) {
        report->summary = *from->summary;
        drop_unknown_fields(&report->summary.base);
        report->summary.weights_hash = report->weights_hash;
        report->message.summary = &report->summary;
    }
    point_into_report(report, outcome_bytes);
}
