/* A log of allocations (memory_log.h). */
#include "base/memory_log.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct dpt_memory_log {
    pthread_mutex_t mutex;
    struct dpt_memory_piece *piece; /* [n_pieces], oldest first */
    size_t n_pieces, pieces_max;
    struct dpt_memory_event *event; /* a ring: event i of all is at i % events_max */
    int64_t n_events;               /* of all */
    size_t events_max;
    int64_t allocations, dropped_pieces;
};

enum dpt_status dpt_memory_log_create(size_t pieces_max, size_t events_max,
                                      struct dpt_memory_log **ret, struct dpt_err *err)
{
    struct dpt_memory_log *log = calloc(1, sizeof *log);
    if (!log)
        return dpt_fail_nomem(err, "log of allocations");
    DPT_ASSERT(pieces_max > 0 && events_max > 0 && pthread_mutex_init(&log->mutex, NULL) == 0);
    log->piece = calloc(pieces_max, sizeof *log->piece);
    log->event = calloc(events_max, sizeof *log->event);
    log->pieces_max = pieces_max;
    log->events_max = events_max;
    if (!log->piece || !log->event) {
        dpt_memory_log_destroy(&log);
        return dpt_fail_nomem(err, "log of allocations");
    }
    *ret = log;
    return DPT_OK;
}

void dpt_memory_log_destroy(struct dpt_memory_log **log)
{
    if (!*log)
        return;
    (void)pthread_mutex_destroy(&(*log)->mutex);
    free((*log)->piece);
    free((*log)->event);
    free(*log);
    *log = NULL;
}

static void add_event(struct dpt_memory_log *log, const struct dpt_memory_piece *piece,
                      bool released)
{
    log->event[(size_t)log->n_events++ % log->events_max] =
        (struct dpt_memory_event){.piece = *piece, .released = released, .at_ns = dpt_now_ns()};
}

void dpt_memory_log_allocate(struct dpt_memory_log *log, const struct dpt_memory_piece *piece)
{
    struct dpt_memory_piece own = *piece;
    (void)pthread_mutex_lock(&log->mutex);
    own.number = ++log->allocations;
    if (log->n_pieces < log->pieces_max)
        log->piece[log->n_pieces++] = own;
    else
        log->dropped_pieces++;
    add_event(log, &own, false);
    (void)pthread_mutex_unlock(&log->mutex);
}

/* The oldest piece with these numbers. A device frees memory before it counts the release, so that
 * another thread may have been given the same address already. */
static size_t find_piece(const struct dpt_memory_log *log, const struct dpt_memory_piece *piece)
{
    size_t i = 0;
    while (i < log->n_pieces &&
           !(log->piece[i].at == piece->at && log->piece[i].tag == piece->tag &&
             log->piece[i].bytes == piece->bytes))
        i++;
    return i;
}

void dpt_memory_log_release(struct dpt_memory_log *log, const struct dpt_memory_piece *piece)
{
    (void)pthread_mutex_lock(&log->mutex);
    const size_t i = find_piece(log, piece);
    if (i < log->n_pieces) { /* else it had no room, or came before the log */
        add_event(log, &log->piece[i], true);
        memmove(&log->piece[i], &log->piece[i + 1], (--log->n_pieces - i) * sizeof *log->piece);
    }
    (void)pthread_mutex_unlock(&log->mutex);
}

enum dpt_status dpt_memory_log_read(struct dpt_memory_log *log, struct dpt_memory_history *ret,
                                    struct dpt_err *err)
{
    struct dpt_memory_history h = {.piece = calloc(log->pieces_max, sizeof *h.piece),
                                   .event = calloc(log->events_max, sizeof *h.event)};
    if (!h.piece || !h.event) {
        dpt_memory_history_fini(&h);
        return dpt_fail_nomem(err, "snapshot of memory");
    }
    (void)pthread_mutex_lock(&log->mutex);
    const int64_t max = (int64_t)log->events_max,
                  first = log->n_events > max ? log->n_events - max : 0;
    h.n_pieces = log->n_pieces;
    memcpy(h.piece, log->piece, h.n_pieces * sizeof *h.piece);
    for (int64_t i = first; i < log->n_events; i++)
        h.event[h.n_events++] = log->event[i % max];
    h.dropped = first + log->dropped_pieces;
    (void)pthread_mutex_unlock(&log->mutex);
    *ret = h;
    return DPT_OK;
}

void dpt_memory_history_fini(struct dpt_memory_history *history)
{
    free(history->piece);
    free(history->event);
    *history = (struct dpt_memory_history){.piece = NULL};
}
