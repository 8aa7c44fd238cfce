/* What this machine offers to a run: CPU, memory, limits, clock. Read once, then judged. */
#ifndef DPT_WORKER_DOCTOR_MACHINE_H
#define DPT_WORKER_DOCTOR_MACHINE_H

#include "worker/doctor/finding.h"

#include <stdbool.h>
#include <stdint.h>

enum { DPT_MACHINE_TEXT_BYTES = 128 };

/* -1 or "" where the kernel does not say. */
struct dpt_machine {
    char cpu[DPT_MACHINE_TEXT_BYTES];    /* model */
    char isa[16];                        /* instructions of dpt's kernels: plain, avx2, avx512 */
    int cores, cores_online, numa_nodes; /* usable by this process; 0: another machine */
    char governor[DPT_MACHINE_TEXT_BYTES];
    char clock[DPT_MACHINE_TEXT_BYTES];
    int64_t memory, available; /* bytes */
    int64_t shm, shm_free;     /* bytes of /dev/shm */
    int64_t files, files_hard; /* descriptors of a process; INT64_MAX: no limit */
    int64_t locked;            /* bytes that a process may lock; INT64_MAX: no limit */
    int64_t send_buffer,
        receive_buffer; /* bytes, largest of a TCP connection (tcp_wmem, tcp_rmem) */
};

/* Reads ROOT/proc, ROOT/sys and ROOT/dev/shm. With root "", also the cores and limits of this
 * process; with another root they are not known, because the files are another machine's. */
void dpt_machine_read(const char *root, struct dpt_machine *ret);

/* The table of dpt's kernels that a CPU with these flags (of /proc/cpuinfo) runs. */
const char *dpt_machine_isa(const char *flags);

/* Devices of the machine on which a judgement depends. */
struct dpt_machine_devices {
    int gpus, rdma;
    int64_t fastest_mbit; /* of the interfaces that are up; -1: not known */
};

/* Adds a line for each fact. Pure. */
void dpt_machine_judge(const struct dpt_machine *machine, const struct dpt_machine_devices *devices,
                       struct dpt_findings *findings);

#endif
