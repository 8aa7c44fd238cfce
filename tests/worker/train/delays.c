/* Delays of known length (delays.h). DPT_TEST_SLOW_READS=US:FILE: before each read of a data file.
 * DPT_TEST_SLOW_WRITES=US:FILE: before each write into a file of a checkpoint, as on a slow disk.
 * DPT_TEST_SLOW_SLOTS (faults.c): in each slot's backward pass. */
#include "tests/worker/train/delays.h"

#include "base/fs.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum dpt_status __real_dpt_fs_pread_all(int fd, void *buf, size_t bytes, int64_t offset,
                                        const char *path, struct dpt_err *err);
enum dpt_status __wrap_dpt_fs_pread_all(int fd, void *buf, size_t bytes, int64_t offset,
                                        const char *path, struct dpt_err *err);

enum dpt_status __real_dpt_io_write(int fd, const void *data, size_t bytes, int64_t offset,
                                    const char *path, struct dpt_err *err);
enum dpt_status __wrap_dpt_io_write(int fd, const void *data, size_t bytes, int64_t offset,
                                    const char *path, struct dpt_err *err);

static int64_t now_ns(clockid_t clock)
{
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void append_delay(const char *path, const int64_t times[2])
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, times, 2 * sizeof *times) != (ssize_t)(2 * sizeof *times) ||
        close(fd) != 0) {
        perror(path);
        abort();
    }
}

void dpt_test_delay(const char *variable)
{
    const char *text = getenv(variable);
    char path[512];
    long us;
    if (!text)
        return;
    if (sscanf(text, "%ld:%511s", &us, path) != 2) {
        (void)fprintf(stderr, "%s is not US:FILE: '%s'\n", variable, text);
        abort();
    }
    int64_t times[2] = {now_ns(CLOCK_REALTIME), 0};
    const int64_t until = now_ns(CLOCK_MONOTONIC) + (int64_t)us * 1000;
    const struct timespec end = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    const clockid_t clock = CLOCK_MONOTONIC;
    while (clock_nanosleep(clock, TIMER_ABSTIME, &end, NULL)) /* tidy: pause of a bounded poll */
        ;
    times[1] = now_ns(CLOCK_REALTIME);
    append_delay(path, times);
}

enum dpt_status __wrap_dpt_fs_pread_all(int fd, void *buf, size_t bytes, int64_t offset,
                                        const char *path, struct dpt_err *err)
{
    dpt_test_delay("DPT_TEST_SLOW_READS");
    return __real_dpt_fs_pread_all(fd, buf, bytes, offset, path, err);
}

enum dpt_status __wrap_dpt_io_write(int fd, const void *data, size_t bytes, int64_t offset,
                                    const char *path, struct dpt_err *err)
{
    dpt_test_delay("DPT_TEST_SLOW_WRITES");
    return __real_dpt_io_write(fd, data, bytes, offset, path, err);
}
