/* Status codes and errors with context.
 *
 * Every function that can fail returns an `enum dpt_status`, which may not be ignored, and takes a
 * `struct dpt_err *err` last. On failure it fills *err (if err is not NULL) and leaves its `ret_`
 * outputs untouched. An error has one of four sources, and each source has one function:
 *
 *     return dpt_fail(err, DPT_ECORRUPT, "'%s' has no header", path);     a rule of ours
 *     return dpt_fail_errno(err, errno, "open '%s'", path);               the system
 *     return dpt_fail_nomem(err, "index of '%s'", path);                  an allocation
 *     return dpt_wrap(err, read_header(path, err), "data.train");         a function called here
 *
 * dpt_wrap adds context once, at a boundary: the callee knows the detail, and the caller knows the
 * purpose. If the status is DPT_OK, dpt_wrap changes nothing. A caller that may recover from a
 * failure gives the callee a `struct dpt_err why` and passes it on with dpt_pass if it does not
 * recover. Errors of foreign libraries (ZeroMQ, oneDNN) are translated in the function that called
 * the library. */
#ifndef DPT_BASE_ERR_H
#define DPT_BASE_ERR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

/* Each row has the name and the short text. The number of a status is its position: it is the same
 * only within one build, so it is never sent or stored. */
#define DPT_STATUS_TABLE(X)                                                                        \
    X(OK, "ok")                                                                                    \
    X(INPROGRESS, "in progress")                                                                   \
    X(EINVAL, "invalid argument")                                                                  \
    X(ENOMEM, "out of memory")                                                                     \
    X(EIO, "input/output error")                                                                   \
    X(ENOSPC, "no space left on device")                                                           \
    X(ENOENT, "not found")                                                                         \
    X(EEXIST, "already exists")                                                                    \
    X(ECORRUPT, "damaged data")                                                                    \
    X(EVERSION, "unsupported version")                                                             \
    X(ECONFIG, "bad configuration")                                                                \
    X(EPROTO, "malformed message")                                                                 \
    X(ETIMEOUT, "timed out")                                                                       \
    X(EABORTED, "aborted")                                                                         \
    X(EPEER, "peer lost")                                                                          \
    X(ESERVER, "rendezvous server unreachable")                                                    \
    X(EEXPELLED, "expelled from the run")                                                          \
    X(EREFUSED, "refused")                                                                         \
    X(EUNSUPPORTED, "not supported here")                                                          \
    X(EOVERFLOW, "limit exceeded")                                                                 \
    X(EDEVICE, "device failed")                                                                    \
    X(EDIVERGED, "not finite")

enum dpt_status {
#define X(name, text) DPT_##name,
    DPT_STATUS_TABLE(X)
#undef X
        DPT_STATUS_COUNT
};

#define DPT_MUST_USE           __attribute__((warn_unused_result))
#define DPT_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))

enum { DPT_ERR_TEXT_BYTES = 1024 };

/* One error: a status and one line for a person, without control characters. Value type;
 * zero-initialise it or leave it to dpt_fail. */
struct dpt_err {
    enum dpt_status status;
    int saved_errno; /* dpt_fail_errno sets it, dpt_wrap keeps it; 0: none */
    char text[DPT_ERR_TEXT_BYTES];
};

/* Returns the short text of a status ("timed out"); never NULL. */
const char *dpt_status_text(enum dpt_status status);

/* Replaces control characters by blanks. Text of a user or of a foreign library may have newlines,
 * but a message is one line. */
void dpt_one_line(char *text);

/* Fills *err (may be NULL) with `status` and the formatted text as one line. Returns `status`, so
 * that a failing function ends with `return dpt_fail(err, DPT_EIO, "read shard '%s': %s", path,
 * strerror(errno));`. */
enum dpt_status dpt_fail(struct dpt_err *err, enum dpt_status status, const char *fmt, ...)
    DPT_PRINTF(3, 4);
enum dpt_status dpt_vfail(struct dpt_err *err, enum dpt_status status, const char *fmt, va_list ap);

/* Copies an error: *err (may be NULL) becomes *why. Returns the status of *why. */
enum dpt_status dpt_pass(struct dpt_err *err, const struct dpt_err *why);

/* Whether both errors have the same status and errno. Texts are not compared, because they name
 * files and places. */
bool dpt_err_is_like(const struct dpt_err *a, const struct dpt_err *b);

/* Like dpt_fail with the text of `saved_errno` appended after ": ". Maps ENOSPC, ENOENT, ENOMEM,
 * EEXIST, EDQUOT and EFBIG to their own status, everything else to DPT_EIO. */
enum dpt_status dpt_fail_errno(struct dpt_err *err, int saved_errno, const char *fmt, ...)
    DPT_PRINTF(3, 4);

/* Fails with DPT_ENOMEM and the formatted text, which names the purpose of the memory, followed by
 * ": out of memory". */
enum dpt_status dpt_fail_nomem(struct dpt_err *err, const char *fmt, ...) DPT_PRINTF(2, 3);

/* Puts the formatted text and ": " before the text in *err (may be NULL), and returns `status`.
 * *err is the error of the call that returned `status`. If `status` is DPT_OK, changes nothing. */
enum dpt_status dpt_wrap(struct dpt_err *err, enum dpt_status status, const char *fmt, ...)
    DPT_PRINTF(3, 4);

/* Returns early with the status of a failing call; for functions that hold nothing to clean up. */
#define DPT_TRY(call)                                                                              \
    do {                                                                                           \
        enum dpt_status try_status_ = (call);                                                      \
        if (try_status_ != DPT_OK)                                                                 \
            return try_status_;                                                                    \
    } while (0)

/* Programmer errors only; always compiled in. Prints file:line and aborts. */
#define DPT_ASSERT(cond)                                                                           \
    do {                                                                                           \
        if (!(cond))                                                                               \
            dpt_assert_failed(#cond, __FILE__, __LINE__);                                          \
    } while (0)
_Noreturn void dpt_assert_failed(const char *cond, const char *file, int line);

#endif
