/* Registered memory: sealed memory of its owner, which peers of the host map (comm.h). */
#include "base/memory.h"
#include "worker/comm/listener.h"
#include "worker/comm/sealed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int free_region(const struct dpt_comm_listener *listener)
{
    for (int i = 0; i < COMM_REGIONS; i++)
        if (listener->mems[i] == NULL)
            return i;
    return -1;
}

static enum dpt_status map_pages(const struct dpt_comm_mem *mem, struct sealed_memory *ret,
                                 struct dpt_err *err)
{
    const int64_t available = dpt_memory_at_most("");
    /* Checked here, because the kernel kills processes instead of refusing the allocation. */
    if (available > 0 && mem->map_bytes > (size_t)available)
        return dpt_fail(err, DPT_ENOMEM,
                        "shared memory of %zu bytes is more than this machine or its control group "
                        "has available",
                        mem->bytes);
    return dpt_sealed_create(mem->map_bytes, mem->open, ret, err);
}

enum dpt_status dpt_comm_mem_create_for(struct dpt_comm_listener *listener, enum dpt_memory_tag tag,
                                        bool open, size_t bytes, struct dpt_comm_mem **ret,
                                        struct dpt_err *err)
{
    DPT_ASSERT(listener->comms == 0);
    const int region = free_region(listener);
    if (region < 0)
        return dpt_fail(err, DPT_EOVERFLOW, "more than %d registered memory regions",
                        DPT_COMM_REGIONS_MAX);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes == 0 || bytes > SIZE_MAX / 2)
        return dpt_fail(err, DPT_EINVAL, "register memory of %zu bytes", bytes);
    struct dpt_comm_mem *mem = calloc(1, sizeof *mem);
    if (mem == NULL)
        return dpt_fail_nomem(err, "registered memory");
    *mem = (struct dpt_comm_mem){.listener = listener,
                                 .region = region,
                                 .fd = -1,
                                 .bytes = bytes,
                                 .tag = tag,
                                 .open = open,
                                 .map_bytes = (bytes + page - 1) / page * page};
    struct sealed_memory pages;
    const enum dpt_status status = map_pages(mem, &pages, err);
    if (status != DPT_OK) {
        free(mem);
        return status;
    }
    mem->fd = pages.fd;
    mem->data = pages.data;
    listener->mems[region] = mem;
    dpt_account_add(listener->account, tag, mem->data, bytes, mem->map_bytes);
    *ret = mem;
    return DPT_OK;
}

enum dpt_status dpt_comm_mem_create(struct dpt_comm_listener *listener, size_t bytes,
                                    struct dpt_comm_mem **ret, struct dpt_err *err)
{
    return dpt_comm_mem_create_for(listener, DPT_MEMORY_COMM, false, bytes, ret, err);
}

size_t dpt_comm_listener_bytes(const struct dpt_comm_listener *listener)
{
    size_t bytes = 0;
    for (int i = 0; i < COMM_REGIONS; i++)
        bytes += listener->mems[i] != NULL ? listener->mems[i]->map_bytes : 0;
    return bytes;
}

void dpt_comm_listener_set_account(struct dpt_comm_listener *listener, struct dpt_account *account)
{
    DPT_ASSERT(listener->comms == 0);
    for (int i = 0; i < COMM_REGIONS; i++) {
        const struct dpt_comm_mem *mem = listener->mems[i];
        if (mem == NULL)
            continue;
        dpt_account_sub(listener->account, mem->tag, mem->data, mem->bytes, mem->map_bytes);
        dpt_account_add(account, mem->tag, mem->data, mem->bytes, mem->map_bytes);
    }
    listener->account = account;
}

enum dpt_status dpt_comm_mem_exchange(struct dpt_comm_mem *mem, struct dpt_err *err)
{
    struct sealed_memory pages;
    DPT_TRY(map_pages(mem, &pages, err));
    memcpy(pages.data, mem->data, mem->bytes);
    if (mremap(pages.data, mem->map_bytes, mem->map_bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
               mem->data) == MAP_FAILED) {
        const int saved_errno = errno;
        munmap(pages.data, mem->map_bytes);
        close(pages.fd);
        return dpt_fail_errno(err, saved_errno, "exchange the pages of shared memory");
    }
    close(mem->fd);
    mem->fd = pages.fd;
    return DPT_OK;
}

void dpt_comm_mem_destroy(struct dpt_comm_mem **mem_p)
{
    struct dpt_comm_mem *mem = *mem_p;
    *mem_p = NULL;
    if (mem == NULL)
        return;
    DPT_ASSERT(mem->listener->comms == 0 || mem->withdrawn);
    munmap(mem->data, mem->map_bytes);
    close(mem->fd);
    mem->listener->mems[mem->region] = NULL;
    dpt_account_sub(mem->listener->account, mem->tag, mem->data, mem->bytes, mem->map_bytes);
    free(mem);
}

void *dpt_comm_mem_data(const struct dpt_comm_mem *mem)
{
    return mem->data;
}

size_t dpt_comm_mem_bytes(const struct dpt_comm_mem *mem)
{
    return mem->bytes;
}
