/* Cuts the text of a trace into its head and its events, so that a file of any size is read in the
 * memory of one event. */
#ifndef DPT_WORKER_REPORT_TRACE_TEXT_H
#define DPT_WORKER_REPORT_TRACE_TEXT_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Takes the text of an event, a JSON object of `bytes` bytes. `index` counts from 0. */
struct report_text_sink {
    enum dpt_status (*take)(void *ctx, const char *event, size_t bytes, int64_t index,
                            struct dpt_err *err);
    void *ctx;
};

/* Reads a file of JSON, or of JSON that gzip has packed. *ret_head is the text of the object with
 * an empty array of events; owned, with a NUL. `sink` NULL: only the part of the head before the
 * events is read. Blocks.
 *
 * DPT_ECORRUPT: the file is damaged or ends early. DPT_EPROTO: the file is not a trace. An error of
 * the sink is passed on. */
DPT_MUST_USE enum dpt_status report_text_read(const char *path, const struct report_text_sink *sink,
                                              char **ret_head, struct dpt_err *err);

#endif
