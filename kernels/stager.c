/* Bulk copies through a ring of page-locked places (stager.h). */
#include "kernels/stager.h"

#include "kernels/device_impl.h"
#include "kernels/ops.h"

#include <stdlib.h>

enum { PLACES = DPT_STAGER_PLACES, ALIGN_BYTES = 64 };

struct place {
    char *memory;
    struct dpt_event *copied; /* recorded after the device's copy */
    bool busy;
    void *to; /* host memory; NULL: the copy goes to the device */
    size_t bytes;
};

struct dpt_stager {
    struct dpt_device *device;
    struct dpt_stream *stream, *host_stream;
    const struct dpt_ops *ops, *host_ops;
    struct place place[PLACES];
    int next; /* the oldest place */
    size_t place_bytes;
    void *memory;
};

static size_t place_bytes_of(size_t bytes_max)
{
    if (bytes_max >= DPT_STAGER_PLACE_BYTES_MAX)
        return DPT_STAGER_PLACE_BYTES_MAX;
    return (bytes_max + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

size_t dpt_stager_bytes(size_t bytes_max)
{
    return PLACES * place_bytes_of(bytes_max);
}

enum dpt_status dpt_stager_create(const struct dpt_stager_options *options, struct dpt_stager **ret,
                                  struct dpt_err *err)
{
    struct dpt_stager *s = calloc(1, sizeof *s);
    if (!s)
        return dpt_fail_nomem(err, "a stager of copies");
    DPT_ASSERT(options->bytes_max > 0);
    s->device = options->device;
    s->stream = options->stream;
    s->host_stream = options->host_stream;
    s->ops = dpt_device_ops(options->device);
    s->host_ops = dpt_device_ops(options->host_stream->device);
    s->place_bytes = place_bytes_of(options->bytes_max);
    enum dpt_status status =
        dpt_device_alloc_host(s->device, PLACES * s->place_bytes, &s->memory, err);
    for (int i = 0; i < PLACES && status == DPT_OK; i++) {
        s->place[i].memory = (char *)s->memory + (size_t)i * s->place_bytes;
        status = dpt_event_create(s->device, &s->place[i].copied, err);
    }
    if (status != DPT_OK) {
        dpt_stager_destroy(&s);
        return status;
    }
    *ret = s;
    return DPT_OK;
}

void dpt_stager_destroy(struct dpt_stager **stager)
{
    struct dpt_stager *s = *stager;
    if (!s)
        return;
    for (int i = 0; i < PLACES; i++) {
        if (s->place[i].busy)
            dpt_event_wait(s->place[i].copied, s->stream);
        dpt_event_destroy(&s->place[i].copied);
    }
    dpt_device_free_host(s->device, s->memory, PLACES * s->place_bytes);
    free(s);
    *stager = NULL;
}

/* Completes the copy that uses the place. */
static void empty_place(struct dpt_stager *s, struct place *place)
{
    if (!place->busy)
        return;
    dpt_event_wait(place->copied, s->stream);
    if (place->to)
        s->host_ops->copy(s->host_stream, place->bytes, place->memory, place->to);
    place->busy = false;
}

static struct place *take_oldest(struct dpt_stager *s)
{
    struct place *place = &s->place[s->next];
    s->next = (s->next + 1) % PLACES;
    empty_place(s, place);
    return place;
}

static void post_copy(struct dpt_stager *s, struct place *place, size_t bytes, const void *from,
                      void *device_to, void *host_to)
{
    s->ops->copy(s->stream, bytes, from, device_to);
    dpt_event_record(place->copied, s->stream);
    place->busy = true;
    place->to = host_to;
    place->bytes = bytes;
}

static size_t part_at(const struct dpt_stager *s, size_t bytes, size_t at)
{
    return bytes - at < s->place_bytes ? bytes - at : s->place_bytes;
}

void dpt_stager_to_device(struct dpt_stager *s, size_t bytes, const void *from, void *to)
{
    for (size_t at = 0; at < bytes; at += s->place_bytes) {
        const size_t n = part_at(s, bytes, at);
        struct place *place = take_oldest(s);
        s->host_ops->copy(s->host_stream, n, (const char *)from + at, place->memory);
        post_copy(s, place, n, place->memory, (char *)to + at, NULL);
    }
}

void dpt_stager_to_host(struct dpt_stager *s, size_t bytes, const void *from, void *to)
{
    for (size_t at = 0; at < bytes; at += s->place_bytes) {
        const size_t n = part_at(s, bytes, at);
        struct place *place = take_oldest(s);
        post_copy(s, place, n, (const char *)from + at, place->memory, (char *)to + at);
    }
}

enum dpt_status dpt_stager_finish(struct dpt_stager *s, struct dpt_err *err)
{
    for (int i = 0; i < PLACES; i++)
        (void)take_oldest(s);
    DPT_TRY(dpt_stream_sync(s->host_stream, err));
    return dpt_stream_sync(s->stream, err);
}
