/* Available memory, and a process's own (memory.h). */
#include "base/memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096, LINE_BYTES = 4352, GROUP_DEPTH_MAX = 64 };

/* Opens dir/name; NULL when there is no such file. */
static FILE *open_in(const char *dir, const char *name)
{
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return NULL;
    return fopen(path, "r");
}

/* The number after `key` in a file of lines "key number …"; -1 when there is none. With key "" the
 * file is the number alone. */
static int64_t read_number(const char *dir, const char *name, const char *key)
{
    char line[LINE_BYTES];
    const size_t length = strlen(key);
    int64_t found = -1;
    FILE *f = open_in(dir, name);
    while (f && found < 0 && fgets(line, sizeof line, f)) {
        long long value;
        if (strncmp(line, key, length) == 0 && sscanf(line + length, " %lld", &value) == 1)
            found = value;
    }
    if (f)
        (void)fclose(f);
    return found;
}

/* What the control group in `dir` leaves; -1: it has no limit. */
static int64_t left_in_group(const char *dir)
{
    const int64_t max = read_number(dir, "memory.max", "");
    const int64_t current = read_number(dir, "memory.current", "");
    const int64_t files = read_number(dir, "memory.stat", "inactive_file ");
    if (max < 0 || current < 0)
        return -1;
    const int64_t left = max - current + (files > 0 ? files : 0);
    return left > 0 ? left : 0;
}

/* The same with all pages of files given up. Of these shared memory (tmpfs) cannot be. */
static int64_t most_in_group(const char *dir)
{
    const int64_t max = read_number(dir, "memory.max", "");
    const int64_t current = read_number(dir, "memory.current", "");
    const int64_t files = read_number(dir, "memory.stat", "file ");
    const int64_t shared = read_number(dir, "memory.stat", "shmem ");
    if (max < 0 || current < 0)
        return -1;
    const int64_t used = current - (files > 0 ? files : 0) + (shared > 0 ? shared : 0);
    return used < max ? max - (used > 0 ? used : 0) : 0;
}

/* All that the control group in `dir` may have; -1: it has no limit. */
static int64_t max_of_group(const char *dir)
{
    return read_number(dir, "memory.max", "");
}

/* This process's control group, "/a/b"; false when the kernel has no version 2. */
static bool own_group(const char *root, char ret[PATH_BYTES])
{
    char line[LINE_BYTES];
    bool found = false;
    FILE *f = open_in(root, "proc/self/cgroup");
    while (f && !found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::", 3) == 0)
            found = snprintf(ret, PATH_BYTES, "%s", line + 3) < PATH_BYTES;
    }
    if (f)
        (void)fclose(f);
    return found;
}

/* `available`, or less where a control group of this process leaves less by `left_in`. */
static int64_t limit_by_groups(const char *root, int64_t available,
                               int64_t (*left_in)(const char *dir))
{
    char path[PATH_BYTES], group[PATH_BYTES];
    if (!own_group(root, group))
        return available;
    /* A limit holds for all groups below it. */
    for (int depth = 0; depth < GROUP_DEPTH_MAX; depth++) {
        if (snprintf(path, sizeof path, "%s/sys/fs/cgroup%s", root, group) < (int)sizeof path) {
            const int64_t left = left_in(path);
            available = left >= 0 && left < available ? left : available;
        }
        char *slash = strrchr(group, '/');
        if (!slash)
            break;
        *slash = '\0';
    }
    return available;
}

int64_t dpt_memory_available(const char *root)
{
    const int64_t kib = read_number(root, "proc/meminfo", "MemAvailable:");
    return kib < 0 ? 0 : limit_by_groups(root, kib * 1024, left_in_group);
}

int64_t dpt_memory_at_most(const char *root)
{
    const int64_t kib = read_number(root, "proc/meminfo", "MemAvailable:");
    const int64_t swap_kib = read_number(root, "proc/meminfo", "SwapFree:");
    if (kib < 0)
        return 0;
    return limit_by_groups(root, kib * 1024, most_in_group) + (swap_kib > 0 ? swap_kib * 1024 : 0);
}

int64_t dpt_memory_of_machine(const char *root)
{
    const int64_t kib = read_number(root, "proc/meminfo", "MemTotal:");
    const int64_t swap_kib = read_number(root, "proc/meminfo", "SwapTotal:");
    if (kib < 0)
        return 0;
    return limit_by_groups(root, kib * 1024, max_of_group) + (swap_kib > 0 ? swap_kib * 1024 : 0);
}

/* One look at the file: its numbers belong together. */
void dpt_memory_of_process(const char *root, struct dpt_process_memory *ret)
{
    const struct {
        const char *key;
        int64_t *bytes;
    } fields[] = {{"VmHWM:", &ret->peak},
                  {"VmRSS:", &ret->resident},
                  {"RssAnon:", &ret->anon},
                  {"RssFile:", &ret->file},
                  {"RssShmem:", &ret->shared}};
    enum { FIELDS = sizeof fields / sizeof *fields };
    char line[LINE_BYTES];
    for (int i = 0; i < FIELDS; i++)
        *fields[i].bytes = -1;
    FILE *f = open_in(root, "proc/self/status");
    while (f && fgets(line, sizeof line, f))
        for (int i = 0; i < FIELDS; i++) {
            const size_t length = strlen(fields[i].key);
            long long kib;
            if (strncmp(line, fields[i].key, length) == 0 &&
                sscanf(line + length, " %lld", &kib) == 1)
                *fields[i].bytes = kib * 1024;
        }
    if (f)
        (void)fclose(f);
}
