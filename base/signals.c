/* Signals that end a program (signals.h). */
#include "base/signals.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

static const int ends[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP};
enum { ENDS = sizeof ends / sizeof ends[0] };

/* For dpt_signals_end_at_once. They are set before its handlers. */
static const char *last_line;
static size_t last_bytes;
static int last_code;

static void leave_silently(int number)
{
    (void)number;
    _exit(last_code);
}

static void leave_with_line(int number)
{
    (void)number;
    const struct sigaction late = {.sa_handler = leave_silently};
    if (sigaction(SIGALRM, &late, NULL) == 0)
        (void)alarm(DPT_SIGNALS_LINE_S);
    const ssize_t written = write(STDOUT_FILENO, last_line, last_bytes);
    (void)written; /* the process ends in any case */
    _exit(last_code);
}

enum dpt_status dpt_signals_end_at_once(const char *line, int exit_code, struct dpt_err *err)
{
    const struct sigaction leave = {.sa_handler = leave_with_line,
                                    .sa_flags = (int)SA_RESETHAND | SA_NODEFER};
    last_line = line;
    last_bytes = strlen(line);
    last_code = exit_code;
    for (size_t i = 0; i < ENDS; i++) {
        struct sigaction now;
        if (sigaction(ends[i], NULL, &now) != 0)
            return dpt_fail_errno(err, errno, "ask how signal %d is handled", ends[i]);
        if (now.sa_handler != SIG_IGN && sigaction(ends[i], &leave, NULL) != 0)
            return dpt_fail_errno(err, errno, "handle signal %d", ends[i]);
    }
    return DPT_OK;
}

/* For dpt_signals_block_ends: the thread that reads the signals, and their former handlers. */
static pthread_t reader;
static struct sigaction before[ENDS];

static void handle_as_before(int number)
{
    for (size_t i = 0; i < ENDS; i++) {
        if (ends[i] != number || before[i].sa_handler == SIG_IGN)
            continue;
        (void)signal(number, SIG_DFL);
        if (before[i].sa_handler == leave_with_line)
            leave_with_line(number);
        (void)raise(number);
    }
}

/* The handler. It runs in a thread that does not block the signal: in a thread that started before
 * dpt_signals_block_ends, or in the reader after it has unblocked the signal. */
static void hand_over(int number)
{
    const int kept = errno;
    if (pthread_equal(pthread_self(), reader))
        handle_as_before(number);
    else
        (void)pthread_kill(reader, number);
    errno = kept;
}

static enum dpt_status hand_ends_over(const sigset_t *set, struct dpt_err *err)
{
    const struct sigaction over = {.sa_handler = hand_over, .sa_flags = SA_NODEFER | SA_RESTART};
    reader = pthread_self();
    for (size_t i = 0; i < ENDS; i++) {
        struct sigaction now;
        if (sigismember(set, ends[i]) != 1)
            continue;
        if (sigaction(ends[i], &over, &now) != 0)
            return dpt_fail_errno(err, errno, "handle signal %d", ends[i]);
        if (now.sa_handler != hand_over)
            before[i] = now;
    }
    return DPT_OK;
}

enum dpt_status dpt_signals_block_ends(sigset_t *ret, struct dpt_err *err)
{
    struct sigaction hangup;
    sigset_t set;
    if (sigaction(SIGHUP, NULL, &hangup) != 0)
        return dpt_fail_errno(err, errno, "ask how SIGHUP is handled");
    sigemptyset(&set);
    for (size_t i = 0; i < ENDS; i++) /* a blocked signal is read by a signalfd even if ignored */
        if (ends[i] != SIGHUP || hangup.sa_handler != SIG_IGN)
            sigaddset(&set, ends[i]);
    const int failed = pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (failed != 0)
        return dpt_fail_errno(err, failed, "block signals");
    DPT_TRY(hand_ends_over(&set, err));
    const int told_by_errno[] = {SIGPIPE, SIGXFSZ};
    for (size_t i = 0; i < sizeof told_by_errno / sizeof told_by_errno[0]; i++)
        if (signal(told_by_errno[i], SIG_IGN) == SIG_ERR)
            return dpt_fail_errno(err, errno, "ignore signal %d", told_by_errno[i]);
    *ret = set;
    return DPT_OK;
}
