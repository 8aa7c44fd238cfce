/* Traces the threads of a rank from one system call to the next. */
#include "worker/bench/bench_recover_catch.h"

#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { THREADS_MAX = 64, PIECES_MAX = 16, CATCH_MS = 2000, END_MS = 5000 };

static struct {
    pid_t threads[THREADS_MAX];
    int n, said_to; /* said_to: the socket of the last commit message; -1: none yet */
} caught;

static bool trace_threads(pid_t pid)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    if (!tasks)
        return false;
    caught.n = 0;
    caught.said_to = -1;
    for (struct dirent *e; (e = readdir(tasks)) && caught.n < THREADS_MAX;) {
        const pid_t thread = (pid_t)strtol(e->d_name, NULL, 10);
        if (thread <= 0 || ptrace(PTRACE_SEIZE, thread, NULL, PTRACE_O_TRACESYSGOOD) != 0)
            continue;
        caught.threads[caught.n++] = thread;
        (void)ptrace(PTRACE_INTERRUPT, thread, NULL, NULL);
    }
    (void)closedir(tasks);
    return caught.n > 0;
}

/* The length of the message that the thread passes to sendmsg. 0: the message cannot be read, or
 * has more than PIECES_MAX parts. */
static size_t message_bytes(pid_t thread, uint64_t address)
{
    struct msghdr msg;
    struct iovec pieces[PIECES_MAX];
    struct iovec to = {&msg, sizeof msg}, from = {(void *)(uintptr_t)address, sizeof msg};
    if (process_vm_readv(thread, &to, 1, &from, 1, 0) != (ssize_t)sizeof msg ||
        msg.msg_iovlen > PIECES_MAX)
        return 0;
    const size_t list_bytes = msg.msg_iovlen * sizeof *pieces;
    to = (struct iovec){pieces, list_bytes};
    from = (struct iovec){msg.msg_iov, list_bytes};
    if (process_vm_readv(thread, &to, 1, &from, 1, 0) != (ssize_t)list_bytes)
        return 0;
    size_t bytes = 0;
    for (size_t i = 0; i < msg.msg_iovlen; i++)
        bytes += pieces[i].iov_len;
    return bytes;
}

/* True: the stopped thread is about to send a message of `bytes` bytes, and the message of this
 * length before it went to another socket. */
static bool is_second_word(pid_t thread, size_t bytes)
{
    struct __ptrace_syscall_info call;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, (void *)sizeof call, &call) <= 0 ||
        call.op != PTRACE_SYSCALL_INFO_ENTRY || call.entry.nr != SYS_sendmsg ||
        message_bytes(thread, call.entry.args[1]) != bytes)
        return false;
    const int to = (int)call.entry.args[0];
    const bool second = caught.said_to >= 0 && caught.said_to != to;
    caught.said_to = to;
    return second;
}

/* True: the thread has stopped at the second message, and stays stopped. False: the thread runs, or
 * continues to its next system call. */
static bool stopped_at_second(pid_t thread, size_t bytes)
{
    int status = 0;
    if (waitpid(thread, &status, __WALL | WNOHANG) != thread || !WIFSTOPPED(status))
        return false;
    const bool at_call = WSTOPSIG(status) == (SIGTRAP | 0x80);
    if (at_call && is_second_word(thread, bytes))
        return true;
    const bool of_tracing = at_call || status >> 16 != 0;
    (void)ptrace(PTRACE_SYSCALL, thread, NULL,
                 (void *)(intptr_t)(of_tracing ? 0 : WSTOPSIG(status)));
    return false;
}

bool recover_catch(pid_t pid, size_t bytes)
{
    if (!trace_threads(pid))
        return false;
    const int64_t until_ms = dpt_now_ms() + CATCH_MS;
    while (dpt_now_ms() < until_ms)
        for (int i = 0; i < caught.n; i++)
            if (stopped_at_second(caught.threads[i], bytes))
                return true;
    return false;
}

void recover_catch_end(void)
{
    const int64_t until_ms = dpt_now_ms() + END_MS;
    for (int left = caught.n; left > 0 && dpt_now_ms() < until_ms;) {
        left = 0;
        for (int i = 0; i < caught.n; i++) {
            int status = 0;
            const pid_t got = waitpid(caught.threads[i], &status, __WALL | WNOHANG);
            left += !(got < 0 && errno == ECHILD) &&
                    !(got > 0 && (WIFEXITED(status) || WIFSIGNALED(status)));
        }
    }
    caught.n = 0;
}
