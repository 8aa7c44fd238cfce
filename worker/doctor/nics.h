/* The network interfaces and RDMA devices of this machine, from sysfs. */
#ifndef DPT_WORKER_DOCTOR_NICS_H
#define DPT_WORKER_DOCTOR_NICS_H

#include "base/err.h"
#include "worker/doctor/topology.h"

#include <stdint.h>

enum {
    DPT_NICS_MAX = 64,
    DPT_RDMA_MAX = 16,
    DPT_NIC_NAME_BYTES = 32,
    DPT_NIC_ADDRESSES_BYTES = 192
};

struct dpt_nic {
    char name[DPT_NIC_NAME_BYTES];
    bool up, is_virtual; /* is_virtual: no device behind it (bridge, veth, loopback) */
    int64_t mbit;        /* -1: not known; virtual interfaces have none */
    int mtu;
    struct dpt_pci_device pci;               /* bus_id "": no PCI device */
    char addresses[DPT_NIC_ADDRESSES_BYTES]; /* "10.0.0.1, fd00::1"; "": none */
};

struct dpt_rdma {
    char name[DPT_NIC_NAME_BYTES];
    bool active;                  /* its first port is ACTIVE */
    char state[32];               /* "4: ACTIVE" */
    char rate[48];                /* "100 Gb/sec (4X EDR)" */
    char link_layer[32];          /* "InfiniBand", "Ethernet" (RoCE) */
    char net[DPT_NIC_NAME_BYTES]; /* its network interface; "": none */
    struct dpt_pci_device pci;
};

struct dpt_nics {
    int n, left_out;
    struct dpt_nic nic[DPT_NICS_MAX];
    int n_rdma, rdma_left_out;
    struct dpt_rdma rdma[DPT_RDMA_MAX];
};

/* Reads ROOT/sys/class/net and ROOT/sys/class/infiniband. An absent folder has no devices. */
DPT_MUST_USE enum dpt_status dpt_nics_read(const char *root, struct dpt_nics *ret,
                                           struct dpt_err *err);

/* Adds the IP addresses that this machine's interfaces have now. */
DPT_MUST_USE enum dpt_status dpt_nics_add_addresses(struct dpt_nics *nics, struct dpt_err *err);

/* The interface with this numeric address; NULL: none. After dpt_nics_add_addresses. */
const struct dpt_nic *dpt_nics_with_address(const struct dpt_nics *nics, const char *address);

#endif
