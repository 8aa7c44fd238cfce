/* Registered memory that is given back to the system in parts and taken again: which pages go, what
 * counts, what peers read, and a system that refuses. */
#include "base/account.h"
#include "tests/worker/comm/comm_world.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 9, LARGE = 300 }; /* the last page is not whole */

/* The linker sends the calls of this program's objects here (--wrap), by these names.
   NOLINTBEGIN(bugprone-reserved-identifier) */
int __real_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __real_posix_fallocate(int fd, off_t offset, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __wrap_posix_fallocate(int fd, off_t offset, off_t bytes);

static atomic_bool takes_none, gives_none; /* the system */

int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    if (!atomic_load(&takes_none))
        return __real_fallocate(fd, mode, offset, bytes);
    errno = EOPNOTSUPP;
    return -1;
}

int __wrap_posix_fallocate(int fd, off_t offset, off_t bytes)
{
    return atomic_load(&gives_none) ? ENOSPC : __real_posix_fallocate(fd, offset, bytes);
}

/* NOLINTEND(bugprone-reserved-identifier) */

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Pages [first, first + n) of it that are there and have been touched. */
static int pages_of(const struct dpt_comm_mem *mem, size_t first, size_t n)
{
    unsigned char there[LARGE];
    int found = 0;
    CHECK(n <= LARGE);
    uint8_t *data = dpt_comm_mem_data(mem);
    CHECK(mincore(data + first * page_bytes(), n * page_bytes(), there) == 0);
    for (size_t i = 0; i < n; i++)
        found += there[i] & 1;
    return found;
}

/* A listener with an account, and memory of PAGES pages less 100 bytes, full of ones. */
struct scene {
    struct dpt_account account;
    struct dpt_comm_listener *listener;
    struct dpt_comm_mem *mem;
    size_t bytes;
    int64_t reserved; /* by the listener itself */
};

static void begin(struct scene *s)
{
    struct dpt_err err;
    struct dpt_memory_use use;
    *s = (struct scene){.bytes = PAGES * page_bytes() - 100};
    CHECK_OK(dpt_comm_listener_create("127.0.0.1", &s->listener, &err), &err);
    dpt_comm_listener_set_account(s->listener, &s->account);
    dpt_account_read(&s->account, &use);
    s->reserved = use.reserved;
    CHECK_OK(
        dpt_comm_mem_create_returnable(s->listener, DPT_MEMORY_WEIGHTS, s->bytes, &s->mem, &err),
        &err);
    memset(dpt_comm_mem_data(s->mem), 1, s->bytes);
}

/* So many bytes count, in so many pages. */
static void expect(const struct scene *s, size_t bytes, size_t pages)
{
    struct dpt_memory_use use;
    dpt_account_read(&s->account, &use);
    assert_int_equal(use.tag[DPT_MEMORY_WEIGHTS], bytes);
    assert_int_equal(use.reserved - s->reserved, pages * page_bytes());
    assert_int_equal(pages_of(s->mem, 0, PAGES), pages);
}

static void end(struct scene *s)
{
    struct dpt_memory_use use;
    dpt_comm_mem_destroy(&s->mem);
    dpt_comm_listener_destroy(&s->listener);
    dpt_account_read(&s->account, &use);
    assert_int_equal(use.all, 0);
    assert_int_equal(use.reserved, 0);
}

/* Bytes [first, end) are all `value`. */
static void are(const struct scene *s, size_t first, size_t end_at, uint8_t value)
{
    const uint8_t *data = dpt_comm_mem_data(s->mem);
    for (size_t i = first; i < end_at; i++)
        if (data[i] != value)
            fail_msg("byte %zu is %d, not %d", i, data[i], value);
}

/* What is kept stays as it is, page by page and where a page is shared; the rest comes back zeroed.
 */
static void only_whole_pages_go(void **state)
{
    (void)state;
    struct scene s;
    struct dpt_err err;
    begin(&s);
    const size_t page = page_bytes(), all = dpt_comm_listener_bytes(s.listener);
    expect(&s, s.bytes, PAGES);
    dpt_comm_mem_give_back(s.mem, 0, page / 2); /* no whole page: none goes */
    expect(&s, s.bytes - page / 2, PAGES);
    dpt_comm_mem_give_back(s.mem, page + 1, 3 * page); /* pages 2 and 3 */
    expect(&s, s.bytes - page / 2 - 3 * page, PAGES - 2);
    dpt_comm_mem_give_back(s.mem, 6 * page, s.bytes - 6 * page); /* to the end */
    expect(&s, 6 * page - page / 2 - 3 * page, PAGES - 5);
    assert_int_equal(all - dpt_comm_listener_bytes(s.listener), 5 * page);
    are(&s, page / 2, page + 1, 1);
    are(&s, 4 * page + 1, 6 * page, 1);
    assert_int_equal(pages_of(s.mem, 2, 2) + pages_of(s.mem, 6, 3), 0); /* looking took none */
    CHECK_OK(dpt_comm_mem_take_back(s.mem, &err), &err);
    assert_int_equal(dpt_comm_listener_bytes(s.listener), all);
    are(&s, 2 * page, 4 * page, 0);
    are(&s, 4 * page, 6 * page, 1);
    are(&s, 6 * page, s.bytes, 0);
    expect(&s, s.bytes, PAGES);
    CHECK_OK(dpt_comm_mem_take_back(s.mem, &err), &err); /* there is nothing more */
    expect(&s, s.bytes, PAGES);
    end(&s);
}

