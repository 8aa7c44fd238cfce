/* Listeners on other machines (remote_listener.h). */
#include "worker/doctor/remote_listener.h"

#include "base/clock.h"
#include "worker/doctor/net.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SCRIPT_BYTES = 1024, NUMBER_BYTES = 24 };

/* ---- the start ---- */

/* The path of this program, which is expected on the other machine, too. */
static enum dpt_status find_own_path(char ret[PATH_MAX], struct dpt_err *err)
{
    const ssize_t n = readlink("/proc/self/exe", ret, PATH_MAX - 1);
    if (n < 0)
        return dpt_fail_errno(err, errno, "find the path of dpt-doctor");
    ret[n] = '\0';
    return DPT_OK;
}

/* Starts sh with these arguments. *fds: its ends of the two pipes. */
static enum dpt_status spawn_shell(char *const *argv, int in, int out, pid_t *ret_pid,
                                   struct dpt_err *err)
{
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0)
        return dpt_fail_errno(err, error, "start '%s'", argv[0]);
    error = posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    if (error == 0)
        error = posix_spawn(ret_pid, "/bin/sh", &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    return error == 0 ? DPT_OK : dpt_fail_errno(err, error, "start '/bin/sh'");
}

static enum dpt_status start_with_pipes(char *const *argv, struct dpt_remote *ret,
                                        struct dpt_err *err)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0)
        return dpt_fail_errno(err, errno, "open a pipe");
    if (pipe2(out, O_CLOEXEC) != 0) {
        const int error = errno;
        (void)close(in[0]);
        (void)close(in[1]);
        return dpt_fail_errno(err, error, "open a pipe");
    }
    const enum dpt_status status = spawn_shell(argv, in[0], out[1], &ret->pid, err);
    (void)close(in[0]);
    (void)close(out[1]);
    if (status == DPT_OK) {
        ret->in = in[1];
        ret->out = out[0];
        return DPT_OK;
    }
    (void)close(in[1]);
    (void)close(out[0]);
    return status;
}

static enum dpt_status start_command(const char *shell, const char *address, int64_t for_s,
                                     struct dpt_remote *ret, struct dpt_err *err)
{
    char program[PATH_MAX], script[SCRIPT_BYTES], seconds[NUMBER_BYTES];
    if (snprintf(script, sizeof script, "exec %s \"$@\"", shell) >= (int)sizeof script)
        return dpt_fail(err, DPT_EINVAL, "--shell: longer than %d characters", SCRIPT_BYTES - 16);
    DPT_TRY(find_own_path(program, err));
    (void)snprintf(seconds, sizeof seconds, "%" PRId64, for_s);
    const char *const argv[] = {"sh",    "-c",    script,     "dpt-doctor",  address,
                                program, "net",   "--listen", "0",           "--bind",
                                address, "--for", seconds,    "--until-eof", NULL};
    return start_with_pipes((char *const *)argv, ret, err);
}

void dpt_remote_start(const char *shell, const char *address, int64_t for_s, struct dpt_remote *ret)
{
    struct dpt_err err;
    *ret = (struct dpt_remote){.in = -1, .out = -1};
    if (start_command(shell, address, for_s, ret, &err) == DPT_OK)
        return;
    ret->pid = 0;
    (void)snprintf(ret->why, sizeof ret->why, "%.*s", (int)sizeof ret->why - 1, err.text);
}

/* ---- its port ---- */

/* Reads the port from the lines so far; others are dropped. A line that is too long is dropped in
 * parts. */
static void take_lines(struct dpt_remote *remote)
{
    static const char begin[] = DPT_NET_LISTENS;
    char *end;
    remote->said[remote->n_said] = '\0';
    while (remote->port == 0 && (end = strchr(remote->said, '\n')) != NULL) {
        int port = 0;
        *end = '\0';
        if (strncmp(remote->said, begin, sizeof begin - 1) == 0 &&
            sscanf(remote->said + sizeof begin - 1, "%5d", &port) == 1 && port > 0 &&
            port <= UINT16_MAX)
            remote->port = port;
        remote->n_said -= (size_t)(end + 1 - remote->said);
        memmove(remote->said, end + 1, remote->n_said + 1);
    }
    if (remote->n_said == sizeof remote->said - 1)
        remote->n_said = 0;
}

static void read_output(struct dpt_remote *remote)
{
    const size_t room = sizeof remote->said - 1 - remote->n_said;
    const ssize_t n = read(remote->out, remote->said + remote->n_said, room);
    if (n > 0) {
        remote->n_said += (size_t)n;
        take_lines(remote);
    } else if (n == 0 || errno != EINTR) {
        (void)snprintf(remote->why, sizeof remote->why,
                       "the command of --shell ended before dpt-doctor listened there (its "
                       "messages are on the standard error)");
    }
}

static bool is_awaited(const struct dpt_remote *remote)
{
    return remote->pid > 0 && remote->port == 0 && remote->why[0] == '\0';
}

/* Waits once for output of those that are awaited. False: none is, or the time is over. */
static bool await_output(struct dpt_remote *remotes, int n, int64_t deadline_ms)
{
    struct pollfd items[DPT_MATRIX_NODES_MAX];
    int at[DPT_MATRIX_NODES_MAX], waiting = 0;
    const int64_t left_ms = deadline_ms - dpt_now_ms();
    for (int i = 0; i < n; i++)
        if (is_awaited(&remotes[i])) {
            items[waiting] = (struct pollfd){.fd = remotes[i].out, .events = POLLIN};
            at[waiting++] = i;
        }
    if (waiting == 0 || left_ms <= 0)
        return false;
    if (poll(items, (nfds_t)waiting, left_ms > INT_MAX ? INT_MAX : (int)left_ms) < 0)
        return errno == EINTR;
    for (int k = 0; k < waiting; k++)
        if (items[k].revents != 0)
            read_output(&remotes[at[k]]);
    return true;
}

void dpt_remote_await(struct dpt_remote *remotes, int n, int64_t deadline_ms)
{
    while (await_output(remotes, n, deadline_ms)) /* ends: the deadline does not move */
        ;
    for (int i = 0; i < n; i++)
        if (is_awaited(&remotes[i]))
            (void)snprintf(remotes[i].why, sizeof remotes[i].why,
                           "the command of --shell started no dpt-doctor there in time");
}

/* ---- the end ---- */

/* Waits until the command has closed its output, which it does at its end. */
static void await_closed_output(const struct dpt_remote *remote, int64_t deadline_ms)
{
    char dropped[DPT_REMOTE_LINE_BYTES];
    for (int64_t left_ms; (left_ms = deadline_ms - dpt_now_ms()) > 0;) {
        struct pollfd item = {.fd = remote->out, .events = POLLIN};
        if (poll(&item, 1, (int)left_ms) > 0 && read(remote->out, dropped, sizeof dropped) <= 0)
            return;
    }
}

void dpt_remote_end(struct dpt_remote *remotes, int n)
{
    const int64_t deadline_ms = dpt_now_ms() + DPT_REMOTE_END_MS;
    for (int i = 0; i < n; i++)
        if (remotes[i].pid > 0)
            (void)close(remotes[i].in);
    for (int i = 0; i < n; i++) {
        if (remotes[i].pid <= 0)
            continue;
        await_closed_output(&remotes[i], deadline_ms);
        (void)close(remotes[i].out);
        (void)kill(remotes[i].pid, SIGKILL); /* its listener has ended or does not end */
        while (waitpid(remotes[i].pid, NULL, 0) < 0)
            DPT_ASSERT(errno == EINTR);
        remotes[i].pid = 0;
    }
}
