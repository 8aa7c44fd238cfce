/* The GPUs of this machine: their places in the PCI tree from sysfs, names, NVLinks and peer access
 * from NVML. */
#ifndef DPT_WORKER_DOCTOR_GPUS_H
#define DPT_WORKER_DOCTOR_GPUS_H

#include "worker/doctor/nvml.h"
#include "worker/doctor/topology.h"

enum { DPT_GPUS_MAX = 16 };

enum dpt_peer_access {
    DPT_PEER_UNKNOWN, /* neither NVML nor CUDA says */
    DPT_PEER_YES,
    DPT_PEER_CHIPSET, /* the chipset does not allow it */
    DPT_PEER_GPU,     /* the GPU cannot do it */
    DPT_PEER_PATH,    /* the path between the two does not allow it */
    DPT_PEER_DISABLED,
    DPT_PEER_NO,
    DPT_PEER_COUNT
};

struct dpt_gpu {
    struct dpt_pci_device pci;
    char name[DPT_NVML_NAME_BYTES]; /* "": NVML was not asked */
};

/* Zero-initialise. */
struct dpt_gpus {
    int n, left_out;                  /* left_out: GPUs beyond DPT_GPUS_MAX */
    bool asked;                       /* dpt_gpus_ask was called and NVML knows all GPUs */
    struct dpt_gpu gpu[DPT_GPUS_MAX]; /* in the order of their bus ids, as NVML has them */
    /* NVLinks between two GPUs, direct or through switches. */
    int nvlinks[DPT_GPUS_MAX][DPT_GPUS_MAX];
    /* [a][b]: whether a can read the memory of b. */
    enum dpt_peer_access access[DPT_GPUS_MAX][DPT_GPUS_MAX];
};

/* Finds NVIDIA's display devices and accelerators below ROOT/sys/bus/pci/devices. No such folder:
 * no GPUs. */
DPT_MUST_USE enum dpt_status dpt_gpus_read(const char *root, struct dpt_gpus *ret,
                                           struct dpt_err *err);

/* Adds the knowledge of NVML to GPUs that were read. DPT_EDEVICE: a call failed; `gpus` keeps what
 * was learned before. */
DPT_MUST_USE enum dpt_status dpt_gpus_ask(struct dpt_gpus *gpus, const struct dpt_nvml_calls *calls,
                                          struct dpt_err *err);

/* What CUDA says of peer access. It counts more than NVML's, because CUDA is what ranks use: it
 * knows CUDA_VISIBLE_DEVICES and the container. */
struct dpt_cuda_calls {
    enum dpt_status (*count)(int *ret, struct dpt_err *err);
    enum dpt_status (*bus)(int index, char *ret, struct dpt_err *err); /* [DPT_PCI_BUS_BYTES] */
    enum dpt_status (*peer)(int from, int to, bool *ret, struct dpt_err *err);
};
/* Those of the CUDA device (kernels/cuda). In a build without CUDA the first call fails with
 * DPT_EUNSUPPORTED. */
extern const struct dpt_cuda_calls dpt_gpus_cuda;
/* Sets the access of each pair that CUDA sees. Errors are those of the calls. */
DPT_MUST_USE enum dpt_status
dpt_gpus_ask_cuda(struct dpt_gpus *gpus, const struct dpt_cuda_calls *calls, struct dpt_err *err);

/* "NV12", "PIX", …: the connection of two GPUs; an NVLink counts before the PCI path. */
void dpt_gpus_print_link(const struct dpt_gpus *gpus, int a, int b, char ret[16]);

const char *dpt_peer_access_text(enum dpt_peer_access access);

#endif
