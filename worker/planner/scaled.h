/* Numbers with a unit on the command line: 70B, 80GB, 989T, 400Gbit. Pure. */
#ifndef DPT_WORKER_PLANNER_SCALED_H
#define DPT_WORKER_PLANNER_SCALED_H

#include "base/err.h"

enum dpt_scaled_kind {
    DPT_SCALED_COUNT, /* K, M, B, T */
    DPT_SCALED_BYTES, /* KB, MB, GB, TB; KiB, MiB, GiB, TiB; Mbit, Gbit (of 1/8 byte) */
    DPT_SCALED_FLOPS, /* G, T, P */
    DPT_SCALED_PLAIN  /* no unit */
};

/* Parses a number above 0, with or without a unit of the kind. DPT_EINVAL names the units. */
DPT_MUST_USE enum dpt_status dpt_scaled_parse(const char *text, enum dpt_scaled_kind kind,
                                              double *ret, struct dpt_err *err);

#endif
