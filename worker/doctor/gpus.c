/* The GPUs of this machine (gpus.h). */
#include "worker/doctor/gpus.h"

#include "base/fs.h"
#include "worker/doctor/sysfs.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { VENDOR_NVIDIA = 0x10de, CLASS_DISPLAY = 0x03, CLASS_ACCELERATOR = 0x12 };

/* ---- sysfs ---- */

static bool is_gpu(const char *folder)
{
    const int64_t class = dpt_sysfs_number(folder, "class", 0) >> 16;
    return dpt_sysfs_number(folder, "vendor", 0) == VENDOR_NVIDIA &&
           (class == CLASS_DISPLAY || class == CLASS_ACCELERATOR);
}

static void add_gpu(const char *root, const char *folder, struct dpt_gpus *gpus)
{
    if (gpus->n == DPT_GPUS_MAX) {
        gpus->left_out++;
        return;
    }
    struct dpt_gpu *gpu = &gpus->gpu[gpus->n];
    if (dpt_sysfs_pci(root, folder, &gpu->pci))
        gpus->n++;
}

enum dpt_status dpt_gpus_read(const char *root, struct dpt_gpus *ret, struct dpt_err *err)
{
    char devices[PATH_MAX], folder[PATH_MAX], **names = NULL;
    size_t n = 0;
    *ret = (struct dpt_gpus){.n = 0};
    (void)snprintf(devices, sizeof devices, "%.3000s/sys/bus/pci/devices", root);
    struct dpt_err why;
    enum dpt_status status = dpt_fs_list(devices, &names, &n, &why);
    if (status == DPT_ENOENT)
        return DPT_OK;
    if (status != DPT_OK)
        return dpt_pass(err, &why);
    for (size_t i = 0; i < n && status == DPT_OK; i++) {
        status = dpt_fs_join(devices, names[i], folder, sizeof folder, err);
        if (status == DPT_OK && is_gpu(folder))
            add_gpu(root, folder, ret);
    }
    dpt_fs_list_free(&names, n);
    return status;
}

/* ---- NVML ---- */

/* Whether NVML's bus id ("00000000:1B:00.0") and sysfs' ("0000:1b:00.0") are of one device: the
 * domains have different lengths. */
static bool is_same_bus(const char *nvml, const char *sysfs)
{
    const char *a = strchr(nvml, ':'), *b = strchr(sysfs, ':');
    return a && b && strtoul(nvml, NULL, 16) == strtoul(sysfs, NULL, 16) && strcasecmp(a, b) == 0;
}

static int find_gpu(const struct dpt_gpus *gpus, const char *bus)
{
    for (int i = 0; i < gpus->n; i++)
        if (is_same_bus(bus, gpus->gpu[i].pci.bus_id))
            return i;
    return -1;
}

/* NVLinks of a GPU that lead to another GPU are counted for the pair, others for a switch. A GPU
 * without a link answers with an error, which means no link. */
static int count_nvlinks(struct dpt_gpus *gpus, const struct dpt_nvml_calls *calls, unsigned number,
                         int at)
{
    int to_switch = 0;
    for (unsigned link = 0; link < DPT_NVML_LINKS_MAX; link++) {
        char bus[DPT_NVML_BUS_BYTES];
        bool up = false;
        if (calls->link_up(calls->ctx, number, link, &up) != 0 || !up)
            continue;
        const int other =
            calls->link_bus(calls->ctx, number, link, bus) == 0 ? find_gpu(gpus, bus) : -1;
        if (other >= 0)
            gpus->nvlinks[at][other]++;
        else
            to_switch++;
    }
    return to_switch;
}

static enum dpt_peer_access access_of(int status)
{
    static const enum dpt_peer_access table[] = {DPT_PEER_YES,  DPT_PEER_CHIPSET,  DPT_PEER_GPU,
                                                 DPT_PEER_PATH, DPT_PEER_DISABLED, DPT_PEER_NO};
    return status >= 0 && status < (int)(sizeof table / sizeof *table) ? table[status]
                                                                       : DPT_PEER_UNKNOWN;
}

