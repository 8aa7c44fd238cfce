/* Reads what this machine offers (machine.h). */
#include "worker/doctor/machine.h"

#include "base/cores.h"
#include "base/memory.h"
#include "base/numa.h"
#include "worker/doctor/sysfs.h"

#include <limits.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { CPUINFO_LINES_MAX = 64, LINE_BYTES = 8192 };

static bool has_flag(const char *flags, const char *flag)
{
    const size_t length = strlen(flag);
    for (const char *at = flags; *at != '\0';) {
        at += strspn(at, " \t");
        const size_t bytes = strcspn(at, " \t\n");
        if (bytes == length && strncmp(at, flag, length) == 0)
            return true;
        at += bytes;
        at += *at == '\n';
    }
    return false;
}

const char *dpt_machine_isa(const char *flags)
{
    if (!has_flag(flags, "avx2") || !has_flag(flags, "fma") || !has_flag(flags, "f16c"))
        return "plain";
    return has_flag(flags, "avx512f") && has_flag(flags, "avx512vl") &&
                   has_flag(flags, "avx512dq") && has_flag(flags, "avx512bw")
               ? "avx512"
               : "avx2";
}

/* The first core's description: /proc/cpuinfo has lines "key : value". */
static void read_cpu(const char *root, struct dpt_machine *ret)
{
    static char line[LINE_BYTES];
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%.3000s/proc/cpuinfo", root);
    FILE *file = fopen(path, "re");
    for (int i = 0; file && i < CPUINFO_LINES_MAX && fgets(line, sizeof line, file); i++) {
        const char *value = strchr(line, ':');
        if (!value)
            continue;
        value += strspn(value, ": \t");
        if (strncmp(line, "model name", 10) == 0)
            (void)snprintf(ret->cpu, sizeof ret->cpu, "%.*s", (int)strcspn(value, "\n"), value);
        else if (strncmp(line, "flags", 5) == 0)
            (void)snprintf(ret->isa, sizeof ret->isa, "%s", dpt_machine_isa(value));
    }
    if (file)
        (void)fclose(file);
}

static void read_text(const char *root, const char *folder, const char *name,
                      char ret[DPT_MACHINE_TEXT_BYTES])
{
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%.3000s%s", root, folder);
    dpt_sysfs_text(path, name, ret);
}

/* The third number of a line "4096 131072 6291456"; -1: there is none. */
static int64_t third_number(const char *root, const char *name)
{
    char text[DPT_MACHINE_TEXT_BYTES];
    long long least, usual, most;
    read_text(root, "/proc/sys/net/ipv4", name, text);
    return sscanf(text, "%lld %lld %lld", &least, &usual, &most) == 3 ? most : -1;
}

static int64_t limit_of(rlim_t limit)
{
    return limit == RLIM_INFINITY || limit > (rlim_t)INT64_MAX ? INT64_MAX : (int64_t)limit;
}

/* Of this process. */
static void read_cores_and_limits(struct dpt_machine *ret)
{
    struct rlimit limit;
    struct dpt_numa numa;
    dpt_numa_read(DPT_NUMA_SYS, &numa);
    ret->numa_nodes = numa.n;
    ret->cores = dpt_cores();
    ret->cores_online = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        ret->files = limit_of(limit.rlim_cur);
        ret->files_hard = limit_of(limit.rlim_max);
    }
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0)
        ret->locked = limit_of(limit.rlim_cur);
}

static void read_shared_memory(const char *root, struct dpt_machine *ret)
{
    struct statfs shm;
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%.3000s/dev/shm", root);
    ret->shm = ret->shm_free = -1;
    /* A copy of the folder lies on a disk, whose size says nothing. */
    if (statfs(path, &shm) != 0 || shm.f_type != TMPFS_MAGIC)
        return;
    ret->shm = (int64_t)shm.f_blocks * (int64_t)shm.f_bsize;
    ret->shm_free = (int64_t)shm.f_bavail * (int64_t)shm.f_bsize;
}

void dpt_machine_read(const char *root, struct dpt_machine *ret)
{
    *ret = (struct dpt_machine){.files = -1, .files_hard = -1, .locked = -1};
    read_cpu(root, ret);
    if (root[0] == '\0')
        read_cores_and_limits(ret);
    read_text(root, "/sys/devices/system/cpu/cpu0/cpufreq", "scaling_governor", ret->governor);
    read_text(root, "/sys/devices/system/clocksource/clocksource0", "current_clocksource",
              ret->clock);
    ret->memory = dpt_memory_of_machine(root);
    ret->available = dpt_memory_available(root);
    read_shared_memory(root, ret);
    ret->send_buffer = third_number(root, "tcp_wmem");
    ret->receive_buffer = third_number(root, "tcp_rmem");
}
