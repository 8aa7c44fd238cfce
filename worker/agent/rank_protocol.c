/* Command line, descriptors and frames between agent and rank. */
#include "worker/agent/rank_protocol.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static void add_arg(struct dpt_rank_args *args, int *n, const char *key, const char *value)
{
    DPT_ASSERT(*n < DPT_RANK_ARGS_MAX);
    int length = snprintf(args->text[*n], sizeof args->text[*n], "%s%s", key, value);
    DPT_ASSERT(length >= 0 && (size_t)length < sizeof args->text[*n]);
    args->argv[*n] = args->text[*n];
    args->argv[++*n] = NULL;
}

static void add_number(struct dpt_rank_args *args, int *n, const char *key, uint64_t value)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%" PRIu64, value);
    add_arg(args, n, key, text);
}

void dpt_rank_start_encode(const struct dpt_rank_start *start, const char *program,
                           struct dpt_rank_args *ret)
{
    int n = 0;
    add_arg(ret, &n, "", program);
    add_arg(ret, &n, "", "--rank");
    add_arg(ret, &n, "node=", start->node);
    add_number(ret, &n, "incarnation=", start->incarnation);
    add_number(ret, &n, "local_rank=", (uint64_t)start->local_rank);
    add_number(ret, &n, "ranks=", (uint64_t)start->ranks);
    add_number(ret, &n, "spawn=", (uint64_t)start->spawn);
    add_number(ret, &n, "threads=", (uint64_t)start->threads);
    add_number(ret, &n, "agent=", (uint64_t)start->agent);
    add_arg(ret, &n, "address=", start->address);
    add_number(ret, &n, "log_level=", (uint64_t)start->log_level);
    if (start->data[0] != '\0') {
        add_arg(ret, &n, "data=", start->data);
        add_arg(ret, &n, "data_stamp=", start->data_stamp);
    }
    if (start->val[0] != '\0') {
        add_arg(ret, &n, "val=", start->val);
        add_arg(ret, &n, "val_stamp=", start->val_stamp);
    }
    for (int i = 0; i < start->n_allow; i++)
        add_arg(ret, &n, "allow=", start->allow[i]);
    if (start->allow_fresh)
        add_arg(ret, &n, "allow_fresh=", "1");
    if (start->claim_number > 0) {
        add_number(ret, &n, "claim_number=", (uint64_t)start->claim_number);
        add_arg(ret, &n, "claim_token=", start->claim_token);
    }
}

static bool parse_text(const char *value, char *ret, size_t bytes)
{
    size_t length = strlen(value);
    if (length == 0 || length >= bytes)
        return false;
    memcpy(ret, value, length + 1);
    return true;
}

static bool parse_int(const char *value, long least, long most, int *ret)
{
    char *end;
    errno = 0;
    long number = strtol(value, &end, 10);
    if (errno != 0 || end == value || *end != '\0' || number < least || number > most)
        return false;
    *ret = (int)number;
    return true;
}

static bool parse_u64(const char *value, uint64_t *ret)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    if (errno != 0 || end == value || *end != '\0' || *value == '-')
        return false;
    *ret = number;
    return true;
}

static bool parse_number(const char *value, int64_t *ret)
{
    uint64_t number;
    if (!parse_u64(value, &number) || number == 0 || number > INT64_MAX)
        return false;
    *ret = (int64_t)number;
    return true;
}

