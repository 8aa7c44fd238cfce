/* Judges what this machine offers (machine.h). */
#include "worker/doctor/machine.h"

#include <inttypes.h>
#include <string.h>

#define MIB (INT64_C(1) << 20)
#define GIB (INT64_C(1) << 30)

enum {
    FILES_ENOUGH = 4096,  /* sockets and memory of a rank in a world of 1024 */
    FAST_MBIT = 10000,    /* from here on small TCP buffers cost bandwidth */
    BUFFER_MIB_ENOUGH = 4 /* 10 Gbit/s over a round trip of 3 ms */
};

static const char section[] = "machine";

static struct dpt_finding *add_machine_finding(struct dpt_findings *findings, bool good,
                                               const char *subject, const char *text)
{
    return dpt_findings_add(findings, good ? DPT_FINDING_OK : DPT_FINDING_WARN, section, subject,
                            "%s", text);
}

static void judge_cpu(const struct dpt_machine *m, struct dpt_findings *findings)
{
    const bool known = m->isa[0] != '\0', fast = strcmp(m->isa, "plain") != 0;
    char cores[96] = "";
    if (m->cores > 0)
        (void)snprintf(cores, sizeof cores, "; %d of %d cores usable, %d NUMA node%s", m->cores,
                       m->cores_online, m->numa_nodes, m->numa_nodes == 1 ? "" : "s");
    (void)dpt_findings_add(findings, DPT_FINDING_INFO, section, "cpu", "%s%s",
                           m->cpu[0] != '\0' ? m->cpu : "unknown model", cores);
    struct dpt_finding *isa = dpt_findings_add(findings,
                                               !known ? DPT_FINDING_INFO
                                               : fast ? DPT_FINDING_OK
                                                      : DPT_FINDING_WARN,
                                               section, "instructions", "dpt's kernels: %s",
                                               known ? m->isa : "not known");
    if (!fast)
        dpt_finding_set_remedy(isa, "AVX2, FMA and F16C make training on the CPU several times "
                                    "faster; a virtual machine needs a CPU model that has them");
    /* A run that computes on GPUs needs no fast cores. */
    if (strcmp(m->governor, "powersave") == 0)
        dpt_finding_set_remedy(
            add_machine_finding(findings, false, "cpu frequency", "governor powersave"),
            "cpupower frequency-set -g performance");
}

static void judge_memory(const struct dpt_machine *m, const struct dpt_machine_devices *d,
                         struct dpt_findings *findings)
{
    if (m->memory > 0)
        (void)dpt_findings_add(findings, DPT_FINDING_INFO, section, "memory",
                               "%.1f GiB, %.1f GiB available to this process",
                               (double)m->memory / (double)GIB, (double)m->available / (double)GIB);
    if (m->shm < 0) {
        (void)add_machine_finding(findings, d->gpus < 2, "/dev/shm", "no tmpfs is there");
        return;
    }
    /* dpt's ranks share memory by memfd, which needs no room there. NCCL uses it. */
    const bool small = d->gpus >= 2 && m->shm < GIB;
    struct dpt_finding *shm =
        dpt_findings_add(findings, small ? DPT_FINDING_WARN : DPT_FINDING_OK, section, "/dev/shm",
                         "%" PRId64 " MiB, %" PRId64 " MiB free%s", m->shm / MIB, m->shm_free / MIB,
                         d->gpus >= 2 ? "" : "; only NCCL would use it");
    if (small)
        dpt_finding_set_remedy(shm, "NCCL needs it between GPUs without peer access: "
                                    "docker run --shm-size=1g, or mount -o remount,size=1g "
                                    "/dev/shm");
}

static void print_limit(int64_t limit, char *ret, size_t bytes)
{
    if (limit == INT64_MAX)
        (void)snprintf(ret, bytes, "no limit");
    else
        (void)snprintf(ret, bytes, "%" PRId64, limit);
}

static void judge_limits(const struct dpt_machine *m, const struct dpt_machine_devices *d,
                         struct dpt_findings *findings)
{
    char text[64], number[32];
    if (m->files < 0 || m->locked < 0)
        return;
    print_limit(m->files, number, sizeof number);
    (void)snprintf(text, sizeof text, "%s open files for a process", number);
    if (m->files < FILES_ENOUGH)
        dpt_finding_set_remedy(add_machine_finding(findings, false, "ulimit -n", text),
                               "a rank has a socket for each rank of another machine: "
                               "ulimit -n %d (hard limit: %" PRId64 ")",
                               FILES_ENOUGH, m->files_hard);
    else
        (void)add_machine_finding(findings, true, "ulimit -n", text);
    const bool scarce = d->rdma > 0 && m->locked < GIB;
    print_limit(m->locked == INT64_MAX ? m->locked : m->locked / 1024, number, sizeof number);
    (void)snprintf(text, sizeof text, "%s%s may be locked", number,
                   m->locked == INT64_MAX ? "" : " KiB");
    struct dpt_finding *locked = add_machine_finding(findings, !scarce, "ulimit -l", text);
    if (scarce)
        dpt_finding_set_remedy(locked, "RDMA locks its buffers: ulimit -l unlimited "
                                       "(/etc/security/limits.conf, or docker run --ulimit "
                                       "memlock=-1)");
}

static void judge_clock(const struct dpt_machine *m, struct dpt_findings *findings)
{
    /* A read of these clocks enters the kernel or a slow bus. */
    static const char *const slow[] = {"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"};
    bool is_slow = false;
    for (size_t i = 0; i < sizeof slow / sizeof *slow; i++)
        is_slow = is_slow || strcmp(m->clock, slow[i]) == 0;
    struct dpt_finding *clock = add_machine_finding(findings, !is_slow, "clock source",
                                                    m->clock[0] != '\0' ? m->clock : "not known");
    if (is_slow)
        dpt_finding_set_remedy(clock, "each read of the clock takes about a microsecond; the boot "
                                      "option tsc=reliable keeps the fast one, if the CPU's is "
                                      "constant");
}

static void judge_buffers(const struct dpt_machine *m, const struct dpt_machine_devices *d,
                          struct dpt_findings *findings)
{
    char text[96];
    const int64_t least = m->send_buffer < m->receive_buffer ? m->send_buffer : m->receive_buffer;
    if (least < 0)
        return;
    const bool small = d->fastest_mbit >= FAST_MBIT && least < BUFFER_MIB_ENOUGH * MIB;
    (void)snprintf(text, sizeof text, "at most %.1f MiB to send, %.1f MiB to receive",
                   (double)m->send_buffer / (double)MIB, (double)m->receive_buffer / (double)MIB);
    struct dpt_finding *buffers = add_machine_finding(findings, !small, "TCP buffers", text);
    if (small)
        dpt_finding_set_remedy(buffers, "sysctl -w net.ipv4.tcp_rmem='4096 131072 16777216' "
                                        "net.ipv4.tcp_wmem='4096 16384 16777216'");
}

void dpt_machine_judge(const struct dpt_machine *machine, const struct dpt_machine_devices *devices,
                       struct dpt_findings *findings)
{
    judge_cpu(machine, findings);
    judge_memory(machine, devices, findings);
    judge_limits(machine, devices, findings);
    judge_clock(machine, findings);
    judge_buffers(machine, devices, findings);
}
