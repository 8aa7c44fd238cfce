/* Judges interfaces, RDMA devices and GPUs (machine_page.h). */
#include "worker/doctor/machine_page.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MTU_JUMBO = 9000, FAST_MBIT = 10000 };

/* ---- interfaces ---- */

static void judge_nic(const struct dpt_nic *nic, struct dpt_findings *findings)
{
    char speed[48] = "speed not known", numa[24] = "";
    if (nic->mbit > 0)
        (void)snprintf(speed, sizeof speed, "%.1f Gbit/s (%.2f GB/s)", (double)nic->mbit / 1e3,
                       (double)nic->mbit / 8e3);
    else if (nic->is_virtual)
        (void)snprintf(speed, sizeof speed, "virtual");
    if (nic->pci.numa >= 0)
        (void)snprintf(numa, sizeof numa, ", NUMA node %d", nic->pci.numa);
    const bool slow = nic->up && nic->mbit > 0 && nic->mbit < 1000;
    const bool small = nic->up && nic->mbit >= FAST_MBIT && nic->mtu < MTU_JUMBO;
    struct dpt_finding *line = dpt_findings_add(
        findings,
        slow      ? DPT_FINDING_WARN
        : nic->up ? DPT_FINDING_OK
                  : DPT_FINDING_INFO,
        "network", nic->name, "%s, %s, MTU %d%s%s%s", nic->up ? "up" : "down", speed, nic->mtu,
        numa, nic->addresses[0] != '\0' ? ", " : "", nic->addresses);
    if (slow)
        dpt_finding_set_remedy(line,
                               "ethtool %s shows what both ends agreed on; a bad cable "
                               "gives 100 Mbit/s",
                               nic->name);
    else if (small)
        dpt_finding_set_remedy(line,
                               "if all switches allow it: ip link set %s mtu %d, on all nodes",
                               nic->name, MTU_JUMBO);
}

/* The GPU that is nearest to a device; -1: there is none. */
static int nearest_gpu(const struct dpt_pci_device *pci, const struct dpt_gpus *gpus,
                       enum dpt_path_kind *ret_path)
{
    int nearest = -1;
    *ret_path = DPT_PATH_UNKNOWN;
    for (int i = 0; i < gpus->n; i++) {
        const enum dpt_path_kind path = dpt_topology_between(pci, &gpus->gpu[i].pci);
        if (nearest < 0 || path < *ret_path) {
            nearest = i;
            *ret_path = path;
        }
    }
    return nearest;
}

static void judge_rdma(const struct dpt_rdma *rdma, const struct dpt_gpus *gpus,
                       struct dpt_findings *findings)
{
    enum dpt_path_kind path;
    char gpu[48] = "";
    const int nearest = nearest_gpu(&rdma->pci, gpus, &path);
    if (nearest >= 0)
        (void)snprintf(gpu, sizeof gpu, ", %s to GPU%d", dpt_topology_word(path), nearest);
    struct dpt_finding *line = dpt_findings_add(
        findings, rdma->active ? DPT_FINDING_OK : DPT_FINDING_WARN, "network", rdma->name,
        "RDMA over %s, %s, %s%s%s%s", rdma->link_layer[0] != '\0' ? rdma->link_layer : "?",
        rdma->rate[0] != '\0' ? rdma->rate : "rate not known", rdma->state,
        rdma->net[0] != '\0' ? ", interface " : "", rdma->net, gpu);
    if (!rdma->active)
        dpt_finding_set_remedy(line,
                               "ibstat %s: the port needs a cable, a switch and, for "
                               "InfiniBand, a subnet manager",
                               rdma->name);
}

void dpt_nics_judge(const struct dpt_nics *nics, const struct dpt_gpus *gpus,
                    struct dpt_findings *findings)
{
    for (int i = 0; i < nics->n; i++)
        judge_nic(&nics->nic[i], findings);
    for (int i = 0; i < nics->n_rdma; i++)
        judge_rdma(&nics->rdma[i], gpus, findings);
    if (nics->left_out + nics->rdma_left_out > 0)
        (void)dpt_findings_add(findings, DPT_FINDING_INFO, "network", "more",
                               "%d more devices are not listed",
                               nics->left_out + nics->rdma_left_out);
    if (nics->n_rdma == 0)
        (void)dpt_findings_add(findings, DPT_FINDING_INFO, "network", "RDMA",
                               "no device; NCCL and dpt's ranks use TCP");
}

