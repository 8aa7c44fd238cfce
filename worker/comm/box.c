/* Messages through shared memory (box.h). */
#include "worker/comm/box.h"

#include "worker/comm/sealed.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum dpt_status dpt_box_create(struct box *box, struct dpt_err *err)
{
    struct sealed_memory own;
    *box = (struct box){.fd = -1};
    DPT_TRY(dpt_sealed_create(sizeof *box->own, false, &own, err));
    box->fd = own.fd;
    box->own = own.data;
    return DPT_OK;
}

void dpt_box_destroy(struct box *box)
{
    if (box->own != NULL)
        munmap(box->own, sizeof *box->own);
    if (box->other != NULL)
        munmap((void *)(uintptr_t)box->other, sizeof *box->other);
    if (box->fd >= 0)
        close(box->fd);
    *box = (struct box){.fd = -1};
}

enum dpt_status dpt_box_attach(struct box *box, int fd, struct dpt_err *err)
{
    struct stat st;
    if (box->other != NULL || fd < 0 || !dpt_sealed_keeps_size(fd) || fstat(fd, &st) != 0 ||
        st.st_size != (off_t)sizeof *box->other)
        return dpt_fail(err, DPT_EPROTO, "the descriptor it passed is no message box");
    void *other = mmap(NULL, sizeof *box->other, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (other == MAP_FAILED)
        return dpt_fail_errno(err, errno, "map a message box");
    box->other = other;
    return DPT_OK;
}

bool dpt_box_has_room(struct box *box)
{
    if (box->put - box->other_read < BOX_SLOTS)
        return true;
    if (box->other != NULL)
        box->other_read = atomic_load(&box->other->read);
    return box->put - box->other_read < BOX_SLOTS;
}

bool dpt_box_put(struct box *box, const struct box_message *message, const void *payload)
{
    if (!dpt_box_has_room(box))
        return false;
    struct box_slot *slot = &box->own->slots[box->put % BOX_SLOTS];
    if (payload != NULL) {
        DPT_ASSERT(message->bytes <= DPT_COMM_BUF_BYTES_MAX);
        memcpy(box->own->payloads[box->payloads_put++ % BOX_PAYLOADS], payload,
               (size_t)message->bytes);
    }
    slot->message = *message;
    atomic_store(&slot->number, ++box->put);
    box->did_put = true;
    return true;
}

bool dpt_box_has_mail(const struct box *box)
{
    return box->other != NULL &&
           atomic_load(&box->other->slots[box->got % BOX_SLOTS].number) == box->got + 1;
}

bool dpt_box_get(struct box *box, uint16_t payload_type, struct box_message *ret,
                 uint8_t ret_payload[DPT_COMM_BUF_BYTES_MAX])
{
    if (!dpt_box_has_mail(box))
        return false;
    *ret = box->other->slots[box->got % BOX_SLOTS].message;
    if (ret->type == payload_type) {
        const size_t bytes =
            ret->bytes < DPT_COMM_BUF_BYTES_MAX ? (size_t)ret->bytes : DPT_COMM_BUF_BYTES_MAX;
        memcpy(ret_payload, box->other->payloads[box->payloads_got++ % BOX_PAYLOADS], bytes);
    }
    atomic_store(&box->own->read, ++box->got);
    box->did_get = true;
    return true;
}

void dpt_box_sleep(struct box *box, bool wants_room)
{
    const uint32_t sleeps = atomic_load_explicit(&box->own->rest, memory_order_relaxed) / BOX_SLEEP;
    atomic_store(&box->own->rest, (sleeps + 1) * BOX_SLEEP + BOX_ASLEEP +
                                      (wants_room ? (uint32_t)BOX_WANTS_ROOM : 0));
}

void dpt_box_awake(struct box *box)
{
    const uint32_t rest = atomic_load_explicit(&box->own->rest, memory_order_relaxed);
    atomic_store_explicit(&box->own->rest, rest / BOX_SLEEP * BOX_SLEEP, memory_order_relaxed);
}

bool dpt_box_must_wake(struct box *box)
{
    if ((!box->did_put && !box->did_get) || box->other == NULL)
        return false;
    const uint32_t rest = atomic_load(&box->other->rest);
    const bool awaited = box->did_put || (rest & BOX_WANTS_ROOM) != 0;
    box->did_put = box->did_get = false;
    if (!(rest & BOX_ASLEEP) || !awaited || rest == box->woken)
        return false;
    box->woken = rest;
    return true;
}

bool dpt_box_write_begin(struct box *box)
{
    atomic_store(&box->own->writing, 1);
    if (atomic_load(&box->other->shut) == 0)
        return true;
    dpt_box_write_end(box);
    return false;
}

void dpt_box_write_end(struct box *box)
{
    atomic_store_explicit(&box->own->writing, 0, memory_order_release);
}

void dpt_box_shut(struct box *box)
{
    atomic_store(&box->own->shut, 1);
}

bool dpt_box_is_written(const struct box *box)
{
    return box->other != NULL && atomic_load(&box->other->writing) != 0;
}
