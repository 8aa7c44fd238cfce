/* Whether traces belong together (check.h). */
#include "worker/report/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int number_after(const char *path, const char *word)
{
    const char *found = NULL;
    for (const char *at = strstr(path, word); at; at = strstr(at + 1, word))
        found = at;
    if (!found)
        return REPORT_UNKNOWN;
    char *end;
    const long number = strtol(found + strlen(word), &end, 10);
    return end != found + strlen(word) && number >= 0 && number < 1 << 20 ? (int)number
                                                                          : REPORT_UNKNOWN;
}

int report_rank_of_path(const char *path, int otherwise)
{
    static const char *const words[] = {"/rank_", "worker_", "rank"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const int rank = number_after(path, words[i]);
        if (rank != REPORT_UNKNOWN)
            return rank;
    }
    return otherwise;
}

static enum dpt_status refuse_pair(const struct report_source *a, const struct report_source *b,
                                   const char *fact, const char *of_a, const char *of_b,
                                   struct dpt_err *err)
{
    return dpt_fail(err, DPT_EPROTO,
                    "'%s' and '%s' do not belong together: %s %s and %s; give the traces of one "
                    "window of one run",
                    a->trace.path, b->trace.path, fact, of_a, of_b);
}

static enum dpt_status compare_numbers(const struct report_source *a, const struct report_source *b,
                                       const char *fact, int64_t of_a, int64_t of_b,
                                       struct dpt_err *err)
{
    char left[32], right[32];
    if (of_a == of_b)
        return DPT_OK;
    (void)snprintf(left, sizeof left, "%lld", (long long)of_a);
    (void)snprintf(right, sizeof right, "%lld", (long long)of_b);
    return refuse_pair(a, b, fact, left, right, err);
}

/* The steps that a trace counts. */
static void span_of(const struct report_source *source, struct report_step *first,
                    struct report_step *last)
{
    *first = source->scope.steps[0];
    *last = source->scope.steps[source->scope.n - 1];
}

static enum dpt_status check_steps(const struct report_source *a, const struct report_source *b,
                                   struct dpt_err *err)
{
    struct report_step first_a, last_a, first_b, last_b;
    char left[64], right[64];
    span_of(a, &first_a, &last_a);
    span_of(b, &first_b, &last_b);
    if (first_a.number <= last_b.number && first_b.number <= last_a.number) {
        if (first_a.begin_ns <= last_b.end_ns + REPORT_CLOCKS_DIFFER_NS &&
            first_b.begin_ns <= last_a.end_ns + REPORT_CLOCKS_DIFFER_NS)
            return DPT_OK;
        return dpt_fail(err, DPT_EPROTO,
                        "'%s' and '%s' do not belong together: their steps are more than a minute "
                        "apart; give the traces of one run",
                        a->trace.path, b->trace.path);
    }
    (void)snprintf(left, sizeof left, "%lld to %lld", (long long)first_a.number,
                   (long long)last_a.number);
    (void)snprintf(right, sizeof right, "%lld to %lld", (long long)first_b.number,
                   (long long)last_b.number);
    return refuse_pair(a, b, "two windows are mixed, steps", left, right, err);
}

static const char *text_or_none(const char *text)
{
    return text[0] ? text : "(none)";
}

static enum dpt_status check_pair(const struct report_source *a, const struct report_source *b,
                                  struct dpt_err *err)
{
    const struct report_head *x = &a->trace.head, *y = &b->trace.head;
    if (x->is_dpt != y->is_dpt)
        return refuse_pair(a, b, "they are of", x->is_dpt ? "dpt" : "another program",
                           y->is_dpt ? "dpt" : "another program", err);
    if (strcmp(x->strategy, y->strategy) != 0)
        return refuse_pair(a, b, "strategies", x->strategy, y->strategy, err);
    DPT_TRY(compare_numbers(a, b, "world sizes", x->world_size, y->world_size, err));
    DPT_TRY(compare_numbers(a, b, "generations", x->generation, y->generation, err));
    if (strcmp(x->generation_id, y->generation_id) != 0)
        return refuse_pair(a, b, "they are of two runs, generation_id",
                           text_or_none(x->generation_id), text_or_none(y->generation_id), err);
    DPT_TRY(compare_numbers(a, b, "two windows are mixed,", x->window, y->window, err));
    return check_steps(a, b, err);
}

static enum dpt_status check_ranks(const struct report_source *sources, size_t n,
                                   struct dpt_err *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct report_head *head = &sources[i].trace.head;
        if (i > 0 && sources[i - 1].trace.head.rank == head->rank)
            return dpt_fail(err, DPT_EPROTO,
                            "'%s' and '%s' are both of rank %d: give one file of each rank",
                            sources[i - 1].trace.path, sources[i].trace.path, head->rank);
        if (head->world_size != REPORT_UNKNOWN && head->rank >= head->world_size)
            return dpt_fail(err, DPT_EPROTO, "'%s' is damaged: rank %d in a world of %d",
                            sources[i].trace.path, head->rank, head->world_size);
    }
    return DPT_OK;
}

static void warn_of_missing_ranks(const struct report_source *sources, size_t n,
                                  const char *elsewhere, struct report_warnings *warnings)
{
    char list[128] = "";
    int missing = 0;
    size_t at = 0;
    for (int rank = 0; rank < sources[0].trace.head.world_size; rank++) {
        if (at < n && sources[at].trace.head.rank == rank) {
            at++;
            continue;
        }
        const size_t used = strlen(list);
        if (missing++ < 10)
            (void)snprintf(list + used, sizeof list - used, "%s%d", used ? ", " : "", rank);
    }
    if (missing > 0)
        report_warn(warnings,
                    "no trace of rank %s%s (world size %d): the figures are those of %zu "
                    "%s%s",
                    list, missing > 10 ? ", …" : "", sources[0].trace.head.world_size, n,
                    n == 1 ? "rank" : "ranks", elsewhere);
}

enum dpt_status report_check(struct report_source *sources, size_t n, const char *elsewhere,
                             struct report_warnings *warnings, struct dpt_err *err)
{
    DPT_TRY(check_ranks(sources, n, err));
    for (size_t i = 1; i < n; i++)
        DPT_TRY(check_pair(&sources[0], &sources[i], err));
    if (sources[0].trace.head.world_size == REPORT_UNKNOWN)
        for (size_t i = 0; i < n; i++)
            sources[i].trace.head.world_size = sources[n - 1].trace.head.rank + 1;
    warn_of_missing_ranks(sources, n, elsewhere, warnings);
    for (size_t i = 0; i < n; i++)
        if (sources[i].trace.head.dropped_events > 0)
            report_warn(warnings,
                        "the trace of rank %d lacks %lld events, for which there was no room: "
                        "lower trace.active",
                        sources[i].trace.head.rank,
                        (long long)sources[i].trace.head.dropped_events);
    return DPT_OK;
}
