/* The end of what a program prints. */
#include "base/stdout.h"

#include <errno.h>
#include <stdio.h>

enum dpt_status dpt_stdout_flush(struct dpt_err *err)
{
    const bool is_lost = fflush(stdout) != 0;
    const int saved_errno = errno;
    const bool was_lost = ferror(stdout) != 0;
    clearerr(stdout); /* each failure is reported once */
    if (is_lost)
        return dpt_fail_errno(err, saved_errno, "write to the standard output");
    return was_lost ? dpt_fail(err, DPT_EIO,
                               "write to the standard output: a part of it could not be written")
                    : DPT_OK;
}
