/* The lists of a step's outputs. The next step uses their memory again, so that an idle server
 * allocates nothing. */
#include "rendezvous/core/outbox.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 64 * 1024, ALIGN = 16, KEPT_CHUNKS_MAX = 64, LIST_MIN = 16 };

/* Chunks are filled one after the other; `filling` is the present one. */

struct chunk {
    struct chunk *next;
    size_t used, bytes;
    _Alignas(ALIGN) unsigned char data[];
};

void dpt_outbox_reset(struct outbox *out)
{
    size_t kept = 0;
    for (struct chunk **at = &out->chunks; *at != NULL;) {
        struct chunk *chunk = *at;
        chunk->used = 0;
        if (++kept <= KEPT_CHUNKS_MAX && chunk->bytes == CHUNK_BYTES) {
            at = &chunk->next;
        } else {
            *at = chunk->next;
            free(chunk);
        }
    }
    out->filling = out->chunks;
    out->n_sends = out->n_records = out->n_logs = 0;
    out->no_memory = false;
}

void dpt_outbox_fini(struct outbox *out)
{
    while (out->chunks != NULL) {
        struct chunk *next = out->chunks->next;
        free(out->chunks);
        out->chunks = next;
    }
    *out = (struct outbox){0};
}

/* Adds a chunk behind the present one. NULL: no memory. */
static struct chunk *add_chunk(struct outbox *out, size_t need)
{
    const size_t size = need > CHUNK_BYTES ? need : CHUNK_BYTES;
    struct chunk *chunk = malloc(sizeof *chunk + size);
    if (chunk == NULL) {
        out->no_memory = true;
        return NULL;
    }
    struct chunk **at = out->filling != NULL ? &out->filling->next : &out->chunks;
    *chunk = (struct chunk){.next = *at, .bytes = size};
    *at = chunk;
    return chunk;
}

void *dpt_outbox_alloc(struct outbox *out, size_t bytes)
{
    const size_t need = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    struct chunk *chunk = out->filling;
    if (chunk == NULL || chunk->bytes - chunk->used < need) {
        chunk = chunk != NULL && chunk->next != NULL && need <= CHUNK_BYTES ? chunk->next
                                                                            : add_chunk(out, need);
        if (chunk == NULL)
            return NULL;
        out->filling = chunk;
    }
    void *at = chunk->data + chunk->used;
    chunk->used += need;
    return memset(at, 0, need);
}

char *dpt_outbox_text(struct outbox *out, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = dpt_outbox_alloc(out, bytes);
    if (copy != NULL)
        memcpy(copy, text, bytes);
    return copy;
}

/* Makes room for one more element in a list, which doubles when it is full. NULL: no memory. */
static void *grow_list(struct outbox *out, void *list, size_t n, size_t element_bytes)
{
    const bool is_full = n == 0 || (n >= LIST_MIN && (n & (n - 1)) == 0);
    if (!is_full)
        return list;
    void *bigger = dpt_outbox_alloc(out, (n == 0 ? LIST_MIN : 2 * n) * element_bytes);
    if (bigger != NULL && n > 0)
        memcpy(bigger, list, n * element_bytes);
    return bigger;
}

void dpt_outbox_send(struct outbox *out, uint64_t conn, const Dpt__ServerState *message)
{
    out->sends = grow_list(out, out->sends, out->n_sends, sizeof out->sends[0]);
    if (!out->no_memory)
        out->sends[out->n_sends++] = (struct dpt_rdzv_send){.conn = conn, .message = message};
}

static const struct dpt_rdzv_member *copy_members(struct outbox *out,
                                                  const struct dpt_rdzv_record *record)
{
    struct dpt_rdzv_member *members =
        dpt_outbox_alloc(out, (record->n_members + 1) * sizeof members[0]);
    for (size_t i = 0; members != NULL && i < record->n_members; i++) {
        members[i] = record->members[i];
        members[i].node = dpt_outbox_text(out, record->members[i].node);
        members[i].rack = dpt_outbox_text(out, record->members[i].rack);
    }
    return members;
}

struct dpt_rdzv_record *dpt_outbox_record(struct outbox *out, const struct dpt_rdzv_record *record)
{
    struct dpt_rdzv_record copy = *record;
    const char **const texts[] = {&copy.run,         &copy.text,   &copy.cause,
                                  &copy.node,        &copy.host,   &copy.fingerprint,
                                  &copy.data_digest, &copy.folder, &copy.digest};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        *texts[i] = dpt_outbox_text(out, *texts[i] != NULL ? *texts[i] : "");
    copy.members = copy_members(out, record);
    out->records = grow_list(out, out->records, out->n_records, sizeof out->records[0]);
    if (out->no_memory)
        return NULL;
    out->records[out->n_records] = copy;
    return &out->records[out->n_records++];
}

void dpt_outbox_log(struct outbox *out, struct dpt_rdzv_log_line line)
{
    line.run = dpt_outbox_text(out, line.run);
    line.text = dpt_outbox_text(out, line.text);
    out->logs = grow_list(out, out->logs, out->n_logs, sizeof out->logs[0]);
    if (!out->no_memory)
        out->logs[out->n_logs++] = line;
}