/* Another account gets what there is, not what there was. */
static void an_account_takes_over_what_is_there(void **state)
{
    (void)state;
    struct scene s;
    struct dpt_account other = {.all = {.now = 0}};
    struct dpt_memory_use use;
    begin(&s);
    dpt_comm_mem_give_back(s.mem, 0, 2 * page_bytes());
    dpt_comm_listener_set_account(s.listener, &other);
    dpt_account_read(&s.account, &use);
    assert_int_equal(use.all, 0);
    assert_int_equal(use.reserved, 0);
    dpt_account_read(&other, &use);
    assert_int_equal(use.tag[DPT_MEMORY_WEIGHTS], s.bytes - 2 * page_bytes());
    dpt_comm_listener_set_account(s.listener, &s.account);
    end(&s); /* while a part is given back */
}

/* Its bytes stay, and count. */
static void a_system_that_takes_none(void **state)
{
    (void)state;
    struct scene s;
    struct dpt_err err;
    begin(&s);
    atomic_store(&takes_none, true);
    dpt_comm_mem_give_back(s.mem, 0, s.bytes);
    atomic_store(&takes_none, false);
    expect(&s, s.bytes, PAGES);
    CHECK_OK(dpt_comm_mem_take_back(s.mem, &err), &err);
    are(&s, 0, s.bytes, 1);
    end(&s);
}

/* Running out is an error, and no signal; what was given back may be asked for again. */
static void a_system_that_gives_none(void **state)
{
    (void)state;
    struct scene s;
    struct dpt_err err;
    begin(&s);
    const size_t page = page_bytes();
    dpt_comm_mem_give_back(s.mem, page, 4 * page);
    atomic_store(&gives_none, true);
    CHECK_STATUS(DPT_ENOMEM, dpt_comm_mem_take_back(s.mem, &err), &err);
    assert_non_null(strstr(err.text, "reserve shared memory of"));
    atomic_store(&gives_none, false);
    expect(&s, s.bytes - 4 * page, PAGES - 4);
    CHECK_OK(dpt_comm_mem_take_back(s.mem, &err), &err);
    are(&s, page, 5 * page, 0);
    expect(&s, s.bytes, PAGES);
    end(&s);
}

/* Each sends its own third to all others, again and again, and keeps nothing else in between. */
static void thirds(struct rank *self)
{
    enum { SIZE = 3, ROUNDS = 4 };
    struct dpt_comm_mem *mem;
    const size_t third = LARGE / SIZE * page_bytes();
    CHECK_OK(dpt_comm_mem_create_returnable(self->listener, DPT_MEMORY_COMM, SIZE * third, &mem,
                                            &self->err),
             &self->err);
    uint8_t *data = dpt_comm_mem_data(mem);
    const size_t offsets[] = {0, third, 2 * third}, bytes[] = {third, third, third};
    struct dpt_comm *comm = world_comm(self, 1);
    for (int round = 1; round <= ROUNDS; round++) {
        memset(data + offsets[self->rank], 10 * round + self->rank, third);
        CHECK_OK(dpt_comm_mem_take_back(mem, &self->err), &self->err);
        CHECK_OK(dpt_comm_all_gather_v(comm, mem, offsets, bytes, &self->err), &self->err);
        for (int r = 0; r < SIZE; r++)
            for (size_t i = 0; i < third; i += 1021)
                CHECK(data[offsets[r] + i] == 10 * round + r);
        while (dpt_comm_poll(comm, NULL, -1, &self->err) == DPT_INPROGRESS)
            continue;
        for (int r = 0; r < SIZE; r++)
            if (r != self->rank)
                dpt_comm_mem_give_back(mem, offsets[r], third);
        pthread_barrier_wait(&self->world->barrier);
        CHECK(pages_of(mem, 0, LARGE) == LARGE / SIZE);
        pthread_barrier_wait(&self->world->barrier);
    }
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
}

static void peers_read_what_is_kept(void **state)
{
    (void)state;
    struct world one_host = {.size = 3}, hosts = {.size = 3, .hosts = {0, 1, 0}};
    world_run_threads(&one_host, thirds);
    world_run_threads(&hosts, thirds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_whole_pages_go),
        cmocka_unit_test(an_account_takes_over_what_is_there),
        cmocka_unit_test(a_system_that_takes_none),
        cmocka_unit_test(a_system_that_gives_none),
        cmocka_unit_test(peers_read_what_is_kept),
    };
    return cmocka_run_group_tests_name("comm_return", tests, NULL, NULL);
}
