/* Reading on in the files of a run. */
#include "tests/bench/bench_recover_watch.h"

#include "base/fs.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *const rec_phase_names[REC_PHASE_COUNT] = {"detect_ms",  "abort_ms",   "rendezvous_ms",
                                                      "rebuild_ms", "restore_ms", "total_ms"};

static struct rec_generation *at(struct rec_watch *w, uint64_t number)
{
    struct rec_generation *g = &w->generations[number % REC_GENERATIONS];
    if (g->number < number)
        *g = (struct rec_generation){.number = number};
    return g->number == number ? g : NULL;
}

const struct rec_generation *rec_watch_generation(struct rec_watch *w, uint64_t number)
{
    return at(w, number);
}

static double real_of(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static int64_t integer_of(const json_t *object, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(object, key));
}

static void take_metrics(struct rec_watch *w, const json_t *line)
{
    struct rec_generation *g = at(w, (uint64_t)integer_of(line, "generation"));
    int64_t step = integer_of(line, "step");
    double time = real_of(line, "time"), step_ms = real_of(line, "step_ms");
    if (step <= w->step)
        w->steps_repeated++;
    /* Without a duration it is a step of the generation before, whose writer did not live to log
     * it: when it was completed is not known. */
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

static void take_event(struct rec_watch *w, const json_t *line)
{
    struct rec_generation *g = at(w, (uint64_t)integer_of(line, "generation"));
    const char *kind = json_string_value(json_object_get(line, "kind"));
    w->steps_lost += integer_of(line, "steps_lost");
    if (!g)
        return;
    g->has_event = true;
    g->event_steps_lost = integer_of(line, "steps_lost");
    (void)snprintf(g->kind, sizeof g->kind, "%s", kind ? kind : "");
    for (int p = 0; p < REC_PHASE_COUNT; p++)
        g->phase_ms[p] = real_of(line, rec_phase_names[p]);
}

/* `2026-01-02T03:04:05.678Z I dpt-rdzv: …: forming generation 7: why`. */
static void take_server(struct rec_watch *w, const char *line)
{
    static const char mark[] = ": forming generation ";
    const char *found = strstr(line, mark);
    struct tm tm = {0};
    const char *fraction = found ? strptime(line, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
    if (!fraction)
        return;
    uint64_t number = strtoull(found + sizeof mark - 1, NULL, 10);
    struct rec_generation *g = at(w, number);
    if (g && g->forming <= 0)
        g->forming = (double)timegm(&tm) + strtod(fraction, NULL);
    if (number > w->newest_forming)
        w->newest_forming = number;
}

/* The next whole line without its newline; NULL when there is none yet. */
static const char *next_line(struct rec_tail *t)
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

static enum dpt_status poll_records(struct rec_watch *w, struct rec_tail *tail,
                                    void (*take)(struct rec_watch *, const json_t *),
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

enum dpt_status rec_watch_poll(struct rec_watch *w, struct dpt_err *err)
{
    for (const char *line; (line = next_line(&w->server));)
        take_server(w, line);
    DPT_TRY(poll_records(w, &w->metrics, take_metrics, err));
    return poll_records(w, &w->events, take_event, err);
}

enum dpt_status rec_watch_init(struct rec_watch *w, const char *dir, struct dpt_err *err)
{
    *w = (struct rec_watch){0};
    DPT_TRY(dpt_fs_join(dir, "rdzv.log", w->server.path, sizeof w->server.path, err));
    DPT_TRY(dpt_fs_join(dir, "log/metrics.jsonl", w->metrics.path, sizeof w->metrics.path, err));
    return dpt_fs_join(dir, "log/events.jsonl", w->events.path, sizeof w->events.path, err);
}

void rec_watch_fini(struct rec_watch *w)
{
    struct rec_tail *tails[] = {&w->metrics, &w->events, &w->server};
    for (int i = 0; i < 3; i++)
        if (tails[i]->file)
            (void)fclose(tails[i]->file);
    *w = (struct rec_watch){0};
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double rec_watch_median_step_ms(const struct rec_watch *w)
{
    double sorted[REC_STEP_TIMES];
    size_t n = w->steps_timed < REC_STEP_TIMES ? (size_t)w->steps_timed : REC_STEP_TIMES;
    memcpy(sorted, w->step_ms, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    return n > 0 ? sorted[n / 2] : 0;
}
