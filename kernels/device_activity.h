/* The work of a device by the device's own clock: kernels, copies, waits, and the calls of the host
 * that posted them. On CUDA the records come from NVIDIA's library CUPTI, which is loaded when an
 * activity is opened.
 *
 * CUPTI records a process, so a process has at most one activity. It is opened before the first
 * device: CUPTI records the kernels of a graph only if it was there when the graph was made. While
 * nothing is recorded, CUPTI costs next to nothing; unopened, nothing.
 *
 * All memory is allocated by dpt_activity_open and is bounded. A record without room is dropped and
 * counted. One thread calls these functions. */
#ifndef DPT_KERNELS_DEVICE_ACTIVITY_H
#define DPT_KERNELS_DEVICE_ACTIVITY_H

#include "base/err.h"

#include <stdint.h>

enum dpt_device_work {
    DPT_DEVICE_KERNEL,
    DPT_DEVICE_COPY,
    DPT_DEVICE_SET,
    DPT_DEVICE_SYNC, /* the host or a stream waits for the device */
    DPT_DEVICE_CALL, /* a call of CUDA's runtime */
    DPT_DEVICE_DRIVER_CALL
};

/* Members that a kind of work does not have are 0. */
struct dpt_device_record {
    int64_t begin_ns, end_ns; /* of dpt_now_ns */
    /* Of the kernel, the kind of copy or wait, or the call. No quotes, backslashes and control
     * characters; at most DPT_ACTIVITY_NAME_BYTES - 1 bytes. Valid until dpt_activity_close. */
    const char *name;
    uint64_t bytes;             /* COPY, SET */
    uint32_t correlation;       /* the same for a call and the work that it posted; 0: unknown */
    uint32_t device, context;   /* device: its index in this process */
    uint32_t stream;            /* DPT_DEVICE_NO_STREAM: of none, as a wait for the device */
    uint32_t thread;            /* CALL, DRIVER_CALL: the system's number of the thread */
    uint32_t call;              /* CALL, DRIVER_CALL: CUPTI's number of the function */
    uint32_t graph;             /* of the CUDA graph that has this work; 0: none */
    uint32_t grid[3], block[3]; /* KERNEL */
    uint32_t registers;         /* KERNEL: of a thread */
    uint32_t shared_bytes;      /* KERNEL: of a block */
    enum dpt_device_work kind;
};

enum { DPT_ACTIVITY_NAME_BYTES = 640 };
#define DPT_DEVICE_NO_STREAM UINT32_MAX

struct dpt_device_records {
    const struct dpt_device_record *record; /* [n], in no order */
    size_t n;
    /* Records that had no room here or in CUPTI, and records of work whose times are unknown. */
    int64_t dropped;
};

struct dpt_activity;

/* Opens the activity of this process, with room for records_max records. Errors: DPT_EUNSUPPORTED:
 * the build or the machine has no CUPTI, or CUPTI refuses; DPT_EEXIST: another rank of this process
 * has one. The text says what to do. */
DPT_MUST_USE enum dpt_status dpt_activity_open(size_t records_max, struct dpt_activity **ret,
                                               struct dpt_err *err);
/* Accepts a pointer to NULL. */
void dpt_activity_close(struct dpt_activity **activity);

/* Forgets all records and records from now on. DPT_EUNSUPPORTED: CUPTI refuses; nothing is
 * recorded. */
DPT_MUST_USE enum dpt_status dpt_activity_start(struct dpt_activity *activity, struct dpt_err *err);
/* Forgets the records so far, and work that has begun before this call. After dpt_activity_start.
 */
void dpt_activity_restart(struct dpt_activity *activity);
/* Ends the recording. Work that the device has not finished is lost: the caller waits for it
 * before. No effect if nothing is recorded. */
void dpt_activity_stop(struct dpt_activity *activity);

/* The records between dpt_activity_start or _restart and dpt_activity_stop, until the next start.
 */
void dpt_activity_read(const struct dpt_activity *activity, struct dpt_device_records *ret);

#endif
