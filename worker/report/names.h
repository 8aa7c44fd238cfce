/* Texts with numbers: each text is kept once. */
#ifndef DPT_WORKER_REPORT_NAMES_H
#define DPT_WORKER_REPORT_NAMES_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* Zeroed: no name. */
struct report_names {
    char **text; /* [n]; owned */
    size_t n, room;
    uint32_t *slots; /* [n_slots], the number of a text + 1, or 0; n_slots is a power of two */
    size_t n_slots;
};

/* The number of the text, which is added if it is new. */
DPT_MUST_USE enum dpt_status report_names_add(struct report_names *names, const char *text,
                                              uint32_t *ret, struct dpt_err *err);
void report_names_free(struct report_names *names);

#endif
