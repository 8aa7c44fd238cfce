/* A snapshot of memory for memory_viz (memory_snapshot.h). */
#include "worker/trace/memory_snapshot.h"

#include "worker/trace/pickle.h"

#include <stdlib.h>

/* Blocks of one allocation: more than a model has parameters. */
enum { BLOCKS_MAX = 8192 };

struct printer {
    const struct dpt_snapshot *snapshot;
    FILE *out;
    struct dpt_snapshot_block *room; /* [BLOCKS_MAX] */
};

/* The address of an allocation. One without a single address gets a number above all addresses of
 * user space, and below 2^53, which JavaScript's numbers hold exactly. */
static int64_t address_of(const struct dpt_memory_piece *piece)
{
    const int64_t above = (int64_t)1 << 48, apart = (int64_t)1 << 32;
    return piece->at ? (int64_t)(uintptr_t)piece->at : above + piece->number % (1 << 20) * apart;
}

static void put_frames(FILE *out, const char *purpose, const char *name)
{
    dpt_pickle_text(out, "frames");
    dpt_pickle_list(out);
    dpt_pickle_dict(out);
    dpt_pickle_set_text(out, "filename", purpose);
    dpt_pickle_set_int(out, "line", 0);
    dpt_pickle_set_text(out, "name", name);
    dpt_pickle_append(out);
    dpt_pickle_set(out);
}

/* ---- the content of an allocation ---- */

static struct dpt_snapshot_content content_of(const struct printer *p, int device,
                                              const struct dpt_memory_piece *piece, bool exists)
{
    struct dpt_snapshot_content content = {
        .purpose = dpt_memory_tag_name(piece->tag), .block = p->room, .n_max = BLOCKS_MAX};
    if (exists && p->snapshot->describe)
        p->snapshot->describe(p->snapshot->ctx, device, piece, &content);
    if (content.n == 0) {
        content.block[content.n++] =
            (struct dpt_snapshot_block){.bytes = piece->bytes, .used = piece->bytes};
        (void)snprintf(content.block[0].name, DPT_SNAPSHOT_NAME_BYTES, "%s", content.purpose);
    }
    return content;
}

/* ---- segments ---- */

struct sizes {
    size_t active, requested;
};

/* A block of `bytes` bytes; `used` 0: no tensor is in it. */
static void put_block(const struct printer *p, const char *purpose, int64_t at,
                      const struct dpt_snapshot_block *block, size_t bytes)
{
    dpt_pickle_dict(p->out);
    dpt_pickle_set_int(p->out, "address", at);
    dpt_pickle_set_int(p->out, "size", (int64_t)bytes);
    dpt_pickle_set_int(p->out, "requested_size", (int64_t)block->used);
    dpt_pickle_set_text(p->out, "state", block->used > 0 ? "active_allocated" : "inactive");
    put_frames(p->out, purpose, block->name);
    dpt_pickle_append(p->out);
}

/* The blocks together have the bytes that the system gave: the last block ends with them. */
static struct sizes put_blocks(const struct printer *p, const struct dpt_memory_piece *piece,
                               const struct dpt_snapshot_content *content)
{
    struct sizes sizes = {0, 0};
    size_t at = 0;
    dpt_pickle_text(p->out, "blocks");
    dpt_pickle_list(p->out);
    for (size_t i = 0; i < content->n; i++) {
        const struct dpt_snapshot_block *block = &content->block[i];
        const size_t bytes = i + 1 < content->n ? block->bytes : piece->reserved - at;
        put_block(p, content->purpose, address_of(piece) + (int64_t)at, block, bytes);
        sizes.active += block->used > 0 ? bytes : 0;
        sizes.requested += block->used;
        at += bytes;
    }
    dpt_pickle_set(p->out);
    return sizes;
}

static void put_segment(const struct printer *p, int device, const struct dpt_memory_piece *piece)
{
    const struct dpt_snapshot_content content = content_of(p, device, piece, true);
    dpt_pickle_dict(p->out);
    dpt_pickle_set_int(p->out, "device", device);
    dpt_pickle_set_int(p->out, "address", address_of(piece));
    dpt_pickle_set_int(p->out, "total_size", (int64_t)piece->reserved);
    dpt_pickle_set_int(p->out, "stream", 0);
    dpt_pickle_set_text(p->out, "segment_type", "large");
    dpt_pickle_text(p->out, "segment_pool_id");
    dpt_pickle_int(p->out, 0);
    dpt_pickle_int(p->out, 0);
    dpt_pickle_pair(p->out);
    dpt_pickle_set(p->out);
    dpt_pickle_text(p->out, "is_expandable");
    dpt_pickle_bool(p->out, false);
    dpt_pickle_set(p->out);
    put_frames(p->out, content.purpose, content.purpose);
    const struct sizes sizes = put_blocks(p, piece, &content);
    dpt_pickle_set_int(p->out, "allocated_size", (int64_t)sizes.active);
    dpt_pickle_set_int(p->out, "active_size", (int64_t)sizes.active);
    dpt_pickle_set_int(p->out, "requested_size", (int64_t)sizes.requested);
    dpt_pickle_append(p->out);
}

