/* After creation the communicator takes no memory from the system: malloc and mmap, as its code
 * calls them, are counted. */
#include "tests/worker/comm/comm_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

#include <cmocka.h>

/* The linker sends the calls of this program's objects here (--wrap), by these names.
   NOLINTBEGIN(bugprone-reserved-identifier) */
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);

static atomic_int calls;

void *__wrap_malloc(size_t bytes)
{
    atomic_fetch_add(&calls, 1);
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    atomic_fetch_add(&calls, 1);
    return __real_calloc(n, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    atomic_fetch_add(&calls, 1);
    return __real_realloc(old, bytes);
}

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    atomic_fetch_add(&calls, 1);
    return __real_mmap(address, bytes, protection, flags, fd, offset);
}

/* NOLINTEND(bugprone-reserved-identifier) */

static void steps(struct rank *self)
{
    enum { PART = 300000 };
    struct dpt_comm_mem *mem;
    CHECK_OK(dpt_comm_mem_create(self->listener, 3 * PART, &mem, &self->err), &self->err);
    struct dpt_comm *comm = world_comm(self, 1);
    uint8_t mine[2000] = {0}, all[3 * 2000];
    pthread_barrier_wait(&self->world->barrier);
    const int before = atomic_load(&calls);
    pthread_barrier_wait(&self->world->barrier);
    for (int i = 0; i < 50; i++) {
        CHECK_OK(world_gather(self, comm, mem, (const size_t[]){0, PART, 2 * PART},
                              (const size_t[]){PART, PART, PART}),
                 &self->err);
        CHECK_OK(dpt_comm_small_all_gather(comm, mine, 100, all, &self->err), &self->err);
        CHECK_OK(dpt_comm_small_all_gather(comm, mine, 2000, all, &self->err), &self->err);
    }
    pthread_barrier_wait(&self->world->barrier);
    CHECK(atomic_load(&calls) == before);
    pthread_barrier_wait(&self->world->barrier);
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
}

static void no_allocation_after_creation(void **state)
{
    (void)state;
    struct world mixed = {.size = 3, .hosts = {0, 0, 1}};
    struct world relays = {.size = 3, .hosts = {0, 0, 1}, .mesh_max = 2};
    world_run_threads(&mixed, steps);
    world_run_threads(&relays, steps);
    assert_true(atomic_load(&calls) > 0); /* the counting works */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_allocation_after_creation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
