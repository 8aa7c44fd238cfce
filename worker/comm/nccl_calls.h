/* The calls of NCCL and CUDA that move device memory, as one table of functions. nccl.c binds it to
 * the libraries, the tests bind it to doubles, and nccl_machine.c decides when a call is made.
 *
 * One thread, the owner, makes all calls. Communicators are non-blocking, so calls return at once.
 * The exceptions are abort, destroy and revoke: these may take long or never return, which
 * nccl_guard.h detects. DPT_NCCL_INPROGRESS: the call was posted; async_error reports its
 * result. */
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
    DPT_NCCL_EUSAGE,    /* invalid argument or usage; the call has changed nothing */
    DPT_NCCL_EREMOTE,   /* a peer is lost, or the network to a peer */
    DPT_NCCL_ESYSTEM,   /* a system call failed */
    DPT_NCCL_EINTERNAL, /* an internal error of the library */
    DPT_NCCL_ECUDA,     /* an error of the device; this process can seldom use the device again */
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
struct dpt_nccl_stream; /* a queue of device work; owned by the machine that created it */

struct dpt_nccl_calls {
    /* The least time that this library needs, even if the run's timeout is shorter. create_ms_min:
     * to create a communicator. stop_ms_min: for any other call, for a close, or for a stop. */
    int create_ms_min, stop_ms_min;

    int64_t (*now_ms)(void *ctx); /* monotonic */
    void (*pause)(void *ctx);     /* lets some tens of microseconds pass */

    enum dpt_nccl_result (*unique_id)(void *ctx, uint8_t ret[DPT_NCCL_ID_BYTES]);
    /* Create a communicator. *ret is NULL at first; the library may write the handle there until
     * the creation has ended. init writes it at once. split and shrink write it when the creation
     * has ended; until then async_error of the parent reports progress and errors. */
    enum dpt_nccl_result (*init)(void *ctx, int size, const uint8_t id[DPT_NCCL_ID_BYTES], int rank,
                                 struct dpt_nccl_place *ret);
    enum dpt_nccl_result (*split)(void *ctx, struct dpt_nccl_handle *parent, int color, int key,
                                  struct dpt_nccl_place *ret);
    /* `excluded`: ranks of the parent, ascending. NULL: the library has no shrink. */
    enum dpt_nccl_result (*shrink)(void *ctx, struct dpt_nccl_handle *parent, const int *excluded,
                                   int n_excluded, struct dpt_nccl_place *ret);
    /* The state of the last call on this communicator: OK, INPROGRESS, or its error. */
    enum dpt_nccl_result (*async_error)(void *ctx, struct dpt_nccl_handle *handle);
    /* Stops the work in flight and keeps the communicator. async_error reports when the
     * communicator is quiet. NULL: the library has no revoke. */
    enum dpt_nccl_result (*revoke)(void *ctx, struct dpt_nccl_handle *handle);
    /* Flushes the communicator together with all peers. async_error reports when the flush has
     * ended. */
    enum dpt_nccl_result (*finalize)(void *ctx, struct dpt_nccl_handle *handle);
    /* destroy frees a communicator after finalize. abort stops and frees a communicator in any
     * state. The handle is freed, whatever they return. */
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
    /* OK: all work in the stream is done. INPROGRESS: it is not done. ECUDA: it failed. */
    enum dpt_nccl_result (*stream_query)(void *ctx, struct dpt_nccl_stream *stream);
};

/* Returns the table of the libraries (nccl.c, static storage). Its context is NULL. It works on the
 * CUDA device that is current in the owner's thread. DPT_EUNSUPPORTED: the loaded NCCL is older
 * than 2.27, or there is no device, or this build has no NCCL (nccl_absent.c). */
DPT_MUST_USE enum dpt_status dpt_nccl_calls_load(const struct dpt_nccl_calls **ret,
                                                 struct dpt_err *err);

/* nccl_settings.c: returns the first environment variable of NCCL that has a refused value; NULL:
 * none. *ret_why gets the effect of that variable. Both are static text. */
const char *dpt_nccl_refused_setting(const char **ret_why);

#endif
