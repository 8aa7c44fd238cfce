/* Finds trace files, and puts those of one window together. */
#ifndef DPT_WORKER_REPORT_FOUND_H
#define DPT_WORKER_REPORT_FOUND_H

#include "worker/report/file_span.h"
#include "worker/report/trace.h"

struct report_file {
    char *path; /* owned */
    struct report_head head;
    char strategy[64]; /* of the head; else of ".../STRATEGY/rank_R/..."; else "unknown" */
    int rank;
    int64_t time_ns; /* in the file's name; else of its last change; since 1970 */
    /* Of another program's file, if its strategy has several windows; else not known. */
    bool knows_span;
    struct report_file_span span;
};

/* The files of one window. */
struct report_group {
    char strategy[64];
    struct report_head head; /* of its first file */
    int64_t time_ns;         /* of its first file */
    bool knows_span;         /* of its first file; as report_file's */
    struct report_file_span span;
    int number;              /* among the groups of its strategy, from 0, by time */
    bool is_latest;          /* of its strategy */
    bool is_latest_of_world; /* of its strategy and world size */
    char **paths;            /* [n]; the array is owned, the texts are those of the files */
    int *ranks;              /* [n], of the paths; owned */
    size_t n, paths_room, ranks_room;
};

/* A file whose head cannot be read. */
struct report_damaged {
    char strategy[64]; /* by its path, as report_file's */
    int rank;          /* by its path; REPORT_UNKNOWN */
    int64_t time_ns;   /* as report_file's */
    struct dpt_err err;
};

struct report_found {
    struct report_file *files;
    size_t n_files, files_room;
    struct report_damaged *damaged; /* of folders */
    size_t n_damaged, damaged_room;
    struct report_group *groups; /* by strategy, then by time */
    size_t n_groups, groups_room;
};

/* Adds the files below `dir` whose names end with ".trace.json" or ".trace.json.gz". A folder that
 * is absent has none. Reads the head of each file; for errors see report_head_read.
 * report_find_below lists damaged files as such (DPT_ECORRUPT, DPT_EPROTO); the caller calls
 * report_settle_damaged (damaged.h). */
DPT_MUST_USE enum dpt_status report_find_below(const char *dir, struct report_found *found,
                                               struct dpt_err *err);
DPT_MUST_USE enum dpt_status report_find_file(const char *path, struct report_found *found,
                                              struct dpt_err *err);

/* Makes the groups. Files of dpt belong together if strategy, world size, generation, its id and
 * window are equal; a second file of a rank begins a new group. Files of another program belong
 * together if their steps and times meet (file_span.h); of several such groups the nearest in time
 * decides. For this the files are read, where a rank has several; where they cannot be read, the
 * k-th files of all ranks belong together. */
DPT_MUST_USE enum dpt_status report_group_windows(struct report_found *found, struct dpt_err *err);

/* Makes one group of each strategy, with all its files. */
DPT_MUST_USE enum dpt_status report_group_strategies(struct report_found *found,
                                                     struct dpt_err *err);

/* Makes one group of all files, with the strategy of the first. */
DPT_MUST_USE enum dpt_status report_group_all(struct report_found *found, struct dpt_err *err);

/* Where a trace of a rank that the group lacks is: writes "; 'PATH' is of another run
 * (generation_id ID)" for the newest file of its strategy, world size and generation number that
 * has another id. Otherwise writes "". */
void report_find_elsewhere(const struct report_found *found, const struct report_group *group,
                           char *text, size_t bytes);

void report_found_free(struct report_found *found);

#endif
