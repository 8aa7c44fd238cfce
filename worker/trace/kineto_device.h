/* The records of a GPU as events of Kineto, with the launches and the collectives that they belong
 * to. Pure. */
#ifndef DPT_WORKER_TRACE_KINETO_DEVICE_H
#define DPT_WORKER_TRACE_KINETO_DEVICE_H

#include "kernels/device_activity.h"
#include "worker/trace/recorder.h"

enum { DPT_KINETO_ARGS_BYTES = 512 };

enum dpt_kineto_flow {
    DPT_KINETO_NO_FLOW,
    DPT_KINETO_FLOW_BEGIN, /* a call that has posted work */
    DPT_KINETO_FLOW_END    /* work of a call that is in the records */
};

struct dpt_kineto_event {
    const char *category, *name;
    int64_t process, thread; /* of work: the device and the stream */
    int64_t begin_ns, end_ns;
    char args[DPT_KINETO_ARGS_BYTES];        /* members of a JSON object */
    const struct dpt_trace_span *collective; /* of an NCCL kernel; NULL: none is known */
    enum dpt_kineto_flow flow;
    uint32_t correlation;
};

struct dpt_kineto_device;

/* `process` is the system's number of the process. `collectives`: the events of the communication
 * thread. Borrows its arguments. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_kineto_device_create(const struct dpt_device_records *records,
                                                      const struct dpt_trace_events *collectives,
                                                      int64_t process,
                                                      struct dpt_kineto_device **ret,
                                                      struct dpt_err *err);
void dpt_kineto_device_destroy(struct dpt_kineto_device **device);

/* Fills *ret from record `i`. False: the record is no event of its own, because it is the driver's
 * part of a call of the runtime that has an event. */
bool dpt_kineto_device_event(const struct dpt_kineto_device *device, size_t i,
                             struct dpt_kineto_event *ret);

/* The devices and streams of the records, each once, in no order. *ret_n of them. */
struct dpt_kineto_stream {
    uint32_t device, stream;
};
const struct dpt_kineto_stream *dpt_kineto_device_streams(const struct dpt_kineto_device *device,
                                                          size_t *ret_n);

#endif
