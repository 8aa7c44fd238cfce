/* The names of kernels and calls, each stored once: records come by the thousand and names by the
 * hundred. Bounded; nothing is allocated after the creation, except by the demangler. */
#ifndef DPT_KERNELS_CUDA_ACTIVITY_NAMES_H
#define DPT_KERNELS_CUDA_ACTIVITY_NAMES_H

#include "base/err.h"

struct dpt_activity_names;

DPT_MUST_USE enum dpt_status dpt_activity_names_create(struct dpt_activity_names **ret,
                                                       struct dpt_err *err);
void dpt_activity_names_destroy(struct dpt_activity_names **names);

/* Returns the stored text of `name`: demangled if it is the mangled name of a C++ kernel, cut to
 * DPT_ACTIVITY_NAME_BYTES, and without characters that JSON would escape. When the store is full,
 * a text that says so. One thread at a time. */
const char *dpt_activity_name(struct dpt_activity_names *names, const char *name);

#endif