/* Takes one key=value; false when the key is unknown or the value out of range. */
static bool decode_arg(const char *key, size_t key_bytes, const char *value,
                       struct dpt_rank_start *start)
{
#define IS(name) (key_bytes == sizeof(name) - 1 && memcmp(key, (name), key_bytes) == 0)
    if (IS("node"))
        return parse_text(value, start->node, sizeof start->node);
    if (IS("incarnation"))
        return parse_u64(value, &start->incarnation);
    if (IS("local_rank"))
        return parse_int(value, 0, INT_MAX, &start->local_rank);
    if (IS("ranks"))
        return parse_int(value, 1, INT_MAX, &start->ranks);
    if (IS("spawn"))
        return parse_int(value, 1, INT_MAX, &start->spawn);
    if (IS("threads"))
        return parse_int(value, 0, INT_MAX, &start->threads);
    if (IS("agent"))
        return parse_int(value, 1, INT_MAX, &start->agent);
    if (IS("address"))
        return parse_text(value, start->address, sizeof start->address);
    if (IS("log_level"))
        return parse_int(value, 0, DPT_LOG_LEVEL_COUNT - 1, &start->log_level);
    if (IS("data"))
        return parse_text(value, start->data, sizeof start->data);
    if (IS("data_stamp"))
        return parse_text(value, start->data_stamp, sizeof start->data_stamp);
    if (IS("val"))
        return parse_text(value, start->val, sizeof start->val);
    if (IS("val_stamp"))
        return parse_text(value, start->val_stamp, sizeof start->val_stamp);
    if (IS("allow") && start->n_allow < DPT_RANK_ALLOW_MAX)
        return parse_text(value, start->allow[start->n_allow++], sizeof start->allow[0]);
    if (IS("claim_number"))
        return parse_number(value, &start->claim_number);
    if (IS("claim_token"))
        return parse_text(value, start->claim_token, sizeof start->claim_token);
    if (IS("allow_fresh"))
        return start->allow_fresh = strcmp(value, "1") == 0;
    return false;
#undef IS
}

enum dpt_status dpt_rank_start_decode(int argc, char *const *argv, struct dpt_rank_start *ret,
                                      struct dpt_err *err)
{
    struct dpt_rank_start start = {.local_rank = -1, .threads = -1};
    if (argc < 2 || strcmp(argv[1], "--rank") != 0)
        return dpt_fail(err, DPT_EINVAL, "rank process without --rank");
    for (int i = 2; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        if (equals == NULL || !decode_arg(argv[i], (size_t)(equals - argv[i]), equals + 1, &start))
            return dpt_fail(err, DPT_EINVAL, "rank process: bad argument '%s'", argv[i]);
    }
    if (start.node[0] == '\0' || start.address[0] == '\0' || start.spawn == 0 ||
        start.threads < 0 || start.agent == 0 || start.local_rank < 0 ||
        start.local_rank >= start.ranks ||
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
    /* The order matters: a death between the two is seen by the check. */
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
        return dpt_fail(err, DPT_ENOMEM, "inherited config of %zu bytes", bytes);
    enum dpt_status status = DPT_OK;
    ssize_t got = pread(config_fd, text, bytes, 0);
    if (got != (ssize_t)bytes)
        status = dpt_fail_errno(err, got < 0 ? errno : EIO, "read the inherited config");
    text[bytes] = '\0';
    if (status == DPT_OK)
        status = dpt_config_load(text, bytes, "config of the node agent", NULL, 0, ret, err);
    free(text);
    if (status == DPT_OK)
        close(config_fd);
    return status;
}

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
        return DPT_OK; /* SEQPACKET: whole or not at all */
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS)
        return DPT_INPROGRESS;
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
        return dpt_fail(err, DPT_EPEER, "the other end between agent and rank is gone");
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
    /* An end of file and an empty frame both read as 0 bytes; nobody sends empty frames, so 0 is
       the end. MSG_TRUNC makes the return value the frame's true length. */
    ssize_t got = recv(fd, buf, DPT_RANK_FRAME_BYTES_MAX, MSG_DONTWAIT | MSG_TRUNC);
    /* An end that closes with frames unread resets the other. The kernel reports that once, ahead
     * of the frames that the closed end had sent, which are still there: its last words. */
    if (got < 0 && errno == ECONNRESET)
        got = recv(fd, buf, DPT_RANK_FRAME_BYTES_MAX, MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
            return DPT_INPROGRESS;
        if (errno == ECONNRESET)
            return dpt_fail(err, DPT_EPEER, "the other end between agent and rank is gone");
        return dpt_fail_errno(err, errno, "receive between agent and rank");
    }
    if (got == 0)
        return dpt_fail(err, DPT_EPEER, "the other end between agent and rank is gone");
    if (got > DPT_RANK_FRAME_BYTES_MAX)
        return dpt_fail(err, DPT_EPROTO, "frame of %zd bytes between agent and rank (at most %d)",
                        got, DPT_RANK_FRAME_BYTES_MAX);
    *ret_bytes = (size_t)got;
    return DPT_OK;
}
