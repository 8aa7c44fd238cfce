/* How two devices of a machine are connected, by the words of `nvidia-smi topo -m`:
 *
 *   X    the same device
 *   NV#  # NVLinks
 *   PIX  at most one PCIe bridge
 *   PXB  several PCIe bridges, below one host bridge
 *   PHB  the host bridge of one root complex (usually the CPU)
 *   NODE several host bridges of one NUMA node
 *   SYS  the link between NUMA nodes
 *
 * Pure. */
#ifndef DPT_WORKER_DOCTOR_TOPOLOGY_H
#define DPT_WORKER_DOCTOR_TOPOLOGY_H

enum dpt_path_kind {
    DPT_PATH_SELF,
    DPT_PATH_PIX,
    DPT_PATH_PXB,
    DPT_PATH_PHB,
    DPT_PATH_NODE,
    DPT_PATH_SYS,
    DPT_PATH_UNKNOWN, /* a device has no place in the PCI tree */
    DPT_PATH_COUNT
};

enum { DPT_PCI_PATH_BYTES = 512, DPT_PCI_BUS_BYTES = 32 };

struct dpt_pci_device {
    char bus_id[DPT_PCI_BUS_BYTES]; /* "0000:1b:00.0"; "": no PCI device */
    /* Folders of sysfs below /sys/devices: "pci0000:16/0000:16:01.0/0000:1b:00.0". */
    char path[DPT_PCI_PATH_BYTES];
    int numa; /* -1: the machine has one node, or does not say */
};

/* The path between two devices through the PCI tree. */
enum dpt_path_kind dpt_topology_between(const struct dpt_pci_device *a,
                                        const struct dpt_pci_device *b);

const char *dpt_topology_word(enum dpt_path_kind kind);

#endif
