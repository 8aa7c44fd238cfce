/* Memory that is available, and memory of this process (memory.h). */
#include "base/memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096, LINE_BYTES = 4352 };

/* Opens dir/name; NULL when there is no such file. */
static FILE *open_in(const char *dir, const char *name)
{
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return NULL;
    return fopen(path, "r");
}

/* The number after `key` in a file of lines "key number …"; -1: there is none. If `key` is "", the
 * file has only the number. */
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

/* Like read_number, but 0 if there is no number. */
static int64_t read_count(const char *dir, const char *name, const char *key)
{
    const int64_t number = read_number(dir, name, key);
    return number > 0 ? number : 0;
}

/* Which part of a control group's memory counts as used. */
enum group_use {
    USE_NONE,         /* none: the whole limit is left */
    USE_NOW,          /* all but inactive pages of files, which the kernel reclaims first */
    USE_WITHOUT_FILES /* all but pages of files; shared memory (tmpfs) counts */
};

/* Bytes that the control group in `dir` leaves; -1: it has no limit. */
static int64_t left_in_group(const char *dir, enum group_use use)
{
    const int64_t max = read_number(dir, "memory.max", "");
    int64_t used = use == USE_NONE ? 0 : read_number(dir, "memory.current", "");
    if (max < 0 || used < 0)
        return -1;
    if (use == USE_NOW)
        used -= read_count(dir, "memory.stat", "inactive_file ");
    if (use == USE_WITHOUT_FILES)
        used += read_count(dir, "memory.stat", "shmem ") - read_count(dir, "memory.stat", "file ");
    used = used > 0 ? used : 0;
    return used < max ? max - used : 0;
}

/* Whether the list "a,b,c" has the controller. Version 2 has an empty list, and "". */
static bool has_controller(const char *list, size_t bytes, const char *controller)
{
    const size_t length = strlen(controller);
    for (size_t at = 0; at <= bytes;) {
        size_t end = at;
        while (end < bytes && list[end] != ',')
            end++;
        if (end - at == length && memcmp(list + at, controller, length) == 0)
            return true;
        at = end + 1;
    }
    return false;
}

/* Reads this process's control group, "/a/b", in the hierarchy of the controller; "": of version 2.
 * False: the process has none there. */
static bool read_own_group(const char *root, const char *controller, char ret[PATH_BYTES])
{
    char line[LINE_BYTES];
    bool found = false;
    FILE *f = open_in(root, "proc/self/cgroup");
    while (f && !found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        const char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        if (group && has_controller(list + 1, (size_t)(group - list) - 1, controller))
            found = snprintf(ret, PATH_BYTES, "%s", group + 1) < PATH_BYTES;
    }
    if (f)
        (void)fclose(f);
    return found;
}

/* The sum of the fields `memory` and `swap` (NULL: no swap) of /proc/meminfo, in bytes. `memory` is
 * at most what the control groups of this process leave. 0: the kernel does not say. */
static int64_t read_memory(const char *root, const char *memory, const char *swap,
                           enum group_use use)
{
    char path[PATH_BYTES], group[PATH_BYTES];
    const int64_t kib = read_number(root, "proc/meminfo", memory);
    const int64_t swap_bytes = swap ? read_count(root, "proc/meminfo", swap) * 1024 : 0;
    int64_t bytes = kib * 1024;
    if (kib < 0)
        return 0;
    /* A limit holds for all groups below it: each pass removes the last part of the path. */
    char *end = read_own_group(root, "", group) ? group + strlen(group) : NULL;
    for (; end; end = strrchr(group, '/')) {
        *end = '\0';
        if (snprintf(path, sizeof path, "%s/sys/fs/cgroup%s", root, group) < (int)sizeof path) {
            const int64_t left = left_in_group(path, use);
            bytes = left >= 0 && left < bytes ? left : bytes;
        }
    }
    return bytes + swap_bytes;
}

int64_t dpt_memory_available(const char *root)
{
    return read_memory(root, "MemAvailable:", NULL, USE_NOW);
}

int64_t dpt_memory_at_most(const char *root)
{
    return read_memory(root, "MemAvailable:", "SwapFree:", USE_WITHOUT_FILES);
}

int64_t dpt_memory_of_machine(const char *root)
{
    return read_memory(root, "MemTotal:", "SwapTotal:", USE_NONE);
}

/* The number of ends in `file` of this process's group; -1: no group up to the root of the
 * hierarchy has the file. Inside a container the path may be a path of the host, although the mount
 * begins at the container's group. */
static int64_t count_group_kills(const char *root, const char *controller, const char *mount,
                                 const char *file)
{
    char path[PATH_BYTES], group[PATH_BYTES];
    int64_t kills = -1;
    char *end = read_own_group(root, controller, group) ? group + strlen(group) : NULL;
    for (; end && kills < 0; end = strrchr(group, '/')) {
        *end = '\0';
        if (snprintf(path, sizeof path, "%s%s%s", root, mount, group) < (int)sizeof path)
            kills = read_number(path, file, "oom_kill ");
    }
    return kills;
}

int64_t dpt_memory_oom_kills(const char *root)
{
    int64_t kills = count_group_kills(root, "", "/sys/fs/cgroup", "memory.events");
    if (kills < 0)
        kills = count_group_kills(root, "memory", "/sys/fs/cgroup/memory", "memory.oom_control");
    return kills >= 0 ? kills : read_number(root, "proc/vmstat", "oom_kill ");
}

/* Reads the file once, so that all numbers are of one moment. */
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
