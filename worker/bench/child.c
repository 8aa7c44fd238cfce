/* A part of a bench in a process of its own (child.h). The child answers with one JSON object:
 * {"result": …} or {"status": NUMBER, "text": TEXT}. Both processes are of one build, so the number
 * of a status means the same to both. */
#include "worker/bench/child.h"

#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* The kernel ends the process with the highest score first: the child, not the bench. A kernel
 * without the file decides by size, and the child is the larger process. */
static void be_ended_first(void)
{
    static const char highest[] = "1000";
    const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    const ssize_t written = write(fd, highest, sizeof highest - 1);
    (void)written;
    (void)close(fd);
}

/* A text may have a path, and a path may be invalid UTF-8, which JSON does not allow. */
static json_t *failure_json(const struct dpt_err *err)
{
    char text[DPT_ERR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", err->text);
    json_t *string = json_string(text);
    for (char *at = text; !string && *at; at++)
        *at = (char)((unsigned char)*at < 0x80 ? *at : '?');
    return json_pack("{s:i, s:o}", "status", (int)err->status, "text",
                     string ? string : json_string(text));
}

static int answer(dpt_bench_part part, const void *ctx, int fd)
{
    json_t *result = NULL;
    struct dpt_err err = {.status = DPT_OK};
    json_t *object = part(ctx, &result, &err) == DPT_OK
                         ? json_pack("{s:o}", "result", result ? result : json_null())
                         : failure_json(&err);
    const bool sent = object && json_dumpfd(object, fd, JSON_COMPACT) == 0;
    json_decref(object);
    (void)fflush(stdout);
    return sent ? 0 : 1;
}

/* The error of a child that died of SIGKILL. `kills`: dpt_memory_oom_kills before its start. The
 * kernel counts an end for lack of memory before it sends the signal. */
static enum dpt_status judge_kill(int64_t kills, struct dpt_err *err)
{
    const int64_t now = dpt_memory_oom_kills("");
    if (now > kills)
        return dpt_fail(err, DPT_ENOMEM,
                        "the kernel killed the process (signal 9), because the memory of its "
                        "control group or of the machine was used up");
    if (now >= 0)
        return dpt_fail(err, DPT_EABORTED,
                        "the process was killed (signal 9), but not for lack of memory: the "
                        "kernel's counter of such ends (oom_kill) did not grow");
    return dpt_fail(err, DPT_ENOMEM,
                    "the process was killed (signal 9), as the kernel does when the memory of the "
                    "machine or of a control group is used up; it does not count such ends here");
}

/* The error that the child's answer tells; `object` is NULL if there is no whole answer. `kills`:
 * judge_kill. */
static enum dpt_status read_answer(const json_t *object, int exit_status, int64_t kills,
                                   json_t **ret, struct dpt_err *err)
{
    json_t *result = json_object_get(object, "result");
    if (result) {
        *ret = json_is_null(result) ? NULL : json_incref(result);
        return DPT_OK;
    }
    if (object)
        return dpt_fail(err, (enum dpt_status)json_integer_value(json_object_get(object, "status")),
                        "%s", json_string_value(json_object_get(object, "text")));
    if (WIFSIGNALED(exit_status) && WTERMSIG(exit_status) == SIGKILL)
        return judge_kill(kills, err);
    if (WIFSIGNALED(exit_status))
        return dpt_fail(err, DPT_EABORTED, "the process died of signal %d", WTERMSIG(exit_status));
    return dpt_fail(err, DPT_EABORTED, "the process ended with code %d and no answer",
                    WEXITSTATUS(exit_status));
}

enum dpt_status dpt_bench_in_child(dpt_bench_part part, const void *ctx, json_t **ret,
                                   struct dpt_err *err)
{
    int fds[2], exit_status = 0;
    if (pipe2(fds, O_CLOEXEC) != 0)
        return dpt_fail_errno(err, errno, "open a pipe");
    (void)fflush(stdout);
    const int64_t kills = dpt_memory_oom_kills("");
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(fds[0]);
        be_ended_first();
        _exit(getppid() == parent ? answer(part, ctx, fds[1]) : 1);
    }
    const int saved_errno = errno;
    (void)close(fds[1]);
    if (pid < 0) {
        (void)close(fds[0]);
        return dpt_fail_errno(err, saved_errno, "start a process");
    }
    json_t *object = json_loadfd(fds[0], 0, NULL);
    (void)close(fds[0]);
    while (waitpid(pid, &exit_status, 0) < 0)
        DPT_ASSERT(errno == EINTR);
    const enum dpt_status status = read_answer(object, exit_status, kills, ret, err);
    json_decref(object);
    return status;
}

bool dpt_bench_is_oom(const struct dpt_err *err)
{
    return err->status == DPT_ENOMEM ||
           (err->status == DPT_EREFUSED && strstr(err->text, "memory") != NULL);
}
