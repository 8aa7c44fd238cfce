/* Reads the lines that a run appends to its files. */
#include "worker/bench/bench_recover_watch.h"

#include "base/fs.h"
#include "base/median.h"
#include "worker/bench/bench.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The names of the phases in events.jsonl. */
static const char *const phase_names[REC_PHASE_COUNT] = {
    "detect_ms", "abort_ms", "rendezvous_ms", "rebuild_ms", "restore_ms", "total_ms"};

enum { STEPS_MAX = 100 * 1000 * 1000 };

static struct recover_generation *recover_generation_at(struct recover_watch *w, uint64_t number)
{
    struct recover_generation *g = &w->generations[number % REC_GENERATIONS];
    if (g->number < number)
        *g = (struct recover_generation){.number = number};
    return g->number == number ? g : NULL;
}

const struct recover_generation *recover_watch_generation(struct recover_watch *w, uint64_t number)
{
    return recover_generation_at(w, number);
}

static double real_of(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static int64_t integer_of(const json_t *object, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(object, key));
}

const char *const recover_landing_names[REC_LANDING_COUNT] = {"steps", "prepare", "build"};

/* Stores the step's loss and norm. A full table doubles, so it grows about twenty times at most. */
static void take_value(struct recover_watch *w, int64_t step, const json_t *line)
{
    if (step < 0 || step > STEPS_MAX)
        return;
    if (step >= w->values_max) {
        const int64_t max = 2 * step + 1024;
        struct recover_value *values = realloc(w->values, (size_t)max * sizeof *values);
        DPT_ASSERT(values);
        memset(values + w->values_max, 0, (size_t)(max - w->values_max) * sizeof *values);
        w->values = values;
        w->values_max = max;
    }
    w->values[step] = (struct recover_value){real_of(line, "loss"), real_of(line, "grad_norm")};
}

static void take_metrics(struct recover_watch *w, const json_t *line)
{
    struct recover_generation *g =
        recover_generation_at(w, (uint64_t)integer_of(line, "generation"));
    int64_t step = integer_of(line, "step");
    double time = real_of(line, "time"), step_ms = real_of(line, "step_ms");
    if (step <= w->step)
        w->steps_repeated++;
    else
        take_value(w, step, line);
    if (step > w->step + 1)
        w->steps_skipped += step - w->step - 1;
    /* A line without a duration is about the last step of the generation before: the writer of that
     * generation died before it logged the step. The time of the step's end is not known. */
    if (g && step_ms > 0) {
        if (g->steps++ == 0) {
            g->first_step = time;
            g->step_before = w->step_time;
            g->world = (int)integer_of(line, "world_size");
        } else
            w->step_ms[w->steps_timed++ % REC_STEP_TIMES] = step_ms;
        if (g->number > w->newest)
            w->newest = g->number;
        w->step_time = time;
    }
    w->step = step;
}

static void take_recover_event(struct recover_watch *w, const json_t *line)
{
    struct recover_generation *g =
        recover_generation_at(w, (uint64_t)integer_of(line, "generation"));
    const char *kind = json_string_value(json_object_get(line, "kind"));
    const char *redundancy = json_string_value(json_object_get(line, "redundancy"));
    const bool rebuilt = kind && strcmp(kind, "redundancy") == 0;
    w->steps_lost += integer_of(line, "steps_lost");
    w->rebuilds += rebuilt && redundancy && strcmp(redundancy, "whole") == 0;
    if (g)
        g->rebuilding = redundancy && strcmp(redundancy, "rebuilding") == 0;
    if (!g || rebuilt) /* the event is about shadows alone: no recovery */
        return;
    g->has_event = true;
    g->event_steps_lost = integer_of(line, "steps_lost");
    (void)snprintf(g->kind, sizeof g->kind, "%s", kind ? kind : "");
    for (int p = 0; p < REC_PHASE_COUNT; p++)
        g->phase_ms[p] = real_of(line, phase_names[p]);
    w->healing_ms[w->healings++ % REC_STEP_TIMES] =
        g->phase_ms[REC_REBUILD] + g->phase_ms[REC_RESTORE];
}

/* The time at the beginning of a log line; false: the line has none. */
static bool time_of(const char *line, double *ret)
{
    struct tm tm = {0};
    const char *fraction = strptime(line, "%Y-%m-%dT%H:%M:%S", &tm);
    if (!fraction)
        return false;
    *ret = (double)timegm(&tm) + strtod(fraction, NULL);
    return true;
}

/* Takes these lines of the server's log:
 *   `2026-01-02T03:04:05.678Z I dpt-rdzv: …: forming generation 7: why`
 *   `…: plan of generation 7: world 4 …`
 *   `…: generation 7 runs, world …` */
