/* The calls of NCCL and CUDA that move device memory, as one table of functions. nccl.c binds it to
 * the libraries, the tests bind it to doubles, and nccl_machine.c decides when a call is made.
 *
 * One thread, the owner, makes all calls. Communicators are non-blocking, so calls return at once,
 * except abort, destroy and revoke, which may take long or never return: nccl_guard.h detects that.
 * DPT_NCCL_INPROGRESS means posted; async_error reports the result. */
#ifndef DPT_WORKER_COMM_NCCL_CALLS_H
#define DPT_WORKER_COMM_NCCL_CALLS_H

#include "base/err.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { DPT_NCCL_ID_BYTES = 128 };

enum dpt_nccl_result {
    DPT_NCCL_OK,
    DPT_NCCL_INPROGRESS,
    DPT_NCCL_EUSAGE,    /* invalid argument or usage: the call has changed nothing */
    DPT_NCCL_EREMOTE,   /* a peer is lost, or the network to it */
    DPT_NCCL_ESYSTEM,   /* a system call */
    DPT_NCCL_EINTERNAL, /* the library's own */
    DPT_NCCL_ECUDA,     /* the device's; this process can seldom use the device again */
    DPT_NCCL_RESULT_COUNT
};

/* Element types of the library's own reductions. */
enum dpt_nccl_dtype { DPT_NCCL_F32, DPT_NCCL_BF16, DPT_NCCL_F16, DPT_NCCL_BYTES };

enum dpt_nccl_kind {
    DPT_NCCL_SEND,           /* bytes of `from` to `peer` */
    DPT_NCCL_RECV,           /* bytes of `to` from `peer` */
    DPT_NCCL_ALL_REDUCE,     /* `count` elements of `from` to `to`, in the library's order */
    DPT_NCCL_REDUCE_SCATTER, /* `count` elements of the sum to `to` */
    DPT_NCCL_ALL_GATHER,     /* `count` elements of each rank to `to` */
    DPT_NCCL_KIND_COUNT
};

struct dpt_nccl_piece {
    enum dpt_nccl_kind kind;
    int peer; /* rank in the communicator */
    const void *from;
    void *to;
    size_t count; /* bytes for SEND and RECV */
    enum dpt_nccl_dtype dtype;
};

struct dpt_nccl_handle; /* a communicator of the library */
/* Creation writes the handle here, perhaps from another thread, so it is atomic. */
struct dpt_nccl_place {
    _Atomic(struct dpt_nccl_handle *) handle;
};
struct dpt_nccl_stream; /* a queue of device work; owned by the machine that asked for it */

struct dpt_nccl_calls {
    /* The least time this library needs, even if the run's timeout is shorter: to create a
     * communicator; for any other call, a close, a stop. */
    int create_ms_min, stop_ms_min;

    int64_t (*now_ms)(void *ctx); /* monotonic */
    void (*pause)(void *ctx);     /* lets some tens of microseconds pass */

    enum dpt_nccl_result (*unique_id)(void *ctx, uint8_t ret[DPT_NCCL_ID_BYTES]);
    /* The creation of a communicator. The handle is known at once (init) or when creation has ended
     * (split and shrink, whose progress and errors are the parent's): *ret, NULL before, is written
     * until then. */
    enum dpt_nccl_result (*init)(void *ctx, int size, const uint8_t id[DPT_NCCL_ID_BYTES], int rank,
                                 struct dpt_nccl_place *ret);
    enum dpt_nccl_result (*split)(void *ctx, struct dpt_nccl_handle *parent, int color, int key,
                                  struct dpt_nccl_place *ret);
    /* `excluded`: ranks of the parent, ascending. NULL: the library has no shrink. */
    enum dpt_nccl_result (*shrink)(void *ctx, struct dpt_nccl_handle *parent, const int *excluded,
                                   int n_excluded, struct dpt_nccl_place *ret);
    /* State of the last call on it: OK, INPROGRESS, or its error. */
    enum dpt_nccl_result (*async_error)(void *ctx, struct dpt_nccl_handle *handle);
    /* Stops the work in flight, keeps the communicator; async_error reports when it is quiet. NULL:
     * the library has none. */
    enum dpt_nccl_result (*revoke)(void *ctx, struct dpt_nccl_handle *handle);
    /* Flushes, with all peers; async_error reports the end. */
    enum dpt_nccl_result (*finalize)(void *ctx, struct dpt_nccl_handle *handle);
    /* After finalize / from any state: stop, and free. The handle is gone whatever they return. */
    enum dpt_nccl_result (*destroy)(void *ctx, struct dpt_nccl_handle *handle);
    enum dpt_nccl_result (*abort)(void *ctx, struct dpt_nccl_handle *handle);

    enum dpt_nccl_result (*group_start)(void *ctx);
    enum dpt_nccl_result (*group_end)(void *ctx);
    /* Adds a piece to the open group. Sums are in the library's order. */
    enum dpt_nccl_result (*post)(void *ctx, struct dpt_nccl_handle *handle,
                                 const struct dpt_nccl_piece *piece,
                                 struct dpt_nccl_stream *stream);

    /* The library's text for the last error; never NULL. `handle` may be NULL. */
    const char *(*last_error)(void *ctx, struct dpt_nccl_handle *handle);

    enum dpt_nccl_result (*stream_create)(void *ctx, struct dpt_nccl_stream **ret);
    void (*stream_destroy)(void *ctx, struct dpt_nccl_stream *stream);
    /* Later work in the stream waits for `event` (a cudaEvent_t). */
    enum dpt_nccl_result (*stream_after)(void *ctx, struct dpt_nccl_stream *stream, void *event);
    /* OK: all that was put into the stream is done; INPROGRESS; ECUDA. */
    enum dpt_nccl_result (*stream_query)(void *ctx, struct dpt_nccl_stream *stream);
};

/* The libraries' table (nccl.c, static storage); its context is NULL, and it works on the CUDA
 * device that is current in the owner's thread. DPT_EUNSUPPORTED: the library that is loaded is
 * older than 2.27, or there is no device, or this build has none of it (nccl_absent.c). */
DPT_MUST_USE enum dpt_status dpt_nccl_calls_load(const struct dpt_nccl_calls **ret,
                                                 struct dpt_err *err);

/* nccl_settings.c: the first environment variable of NCCL with a value that is refused; NULL: none.
 * *ret_why: its effect. Both static text. */
const char *dpt_nccl_refused_setting(const char **ret_why);

#endif
