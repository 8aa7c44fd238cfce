/* Status texts and error filling. */
#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const status_text[DPT_STATUS_COUNT] = {
#define X(name, text) text,
    DPT_STATUS_TABLE(X)
#undef X
};

const char *dpt_status_text(enum dpt_status status)
{
    return (unsigned)status < DPT_STATUS_COUNT ? status_text[status] : "unknown status";
}

void dpt_one_line(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = ' ';
}

enum dpt_status dpt_vfail(struct dpt_err *err, enum dpt_status status, const char *fmt, va_list ap)
{
    if (err) {
        err->status = status;
        err->saved_errno = 0;
        /* A text that does not fit is cut. It is only for people; programs use the status. */
        (void)vsnprintf(err->text, sizeof err->text, fmt, ap);
        dpt_one_line(err->text);
    }
    return status;
}

/* Appends to the text. The rest that does not fit is cut. */
static void DPT_PRINTF(2, 3) append_text(struct dpt_err *err, const char *fmt, ...)
{
    const size_t used = strlen(err->text);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(err->text + used, sizeof err->text - used, fmt, ap);
    va_end(ap);
}

enum dpt_status dpt_fail(struct dpt_err *err, enum dpt_status status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)dpt_vfail(err, status, fmt, ap);
    va_end(ap);
    return status;
}

static enum dpt_status status_of_errno(int saved_errno)
{
    switch (saved_errno) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG: /* ulimit -f */
        return DPT_ENOSPC;
    case ENOENT:
        return DPT_ENOENT;
    case ENOMEM:
        return DPT_ENOMEM;
    case EEXIST:
        return DPT_EEXIST;
    default:
        return DPT_EIO;
    }
}

enum dpt_status dpt_fail_errno(struct dpt_err *err, int saved_errno, const char *fmt, ...)
{
    enum dpt_status status = status_of_errno(saved_errno);
    va_list ap;
    va_start(ap, fmt);
    (void)dpt_vfail(err, status, fmt, ap);
    va_end(ap);
    if (err) {
        char buf[128];
        err->saved_errno = saved_errno;
        append_text(err, ": %s%s", strerror_r(saved_errno, buf, sizeof buf),
                    saved_errno == EFBIG ? " (ulimit -f is the limit of a process)" : "");
    }
    return status;
}

enum dpt_status dpt_fail_nomem(struct dpt_err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)dpt_vfail(err, DPT_ENOMEM, fmt, ap);
    va_end(ap);
    if (err)
        append_text(err, ": %s", dpt_status_text(DPT_ENOMEM));
    return DPT_ENOMEM;
}

enum dpt_status dpt_wrap(struct dpt_err *err, enum dpt_status status, const char *fmt, ...)
{
    if (!err || status == DPT_OK)
        return status;
    const struct dpt_err inner = *err;
    va_list ap;
    va_start(ap, fmt);
    (void)dpt_vfail(err, status, fmt, ap);
    va_end(ap);
    err->saved_errno = inner.saved_errno;
    append_text(err, ": %s", inner.text);
    return status;
}

enum dpt_status dpt_pass(struct dpt_err *err, const struct dpt_err *why)
{
    if (err)
        *err = *why;
    return why->status;
}

bool dpt_err_is_like(const struct dpt_err *a, const struct dpt_err *b)
{
    return a->status == b->status && a->saved_errno == b->saved_errno;
}

void dpt_assert_failed(const char *cond, const char *file, int line)
{
    (void)fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, cond);
    abort();
}