static void take_server(struct recover_watch *w, const char *line)
{
    static const char *const marks[] = {": forming generation ", ": plan of generation ",
                                        ": generation "};
    double time;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const char *found = strstr(line, marks[i]);
        if (!found)
            continue;
        char *after;
        const uint64_t number = strtoull(found + strlen(marks[i]), &after, 10);
        struct recover_generation *g = recover_generation_at(w, number);
        if (!g || !time_of(line, &time) || (i == 2 && strncmp(after, " runs", 5) != 0))
            return;
        double *when = i == 0 ? &g->forming : i == 1 ? &g->planned : &g->runs;
        if (*when <= 0)
            *when = time;
        if (i == 0 && number > w->newest_forming)
            w->newest_forming = number;
        if (i == 1 && number > w->newest_planned)
            w->newest_planned = number;
        return;
    }
}

enum recover_landing recover_watch_landing(const struct recover_watch *w, double time)
{
    const struct recover_generation *newest = NULL;
    for (int i = 0; i < REC_GENERATIONS; i++) {
        const struct recover_generation *g = &w->generations[i];
        if (g->forming > 0 && g->forming <= time && (!newest || g->number > newest->number))
            newest = g;
    }
    if (!newest || (newest->runs > 0 && newest->runs <= time))
        return REC_IN_STEPS;
    return newest->planned > 0 && newest->planned <= time ? REC_IN_BUILD : REC_IN_PREPARE;
}

int64_t recover_watch_differs(const struct recover_watch *w, const struct recover_watch *other,
                              int64_t first, int64_t end)
{
    for (int64_t s = first; s < end && s < w->values_max && s < other->values_max; s++) {
        const struct recover_value *a = &w->values[s], *b = &other->values[s];
        const bool known = a->norm != 0 && b->norm != 0;
        if (known && memcmp(a, b, sizeof *a) != 0)
            return s;
    }
    return -1;
}

/* The next complete line without its newline; NULL: there is none yet. */
static const char *next_line(struct recover_tail *t)
{
    if (!t->file && !(t->file = fopen(t->path, "re")))
        return NULL;
    clearerr(t->file);
    for (int c; (c = getc(t->file)) != EOF;) {
        if (c == '\n') {
            t->line[t->bytes] = '\0';
            t->bytes = 0;
            return t->line;
        }
        if (t->bytes < sizeof t->line - 1)
            t->line[t->bytes++] = (char)c;
    }
    return NULL;
}

static enum dpt_status poll_records(struct recover_watch *w, struct recover_tail *tail,
                                    void (*take)(struct recover_watch *, const json_t *),
                                    struct dpt_err *err)
{
    for (const char *text; (text = next_line(tail));) {
        json_t *line = json_loads(text, 0, NULL);
        if (!json_is_object(line)) {
            json_decref(line);
            return dpt_fail(err, DPT_ECORRUPT, "'%s' holds a line that is no record: %.200s",
                            tail->path, text);
        }
        take(w, line);
        json_decref(line);
    }
    return DPT_OK;
}

enum dpt_status recover_watch_poll(struct recover_watch *w, struct dpt_err *err)
{
    for (const char *line; (line = next_line(&w->server));)
        take_server(w, line);
    DPT_TRY(poll_records(w, &w->metrics, take_metrics, err));
    return poll_records(w, &w->events, take_recover_event, err);
}

enum dpt_status recover_watch_init(struct recover_watch *w, const char *dir, const char *below,
                                   struct dpt_err *err)
{
    char path[sizeof w->server.path];
    *w = (struct recover_watch){0};
    DPT_TRY(dpt_fs_join(dir, below, path, sizeof path, err));
    DPT_TRY(dpt_fs_join(dir, "rdzv.log", w->server.path, sizeof w->server.path, err));
    DPT_TRY(dpt_fs_join(path, "metrics.jsonl", w->metrics.path, sizeof w->metrics.path, err));
    return dpt_fs_join(path, "events.jsonl", w->events.path, sizeof w->events.path, err);
}

void recover_watch_fini(struct recover_watch *w)
{
    struct recover_tail *tails[] = {&w->metrics, &w->events, &w->server};
    for (int i = 0; i < 3; i++)
        if (tails[i]->file)
            (void)fclose(tails[i]->file);
    free(w->values);
    *w = (struct recover_watch){0};
}

static double median_of(const double *values, int64_t taken)
{
    double sorted[REC_STEP_TIMES];
    int n = taken < REC_STEP_TIMES ? (int)taken : REC_STEP_TIMES;
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    dpt_sort_doubles(sorted, n);
    return n > 0 ? sorted[n / 2] : 0;
}

double recover_watch_median_step_ms(const struct recover_watch *w)
{
    return median_of(w->step_ms, w->steps_timed);
}

double recover_watch_median_healing_ms(const struct recover_watch *w)
{
    return median_of(w->healing_ms, w->healings);
}
