/* Keeps oneDNN's calls off the heap.
 *
 * dnnl_primitive_execute builds a hash map of its arguments and a few shared pointers in every
 * call. It asks C++'s operator new for about eight blocks of 32 to 104 bytes and frees them before
 * it returns. A training step makes thousands of these calls, and the rule "no allocation inside
 * the step" includes libraries: it keeps a step's time and memory constant, and a test can count
 * allocations.
 *
 * The library has no hook for its allocations, but the C++ standard lets a program replace operator
 * new. This file defines it, under its Itanium ABI names because the project is C. While a thread
 * is inside a call (dpt_cells_enter), small requests take a cell: a block of fixed size from a
 * static store, through a free list of the thread. All other requests, and all requests outside of
 * a call, go to malloc. Operator delete tells cells from other memory by the address.
 *
 * Under sanitizers this file defines no operator new, because they bring their own. */
#include "kernels/cpu/cells.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CELLS_OFF 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
#define CELLS_OFF 1
#endif
#endif

#ifdef CELLS_OFF

void dpt_cells_enter(void)
{
}

void dpt_cells_leave(void)
{
}

void dpt_cells_thread_end(void)
{
}

#else

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    CELL_BYTES = 128,
    CELLS_MAX = 8192,     /* 1 MiB of address space; 32 cells for each of 256 threads */
    CELLS_PER_REFILL = 16 /* twice what one call needs */
};

union cell {
    union cell *next;
    _Alignas(64) unsigned char bytes[CELL_BYTES];
};

static union cell store[CELLS_MAX];
static atomic_int store_used;
static pthread_mutex_t returned_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(union cell *) returned; /* cells of threads that ended; changed under the lock */

static _Thread_local int depth;
static _Thread_local union cell *mine;

void dpt_cells_enter(void)
{
    depth++;
}

void dpt_cells_leave(void)
{
    depth--;
}

void dpt_cells_thread_end(void)
{
    pthread_mutex_lock(&returned_lock);
    while (mine) {
        union cell *c = mine;
        mine = c->next;
        c->next = atomic_load(&returned);
        atomic_store(&returned, c);
    }
    pthread_mutex_unlock(&returned_lock);
}

static void refill_cells(void)
{
    if (atomic_load(&returned)) {
        pthread_mutex_lock(&returned_lock);
        mine = atomic_exchange(&returned, NULL);
        pthread_mutex_unlock(&returned_lock);
        if (mine)
            return;
    }
    int at = atomic_load(&store_used);
    do {
        if (at + CELLS_PER_REFILL > CELLS_MAX)
            return;
    } while (!atomic_compare_exchange_weak(&store_used, &at, at + CELLS_PER_REFILL));
    for (int i = 0; i < CELLS_PER_REFILL; i++) {
        store[at + i].next = mine;
        mine = &store[at + i];
    }
}

static void *cell_new(size_t bytes)
{
    if (depth > 0 && bytes <= CELL_BYTES) {
        if (!mine)
            refill_cells();
        if (mine) {
            union cell *c = mine;
            mine = c->next;
            return c;
        }
    }
    return malloc(bytes ? bytes : 1);
}

static void cell_delete(void *p)
{
    uintptr_t at = (uintptr_t)p, from = (uintptr_t)store;
    if (at >= from && at < from + sizeof store) {
        union cell *c = p;
        c->next = mine;
        mine = c;
        return;
    }
    free(p);
}

/* Ends the process if p is NULL: C cannot throw std::bad_alloc, and a process that cannot get a few
 * bytes cannot go on. */
static void *or_abort(void *p)
{
    if (!p) {
        fputs("dpt: out of memory in a C++ library\n", stderr);
        abort();
    }
    return p;
}

static void *aligned_new(size_t bytes, size_t align)
{
    void *p = NULL;
    if (align <= 64 && depth > 0 && bytes <= CELL_BYTES)
        return cell_new(bytes);
    if (align < sizeof(void *))
        align = sizeof(void *);
    return posix_memalign(&p, align, bytes ? bytes : 1) == 0 ? p : NULL;
}

/* Operator new: plain, array, nothrow and aligned forms. The names are the ABI's. An operator with
 * a tag of type nothrow_t returns NULL when memory is short, one without it ends the process. */
#define OPERATOR_NEW(name, parameters, memory)                                                     \
    void *name parameters;                                                                         \
    void *name parameters                                                                          \
    {                                                                                              \
        return memory;                                                                             \
    }
OPERATOR_NEW(_Znwm, (size_t bytes), or_abort(cell_new(bytes)))
OPERATOR_NEW(_Znam, (size_t bytes), or_abort(cell_new(bytes)))
OPERATOR_NEW(_ZnwmRKSt9nothrow_t, (size_t bytes, const void *tag), ((void)tag, cell_new(bytes)))
OPERATOR_NEW(_ZnamRKSt9nothrow_t, (size_t bytes, const void *tag), ((void)tag, cell_new(bytes)))
OPERATOR_NEW(_ZnwmSt11align_val_t, (size_t bytes, size_t align),
             or_abort(aligned_new(bytes, align)))
OPERATOR_NEW(_ZnamSt11align_val_t, (size_t bytes, size_t align),
             or_abort(aligned_new(bytes, align)))
OPERATOR_NEW(_ZnwmSt11align_val_tRKSt9nothrow_t, (size_t bytes, size_t align, const void *tag),
             ((void)tag, aligned_new(bytes, align)))
OPERATOR_NEW(_ZnamSt11align_val_tRKSt9nothrow_t, (size_t bytes, size_t align, const void *tag),
             ((void)tag, aligned_new(bytes, align)))

/* Operator delete ignores all parameters except the pointer. */
#define OPERATOR_DELETE(name, parameters, ...)                                                     \
    void name parameters;                                                                          \
    void name parameters                                                                           \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
        cell_delete(p);                                                                            \
    }
OPERATOR_DELETE(_ZdlPv, (void *p), )
OPERATOR_DELETE(_ZdaPv, (void *p), )
OPERATOR_DELETE(_ZdlPvm, (void *p, size_t bytes), (void)bytes)
OPERATOR_DELETE(_ZdaPvm, (void *p, size_t bytes), (void)bytes)
OPERATOR_DELETE(_ZdlPvRKSt9nothrow_t, (void *p, const void *tag), (void)tag)
OPERATOR_DELETE(_ZdaPvRKSt9nothrow_t, (void *p, const void *tag), (void)tag)
OPERATOR_DELETE(_ZdlPvSt11align_val_t, (void *p, size_t align), (void)align)
OPERATOR_DELETE(_ZdaPvSt11align_val_t, (void *p, size_t align), (void)align)
OPERATOR_DELETE(_ZdlPvmSt11align_val_t, (void *p, size_t bytes, size_t align), (void)bytes,
                (void)align)
OPERATOR_DELETE(_ZdaPvmSt11align_val_t, (void *p, size_t bytes, size_t align), (void)bytes,
                (void)align)

#endif