/* ---- GPUs ---- */

static void judge_access(const struct dpt_gpus *gpus, struct dpt_findings *findings)
{
    int pairs = 0, without = 0, a_bad = 0, b_bad = 0;
    for (int a = 0; a < gpus->n; a++)
        for (int b = 0; b < gpus->n; b++) {
            if (a == b || gpus->access[a][b] == DPT_PEER_UNKNOWN)
                continue;
            pairs++;
            if (gpus->access[a][b] == DPT_PEER_YES)
                continue;
            if (without++ == 0) {
                a_bad = a;
                b_bad = b;
            }
        }
    if (pairs == 0)
        return;
    if (without == 0) {
        (void)dpt_findings_add(findings, DPT_FINDING_OK, "gpu", "peer access", "all %d pairs",
                               pairs);
        return;
    }
    dpt_finding_set_remedy(
        dpt_findings_add(findings, DPT_FINDING_WARN, "gpu", "peer access",
                         "%d of %d pairs have none; GPU%d to GPU%d: %s", without, pairs, a_bad,
                         b_bad, dpt_peer_access_text(gpus->access[a_bad][b_bad])),
        "NCCL goes through the host's memory instead: turn off the IOMMU (iommu=off or pt) and "
        "PCIe access control (ACS) in the BIOS, or use GPUs below one switch");
}

/* Ranks of GPUs on another NUMA node than their neighbours work, but slower. */
static void judge_paths(const struct dpt_gpus *gpus, struct dpt_findings *findings)
{
    int far = 0, pairs = 0;
    for (int a = 0; a < gpus->n; a++)
        for (int b = a + 1; b < gpus->n; b++) {
            pairs++;
            far += gpus->nvlinks[a][b] == 0 &&
                   dpt_topology_between(&gpus->gpu[a].pci, &gpus->gpu[b].pci) == DPT_PATH_SYS;
        }
    if (far > 0)
        dpt_finding_set_remedy(
            dpt_findings_add(findings, DPT_FINDING_WARN, "gpu", "paths",
                             "%d of %d pairs are connected by SYS only", far, pairs),
            "strategy hybrid_shard keeps most traffic inside a group of near GPUs; "
            "CUDA_VISIBLE_DEVICES chooses GPUs of one NUMA node");
}

void dpt_gpus_judge(const struct dpt_gpus *gpus, const char *nvml_why,
                    struct dpt_findings *findings)
{
    for (int i = 0; i < gpus->n; i++) {
        const struct dpt_gpu *gpu = &gpus->gpu[i];
        char name[16];
        (void)snprintf(name, sizeof name, "GPU%d", i);
        (void)dpt_findings_add(findings, DPT_FINDING_INFO, "gpu", name, "%s, bus %s, NUMA node %d",
                               gpu->name[0] != '\0' ? gpu->name : "NVIDIA device", gpu->pci.bus_id,
                               gpu->pci.numa);
    }
    if (gpus->left_out > 0)
        (void)dpt_findings_add(findings, DPT_FINDING_INFO, "gpu", "more",
                               "%d more GPUs are not listed", gpus->left_out);
    if (gpus->n == 0)
        (void)dpt_findings_add(findings, DPT_FINDING_INFO, "gpu", "",
                               "no NVIDIA device; dpt trains on the CPU");
    else if (nvml_why[0] != '\0')
        dpt_finding_set_remedy(
            dpt_findings_add(findings, DPT_FINDING_WARN, "gpu", "NVML", "%s", nvml_why),
            "names, NVLinks and peer access are not known without it; it comes with NVIDIA's "
            "driver (in a container: --gpus all)");
    judge_access(gpus, findings);
    judge_paths(gpus, findings);
}
