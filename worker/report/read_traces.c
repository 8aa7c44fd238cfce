/* Reads the traces of a window (read_traces.h). */
#include "worker/report/read_traces.h"

#include "base/cores.h"
#include "worker/report/check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { READERS_MAX = 64 };

struct reading {
    char *const *paths;
    size_t n;
    bool include_last_step;
    struct report_source *sources;
    atomic_size_t next;
};

static void *read_next_files(void *ctx)
{
    struct reading *reading = ctx;
    size_t i;
    while ((i = atomic_fetch_add(&reading->next, 1)) < reading->n) {
        struct report_source *source = &reading->sources[i];
        source->status = report_trace_read(reading->paths[i], &source->trace, &source->err);
        if (source->status == DPT_OK)
            source->status = report_scope_find(&source->trace, reading->include_last_step,
                                               &source->scope, &source->err);
    }
    return NULL;
}

/* The calling thread reads too, so that every file is read if no thread can be started. */
static void read_files(struct reading *reading, bool parallel)
{
    pthread_t threads[READERS_MAX];
    size_t n = 0;
    const size_t cores = (size_t)dpt_cores(), wanted = reading->n < cores ? reading->n : cores;
    while (parallel && n + 1 < wanted && n < READERS_MAX &&
           pthread_create(&threads[n], NULL, read_next_files, reading) == 0)
        n++;
    (void)read_next_files(reading);
    for (size_t i = 0; i < n; i++)
        (void)pthread_join(threads[i], NULL);
}

static int compare_sources(const void *left, const void *right)
{
    const struct report_source *a = left, *b = right;
    return a->trace.head.rank < b->trace.head.rank ? -1 : a->trace.head.rank > b->trace.head.rank;
}

enum dpt_status report_sources_read(char *const *paths, size_t n,
                                    const struct report_options *options,
                                    struct report_source *sources, struct report_warnings *warnings,
                                    struct dpt_err *err)
{
    struct reading reading = {.paths = paths,
                              .n = n,
                              .include_last_step = options->include_last_step,
                              .sources = sources};
    memset(sources, 0, n * sizeof *sources);
    read_files(&reading, options->parallel);
    for (size_t i = 0; i < n; i++)
        if (sources[i].status != DPT_OK) {
            *err = sources[i].err;
            return sources[i].status;
        }
    for (size_t i = 0; i < n; i++)
        if (sources[i].trace.head.rank == REPORT_UNKNOWN)
            sources[i].trace.head.rank = report_rank_of_path(paths[i], (int)i);
    qsort(sources, n, sizeof *sources, compare_sources);
    return report_check(sources, n, options->elsewhere, warnings, err);
}

void report_sources_free(struct report_source *sources, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        report_trace_free(&sources[i].trace);
        report_scope_free(&sources[i].scope);
    }
}
