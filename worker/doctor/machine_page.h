/* The report on this machine: everything that is read, judged line by line. */
#ifndef DPT_WORKER_DOCTOR_MACHINE_PAGE_H
#define DPT_WORKER_DOCTOR_MACHINE_PAGE_H

#include "worker/doctor/args.h"
#include "worker/doctor/gpus.h"
#include "worker/doctor/nics.h"

/* Adds lines on interfaces and RDMA devices. Pure. */
void dpt_nics_judge(const struct dpt_nics *nics, const struct dpt_gpus *gpus,
                    struct dpt_findings *findings);
/* Adds lines on GPUs. nvml_why: why NVML was not asked; "": it was. Pure. */
void dpt_gpus_judge(const struct dpt_gpus *gpus, const char *nvml_why,
                    struct dpt_findings *findings);

/* Reads the machine and adds all lines. Fills `gpus` and `nics`. */
DPT_MUST_USE enum dpt_status dpt_machine_examine(const struct dpt_doctor_args *args,
                                                 struct dpt_gpus *gpus, struct dpt_nics *nics,
                                                 struct dpt_findings *findings,
                                                 struct dpt_err *err);

#endif
