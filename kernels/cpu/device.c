/* The CPU device and its streams: memory, workspace, sticky errors. */
#include "kernels/cpu/cells.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/stream.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* An allocation of MAP_BYTES_MIN or more is mapped, and the system is asked for huge pages. */
enum { MAP_BYTES_MIN = 1 << 22, HUGE_PAGE_BYTES = 1 << 21 };

static const struct dpt_ops cpu_ops = {
#define DPT_OP_VALUES(name, class, parameters, names) .name = dpt_cpu_##name,
#define DPT_OP_QUERY(name, result, parameters, names) .name = dpt_cpu_##name,
#include "kernels/ops.def"
};

static void cpu_destroy(struct dpt_device *dev)
{
    free(dev);
}

static size_t huge_round(size_t bytes)
{
    return (bytes + HUGE_PAGE_BYTES - 1) & ~(size_t)(HUGE_PAGE_BYTES - 1);
}

/* Maps whole huge pages, aligned to a huge page. Maps one more page and unmaps the ends. */
static void *map_huge(size_t bytes)
{
    size_t want = huge_round(bytes), all = want + HUGE_PAGE_BYTES;
    char *p = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    size_t head = (HUGE_PAGE_BYTES - (size_t)((uintptr_t)p % HUGE_PAGE_BYTES)) % HUGE_PAGE_BYTES;
    if (head)
        munmap(p, head);
    if (all - head > want)
        munmap(p + head + want, all - head - want);
    /* Only advice: if the system ignores it, pages are small and results are the same. */
    (void)madvise(p + head, want, MADV_HUGEPAGE);
    return p + head;
}

static size_t cpu_reserved(size_t bytes)
{
    if (bytes >= MAP_BYTES_MIN)
        return huge_round(bytes);
    return bytes ? dpt_round64(bytes) : 64;
}

static enum dpt_status cpu_alloc(struct dpt_device *dev, size_t bytes, void **ret,
                                 struct dpt_err *err)
{
    (void)dev;
    void *p;
    const bool mapped = bytes >= MAP_BYTES_MIN;
    bytes = cpu_reserved(bytes);
    p = mapped ? map_huge(bytes) : aligned_alloc(64, bytes);
    if (!p)
        return dpt_fail_nomem(err, "%zu bytes of CPU memory", bytes);
    bool touched = false;
#ifdef MADV_POPULATE_WRITE
    touched = mapped && madvise(p, bytes, MADV_POPULATE_WRITE) == 0;
#endif
    /* Mapped memory is zero, but the system has not provided its pages yet. */
    if (!touched)
        memset(p, 0, bytes);
    *ret = p;
    return DPT_OK;
}

static void cpu_free(struct dpt_device *dev, void *ptr, size_t bytes)
{
    (void)dev;
    if (bytes >= MAP_BYTES_MIN)
        munmap(ptr, huge_round(bytes));
    else
        free(ptr);
}

static void cpu_stream_destroy(struct dpt_stream *stream)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    dpt_pool_destroy(&s->pool);
    dpt_gemm_engine_destroy(&s->gemm);
    for (int i = 0; i < DPT_WORKSPACE_COUNT; i++)
        dpt_device_free_for(s->base.device, DPT_MEMORY_WORKSPACE, s->workspaces[i].ptr,
                            s->workspaces[i].bytes);
    free(s);
}

/* The operating system schedules threads, so an urgent stream is like any other stream. */
static enum dpt_status cpu_stream_create(struct dpt_device *dev, int threads, bool urgent,
                                         struct dpt_stream **ret, struct dpt_err *err)
{
    struct dpt_cpu_stream *s = calloc(1, sizeof *s);
    (void)urgent;
    if (!s)
        return dpt_fail_nomem(err, "CPU stream");
    s->base.device = dev;
    s->kernels = ((struct dpt_cpu_device *)dev)->kernels;
    s->threads = threads;
    const struct dpt_pool_hooks hooks = {.thread_begin = dpt_gemm_thread_begin,
                                         .thread_end = dpt_cells_thread_end};
    enum dpt_status status = dpt_pool_create(threads, hooks, &s->pool, err);
    if (status == DPT_OK)
        status = dpt_gemm_engine_create(threads, &s->gemm, err);
    if (status != DPT_OK) {
        cpu_stream_destroy(&s->base);
        return status;
    }
    *ret = &s->base;
    return DPT_OK;
}

static void cpu_stream_set_threads(struct dpt_stream *stream, int threads)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    dpt_pool_set_threads(s->pool, threads);
    s->threads = threads;
}

static const struct dpt_device_vtable cpu_vtable = {
    .ops = &cpu_ops,
    .destroy = cpu_destroy,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .reserved = cpu_reserved,
    .stream_create = cpu_stream_create,
    .stream_destroy = cpu_stream_destroy,
    .stream_set_threads = cpu_stream_set_threads,
    .sync = dpt_stream_take_error, /* ops are done when they return */
};

/* Computes the probe's hash once per table of kernels, because the library's choice of kernels is
 * fixed for the process. A process that opens many devices computes it once. */
static enum dpt_status probe_once(struct dpt_cpu_device *dev, uint32_t *ret_hash,
                                  struct dpt_err *err)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    /* The kernels for which `hash` was computed; NULL: none yet. */
    static const struct dpt_cpu_kernels *known;
    static uint32_t hash;
    enum dpt_status status = DPT_OK;
    (void)pthread_mutex_lock(&mutex);
    if (known != dev->kernels)
        status = dpt_cpu_probe(&dev->base, &hash, err);
    if (status == DPT_OK) {
        known = dev->kernels;
        *ret_hash = hash;
    }
    (void)pthread_mutex_unlock(&mutex);
    return status;
}

enum dpt_status dpt_device_cpu_create(struct dpt_device **ret, struct dpt_err *err)
{
    enum dpt_cpu_isa limit;
    DPT_TRY(dpt_cpu_isa_limit(&limit, err));
    return dpt_device_cpu_create_with(dpt_cpu_kernels_best(limit), ret, err);
}

enum dpt_status dpt_device_cpu_create_with(const struct dpt_cpu_kernels *kernels,
                                           struct dpt_device **ret, struct dpt_err *err)
{
    enum dpt_cpu_isa limit;
    char library[40];
    DPT_TRY(dpt_cpu_isa_limit(&limit, err));
    DPT_TRY(dpt_onednn_open(limit, library, sizeof library, err));
    struct dpt_cpu_device *dev = calloc(1, sizeof *dev);
    if (!dev)
        return dpt_fail_nomem(err, "CPU device");
    dev->base.vtable = &cpu_vtable;
    dev->kernels = kernels;
    uint32_t probe;
    enum dpt_status status = probe_once(dev, &probe, err);
    if (status != DPT_OK) {
        free(dev);
        return status;
    }
    snprintf(dev->base.fingerprint, sizeof dev->base.fingerprint, "cpu %s %s probe-%08x",
             dev->kernels->name, library, probe);
    *ret = &dev->base;
    return DPT_OK;
}