/* Fills number[i] with NVML's number of gpu[i], -1: it does not know this GPU. */
static enum dpt_status match_gpus(struct dpt_gpus *gpus, const struct dpt_nvml_calls *calls,
                                  int number[DPT_GPUS_MAX], struct dpt_err *err)
{
    unsigned count = 0;
    for (int i = 0; i < DPT_GPUS_MAX; i++)
        number[i] = -1;
    if (calls->count(calls->ctx, &count) != 0)
        return dpt_fail(err, DPT_EDEVICE, "NVML does not count the GPUs");
    for (unsigned k = 0; k < count; k++) {
        char bus[DPT_NVML_BUS_BYTES];
        const int error = calls->bus(calls->ctx, k, bus);
        if (error != 0)
            return dpt_fail(err, DPT_EDEVICE, "NVML does not know the bus id of GPU %u (error %d)",
                            k, error);
        const int i = find_gpu(gpus, bus);
        if (i < 0)
            continue;
        number[i] = (int)k;
        if (calls->name(calls->ctx, k, gpus->gpu[i].name) != 0)
            gpus->gpu[i].name[0] = '\0';
    }
    return DPT_OK;
}

enum dpt_status dpt_gpus_ask(struct dpt_gpus *gpus, const struct dpt_nvml_calls *calls,
                             struct dpt_err *err)
{
    int number[DPT_GPUS_MAX], to_switch[DPT_GPUS_MAX] = {0};
    DPT_TRY(match_gpus(gpus, calls, number, err));
    gpus->asked = true;
    for (int i = 0; i < gpus->n; i++) {
        if (number[i] >= 0)
            to_switch[i] = count_nvlinks(gpus, calls, (unsigned)number[i], i);
        gpus->asked = gpus->asked && number[i] >= 0;
    }
    for (int a = 0; a < gpus->n; a++)
        for (int b = 0; b < gpus->n; b++) {
            int status = -1;
            if (a == b || number[a] < 0 || number[b] < 0)
                continue;
            /* A switch connects all of its GPUs with as many links as each has. */
            gpus->nvlinks[a][b] += to_switch[a] < to_switch[b] ? to_switch[a] : to_switch[b];
            if (calls->p2p(calls->ctx, (unsigned)number[a], (unsigned)number[b], &status) == 0)
                gpus->access[a][b] = access_of(status);
        }
    return DPT_OK;
}

/* ---- CUDA ---- */

enum dpt_status dpt_gpus_ask_cuda(struct dpt_gpus *gpus, const struct dpt_cuda_calls *calls,
                                  struct dpt_err *err)
{
    int count = 0, place[DPT_GPUS_MAX];
    DPT_TRY(calls->count(&count, err));
    if (count > DPT_GPUS_MAX)
        count = DPT_GPUS_MAX;
    for (int i = 0; i < count; i++) {
        char bus[DPT_PCI_BUS_BYTES];
        DPT_TRY(calls->bus(i, bus, err));
        place[i] = find_gpu(gpus, bus);
    }
    for (int a = 0; a < count; a++)
        for (int b = 0; b < count; b++) {
            bool can = false;
            if (a == b || place[a] < 0 || place[b] < 0)
                continue;
            DPT_TRY(calls->peer(a, b, &can, err));
            enum dpt_peer_access *access = &gpus->access[place[a]][place[b]];
            if (can)
                *access = DPT_PEER_YES;
            else if (*access == DPT_PEER_UNKNOWN || *access == DPT_PEER_YES)
                *access = DPT_PEER_NO; /* else NVML gave a reason */
        }
    return DPT_OK;
}

/* ---- words ---- */

void dpt_gpus_print_link(const struct dpt_gpus *gpus, int a, int b, char ret[16])
{
    if (a != b && gpus->nvlinks[a][b] > 0)
        (void)snprintf(ret, 16, "NV%d", gpus->nvlinks[a][b]);
    else
        (void)snprintf(
            ret, 16, "%s",
            a == b ? "X"
                   : dpt_topology_word(dpt_topology_between(&gpus->gpu[a].pci, &gpus->gpu[b].pci)));
}

const char *dpt_peer_access_text(enum dpt_peer_access access)
{
    static const char *const texts[DPT_PEER_COUNT] = {
        "not known",
        "yes",
        "no: the chipset does not allow it",
        "no: the GPU cannot do it",
        "no: the path between them does not allow it (an IOMMU, or PCIe access control)",
        "no: disabled in the driver",
        "no"};
    return texts[access];
}
