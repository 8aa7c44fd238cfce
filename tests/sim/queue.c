/* Random numbers and the event queue: a binary heap by time, equal times in order of pushing. */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

uint64_t rng_next(struct rng *rng)
{
    uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t rng_range(struct rng *rng, int64_t low, int64_t high)
{
    DPT_ASSERT(low <= high);
    return low + (int64_t)(rng_next(rng) % (uint64_t)(high - low + 1));
}

bool rng_chance(struct rng *rng, int permille)
{
    return permille > 0 && rng_range(rng, 0, 999) < permille;
}

static bool before(const struct event *a, const struct event *b)
{
    return a->at_ms != b->at_ms ? a->at_ms < b->at_ms : a->order < b->order;
}

struct event event_copy(const struct event *event)
{
    struct event copy = *event;
    if (event->data == NULL)
        return copy;
    copy.data = malloc(event->bytes + 1);
    DPT_ASSERT(copy.data != NULL);
    memcpy(copy.data, event->data, event->bytes);
    return copy;
}

void queue_push(struct queue *queue, const struct event *event)
{
    if (queue->n == queue->max) {
        queue->max = queue->max == 0 ? 1024 : 2 * queue->max;
        queue->heap = realloc(queue->heap, queue->max * sizeof queue->heap[0]);
        DPT_ASSERT(queue->heap != NULL);
    }
    struct event added = *event;
    if (added.order == 0) /* a postponed event keeps its place among those of its time */
        added.order = ++queue->order;
    size_t at = queue->n++;
    while (at > 0 && before(&added, &queue->heap[(at - 1) / 2])) {
        queue->heap[at] = queue->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    queue->heap[at] = added;
}

void queue_pop(struct queue *queue, struct event *ret)
{
    DPT_ASSERT(queue->n > 0);
    *ret = queue->heap[0];
    struct event last = queue->heap[--queue->n];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= queue->n)
            break;
        if (child + 1 < queue->n && before(&queue->heap[child + 1], &queue->heap[child]))
            child++;
        if (!before(&queue->heap[child], &last))
            break;
        queue->heap[at] = queue->heap[child];
        at = child;
    }
    if (queue->n > 0)
        queue->heap[at] = last;
}

void queue_fini(struct queue *queue)
{
    for (size_t i = 0; i < queue->n; i++)
        free(queue->heap[i].data);
    free(queue->heap);
    *queue = (struct queue){0};
}
