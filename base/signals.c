/* The one list of signals that end a program. */
#include "base/signals.h"

#include <errno.h>
#include <stddef.h>

enum dpt_status dpt_signals_block_ends(sigset_t *ret, struct dpt_err *err)
{
    struct sigaction hangup;
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGQUIT);
    if (sigaction(SIGHUP, NULL, &hangup) != 0)
        return dpt_fail_errno(err, errno, "ask how SIGHUP is handled");
    if (hangup.sa_handler != SIG_IGN) /* a blocked signal is read by a signalfd even if ignored */
        sigaddset(&ends, SIGHUP);
    const int failed = pthread_sigmask(SIG_BLOCK, &ends, NULL);
    if (failed != 0)
        return dpt_fail_errno(err, failed, "block signals");
    const int told_by_errno[] = {SIGPIPE, SIGXFSZ};
    for (size_t i = 0; i < sizeof told_by_errno / sizeof told_by_errno[0]; i++)
        if (signal(told_by_errno[i], SIG_IGN) == SIG_ERR)
            return dpt_fail_errno(err, errno, "ignore signal %d", told_by_errno[i]);
    *ret = ends;
    return DPT_OK;
}