/* ---- traces ---- */

struct entry {
    const char *action, *purpose, *name;
    int64_t at, bytes;
};

static void put_entry(const struct printer *p, const struct dpt_memory_event *event,
                      const struct entry *entry)
{
    dpt_pickle_dict(p->out);
    dpt_pickle_set_text(p->out, "action", entry->action);
    dpt_pickle_set_int(p->out, "addr", entry->at);
    dpt_pickle_set_int(p->out, "size", entry->bytes);
    dpt_pickle_set_int(p->out, "stream", 0);
    dpt_pickle_set_int(p->out, "time_us", event->at_ns / 1000);
    put_frames(p->out, entry->purpose, entry->name);
    dpt_pickle_append(p->out);
}

static void put_allocation(const struct printer *p, const struct dpt_memory_event *event,
                           const struct dpt_snapshot_content *content)
{
    struct entry entry = {"segment_alloc", content->purpose, content->purpose,
                          address_of(&event->piece), (int64_t)event->piece.reserved};
    put_entry(p, event, &entry);
    entry.action = "alloc";
    for (size_t i = 0; i < content->n; i++) {
        entry.name = content->block[i].name;
        entry.bytes = (int64_t)content->block[i].used;
        if (entry.bytes > 0)
            put_entry(p, event, &entry);
        entry.at += (int64_t)content->block[i].bytes;
    }
}

static void put_release(const struct printer *p, const struct dpt_memory_event *event)
{
    const char *purpose = dpt_memory_tag_name(event->piece.tag);
    struct entry entry = {"free_requested", purpose, purpose, address_of(&event->piece),
                          (int64_t)event->piece.bytes};
    put_entry(p, event, &entry);
    entry.action = "free_completed";
    put_entry(p, event, &entry);
    entry.action = "segment_free";
    entry.bytes = (int64_t)event->piece.reserved;
    put_entry(p, event, &entry);
}

static int compare_numbers(const void *left, const void *right)
{
    const struct dpt_memory_piece *a = left, *b = right;
    return (a->number > b->number) - (a->number < b->number);
}

static void put_trace(const struct printer *p, int device)
{
    const struct dpt_memory_history *h = &p->snapshot->history[device];
    dpt_pickle_list(p->out);
    for (size_t i = 0; i < h->n_events; i++) {
        const struct dpt_memory_event *event = &h->event[i];
        if (event->released) {
            put_release(p, event);
            continue;
        }
        const bool exists = bsearch(&event->piece, h->piece, h->n_pieces, sizeof *h->piece,
                                    compare_numbers) != NULL;
        const struct dpt_snapshot_content content = content_of(p, device, &event->piece, exists);
        put_allocation(p, event, &content);
    }
    dpt_pickle_append(p->out);
}

enum dpt_status dpt_snapshot_print(const struct dpt_snapshot *snapshot, FILE *out,
                                   struct dpt_err *err)
{
    const struct printer p = {snapshot, out, calloc(BLOCKS_MAX, sizeof *p.room)};
    if (!p.room)
        return dpt_fail_nomem(err, "snapshot of memory");
    dpt_pickle_begin(out);
    dpt_pickle_dict(out);
    dpt_pickle_text(out, "segments");
    dpt_pickle_list(out);
    for (int d = 0; d < snapshot->n_devices; d++)
        for (size_t i = 0; i < snapshot->history[d].n_pieces; i++)
            put_segment(&p, d, &snapshot->history[d].piece[i]);
    dpt_pickle_set(out);
    dpt_pickle_text(out, "device_traces");
    dpt_pickle_list(out);
    for (int d = 0; d < snapshot->n_devices; d++)
        put_trace(&p, d);
    dpt_pickle_set(out);
    dpt_pickle_end(out);
    free(p.room);
    return DPT_OK;
}
