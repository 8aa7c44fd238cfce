/* Temporary folders of tests: under $TMPDIR, else /tmp. A test removes its folder in a teardown, so
 * that a failed test leaves none behind. */
#ifndef DPT_TESTS_TMP_H
#define DPT_TESTS_TMP_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

static inline bool test_make_dir_in(const char *base, char *ret, size_t ret_bytes, const char *name)
{
    int length = snprintf(ret, ret_bytes, "%s/dpt-%s-XXXXXX", base, name);
    bool fits = length > 0 && (size_t)length < ret_bytes;
    if (fits && mkdtemp(ret) != NULL)
        return true;
    (void)fprintf(stderr, "no temporary folder dpt-%s in %s%s\n", name, base,
                  fits ? "" : ": the path is too long");
    ret[0] = '\0';
    return false;
}

/* Makes a new folder dpt-NAME-XXXXXX; `ret` is its path. If it cannot be made or its path is too
 * long, prints the reason on stderr, empties `ret` and returns false. */
static inline bool test_make_dir(char *ret, size_t ret_bytes, const char *name)
{
    const char *base = getenv("TMPDIR");
    return test_make_dir_in(base && base[0] ? base : "/tmp", ret, ret_bytes, name);
}

/* The same in memory (/dev/shm), if it has 1 GiB free; for tests that need no disk. */
static inline bool test_make_memory_dir(char *ret, size_t ret_bytes, const char *name)
{
    enum { ROOM_BYTES = 1 << 30 };
    static const char base[] = "/dev/shm";
    struct statvfs room;
    if (access(base, W_OK) == 0 && statvfs(base, &room) == 0 &&
        room.f_bavail * room.f_frsize >= ROOM_BYTES)
        return test_make_dir_in(base, ret, ret_bytes, name);
    return test_make_dir(ret, ret_bytes, name);
}

#endif
