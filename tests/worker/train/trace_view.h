/* The trace files of a run of rank_rig.h: which there are, and what they have. */
#ifndef DPT_TESTS_WORKER_TRAIN_TRACE_VIEW_H
#define DPT_TESTS_WORKER_TRAIN_TRACE_VIEW_H

#include "tests/worker/train/rank_rig.h"

#include <limits.h>

enum { TRACE_FILES_MAX = 8 };

/* The paths of a rank's files below the folder traces of the run `name`, in the order of time;
 * returns their number. */
size_t trace_view_list(const char *name, const char *strategy, int rank,
                       char ret_paths[TRACE_FILES_MAX][PATH_MAX]);

/* A file's JSON; owned by the caller. */
json_t *trace_view_read(const char *path);

/* The trace of a rank that has one file. */
json_t *trace_view_only(const char *name, const char *strategy, int rank);

/* The number of events of this category and name. NULL: of any category; "": of none. A name that
 * ends with '*' is a prefix. */
size_t trace_view_count(const json_t *trace, const char *category, const char *name);

#endif
