/* Quotas of control groups: see cgroup.h. The files' forms are those of the kernel's
 * Documentation/admin-guide/cgroup-v2.rst (cpu.max), cgroup-v1 and scheduler/sched-bwc.rst. */
#include "base/cgroup.h"

#include "base/fs.h"
#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_BYTES = 1024, LINE_BYTES = 1024, LINES_MAX = 64 };

struct quota {
    double cpus; /* 0: none */
    uint64_t group;
};

static bool read_value(const char *dir, const char *name, char ret[LINE_BYTES])
{
    char path[PATH_BYTES + 32];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return dpt_fs_read_line(path, ret, LINE_BYTES);
}

/* "QUOTA PERIOD", or "max PERIOD" where there is none. */
static double quota_v2(const char *dir)
{
    char line[LINE_BYTES], *end;
    if (!read_value(dir, "cpu.max", line))
        return 0;
    const long long quota = strtoll(line, &end, 10), period = strtoll(end, NULL, 10);
    return end != line && quota > 0 && period > 0 ? (double)quota / (double)period : 0;
}

/* Version 1 has the quota and the period in two files. A quota of -1 means that there is none. */
static double quota_v1(const char *dir)
{
    char quota_text[LINE_BYTES], period_text[LINE_BYTES];
    if (!read_value(dir, "cpu.cfs_quota_us", quota_text) ||
        !read_value(dir, "cpu.cfs_period_us", period_text))
        return 0;
    const long long quota = strtoll(quota_text, NULL, 10), period = strtoll(period_text, NULL, 10);
    return quota > 0 && period > 0 ? (double)quota / (double)period : 0;
}

/* The quotas of a group and of all groups above it, up to the hierarchy's root. Inside a container
 * the path may be a path of the host, although the mount begins at the container's group. So a
 * missing folder counts as a group without a quota. */
static void find_tightest(const char *base, const char *group, double (*quota_of)(const char *dir),
                          struct quota *best)
{
    char dir[PATH_BYTES];
    const size_t base_bytes = strlen(base);
    /* The group may be outside of the namespace, which then shows only its root. */
    const bool outside = strstr(group, "/..") != NULL;
    const int length = snprintf(dir, sizeof dir, "%s%s", base, outside ? "" : group);
    if (length < 0 || (size_t)length >= sizeof dir)
        return;
    for (char *end = dir + length; end; end = strrchr(dir + base_bytes, '/')) {
        struct stat st;
        *end = '\0';
        const double cpus = quota_of(dir);
        if (cpus > 0 && (best->cpus <= 0 || cpus < best->cpus) && stat(dir, &st) == 0) {
            const uint64_t id[] = {(uint64_t)st.st_dev, (uint64_t)st.st_ino};
            *best = (struct quota){.cpus = cpus, .group = dpt_hash128(id, sizeof id).lo};
        }
    }
}

static bool lists_cpu(const char *controllers)
{
    for (const char *c = controllers; *c; c += strcspn(c, ","), c += *c == ',')
        if (strcspn(c, ",") == 3 && memcmp(c, "cpu", 3) == 0)
            return true;
    return false;
}

/* Reads one line, "ID:CONTROLLERS:GROUP". In version 2 CONTROLLERS is empty. */
static void read_membership(char *line, const char *mount, struct quota *best)
{
    char base[PATH_BYTES];
    line[strcspn(line, "\n")] = '\0';
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return;
    *controllers++ = '\0';
    *group++ = '\0';
    if (!*controllers) {
        find_tightest(mount, group, quota_v2, best);
        (void)snprintf(base, sizeof base, "%s/unified", mount); /* if version 1 is mounted, too */
        find_tightest(base, group, quota_v2, best);
    } else if (lists_cpu(controllers)) {
        (void)snprintf(base, sizeof base, "%s/cpu", mount);
        find_tightest(base, group, quota_v1, best);
    }
}

bool dpt_cgroup_quota(const char *membership, const char *mount, double *ret_cpus,
                      uint64_t *ret_group)
{
    struct quota best = {.cpus = 0};
    char line[LINE_BYTES];
    FILE *file = fopen(membership, "re");
    if (!file)
        return false;
    for (int i = 0; i < LINES_MAX && fgets(line, sizeof line, file); i++)
        read_membership(line, mount, &best);
    (void)fclose(file);
    if (best.cpus <= 0)
        return false;
    *ret_cpus = best.cpus;
    *ret_group = best.group;
    return true;
}
