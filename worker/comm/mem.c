/* Registered memory: a sealed memfd mapped by its owner, which peers of the host map (comm.h). The
 * seals promise them that it never shrinks under their reads, and, unless it is open, that no other
 * process ever writes it. */
#include "worker/comm/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

static int free_region(const struct dpt_comm_listener *listener)
{
    for (int i = 0; i < COMM_REGIONS; i++)
        if (listener->mems[i] == NULL)
            return i;
    return -1;
}

/* Memory that can be had without ending somebody; SIZE_MAX where the kernel does not say. */
static size_t available_bytes(void)
{
    unsigned long long kib;
    char line[128];
    size_t bytes = SIZE_MAX;
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL)
        return bytes;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            bytes = (size_t)kib * 1024;
    (void)fclose(file); /* read only: nothing can be lost */
    return bytes;
}

/* Fills fd and data; both are the caller's to give back, also after a failure. */
static enum dpt_status map(struct dpt_comm_mem *mem, struct dpt_err *err)
{
    mem->fd = memfd_create("dpt-comm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (mem->fd < 0)
        return dpt_fail_errno(err, errno, "create shared memory of %zu bytes", mem->bytes);
    /* Takes the pages now: running out is an error here, not a signal later. The kernel would kill
       processes before it refused. */
    if (mem->map_bytes > available_bytes())
        return dpt_fail(err, DPT_ENOMEM,
                        "shared memory of %zu bytes is more than this machine has available",
                        mem->bytes);
    const int rc = posix_fallocate(mem->fd, 0, (off_t)mem->map_bytes);
    if (rc != 0)
        return dpt_fail_errno(err, rc, "reserve shared memory of %zu bytes", mem->bytes);
    void *data =
        mmap(NULL, mem->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, mem->fd, 0);
    if (data == MAP_FAILED)
        return dpt_fail_errno(err, errno, "map shared memory of %zu bytes", mem->bytes);
    mem->data = data;
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
    const int others = mem->open ? 0 : F_SEAL_FUTURE_WRITE;
    if (fcntl(mem->fd, F_ADD_SEALS, seals | others) != 0 &&
        fcntl(mem->fd, F_ADD_SEALS, seals) != 0) /* Linux before 5.1 knows the first two only */
        return dpt_fail_errno(err, errno, "seal shared memory");
    return DPT_OK;
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
        return dpt_fail(err, DPT_ENOMEM, "register memory");
    *mem = (struct dpt_comm_mem){.listener = listener,
                                 .region = region,
                                 .fd = -1,
                                 .bytes = bytes,
                                 .tag = tag,
                                 .open = open,
                                 .map_bytes = (bytes + page - 1) / page * page};
    listener->mems[region] = mem;
    dpt_account_add(listener->account, tag, bytes, mem->map_bytes);
    const enum dpt_status status = map(mem, err);
    if (status != DPT_OK) {
        dpt_comm_mem_destroy(&mem);
        return status;
    }
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
        dpt_account_sub(listener->account, mem->tag, mem->bytes, mem->map_bytes);
        dpt_account_add(account, mem->tag, mem->bytes, mem->map_bytes);
    }
    listener->account = account;
}

enum dpt_status dpt_comm_mem_exchange(struct dpt_comm_mem *mem, struct dpt_err *err)
{
    struct dpt_comm_mem other = *mem;
    other.data = NULL;
    enum dpt_status status = map(&other, err);
    if (status == DPT_OK) {
        memcpy(other.data, mem->data, mem->bytes);
        if (mremap(other.data, mem->map_bytes, mem->map_bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                   mem->data) == MAP_FAILED)
            status = dpt_fail_errno(err, errno, "put shared memory in another's place");
    }
    if (status == DPT_OK) {
        close(mem->fd);
        mem->fd = other.fd;
        return DPT_OK;
    }
    if (other.data != NULL)
        munmap(other.data, mem->map_bytes);
    if (other.fd >= 0)
        close(other.fd);
    return status;
}

void dpt_comm_mem_destroy(struct dpt_comm_mem **mem_p)
{
    struct dpt_comm_mem *mem = *mem_p;
    *mem_p = NULL;
    if (mem == NULL)
        return;
    DPT_ASSERT(mem->listener->comms == 0 || mem->withdrawn);
    if (mem->data != NULL)
        munmap(mem->data, mem->map_bytes);
    if (mem->fd >= 0)
        close(mem->fd);
    mem->listener->mems[mem->region] = NULL;
    dpt_account_sub(mem->listener->account, mem->tag, mem->bytes, mem->map_bytes);
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
