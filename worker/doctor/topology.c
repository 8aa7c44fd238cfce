/* How two devices are connected (topology.h). */
#include "worker/doctor/topology.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* The length of the part of a path that ends with the host bridge ("pci0000:16"); 0: there is
 * none. Virtual machines have folders before it. */
static size_t host_bridge_length(const char *path)
{
    for (const char *at = path; *at != '\0';) {
        const size_t length = strcspn(at, "/");
        if (length > 3 && strncmp(at, "pci", 3) == 0)
            return (size_t)(at - path) + length;
        at += length;
        at += *at == '/';
    }
    return 0;
}

static int count_folders(const char *path)
{
    int n = path[0] != '\0';
    for (; *path != '\0'; path++)
        n += *path == '/';
    return n;
}

/* The number of leading folders that both paths have. */
static int count_common(const char *a, const char *b)
{
    int n = 0;
    for (;;) {
        const size_t length = strcspn(a, "/");
        if (length == 0 || length != strcspn(b, "/") || strncmp(a, b, length) != 0)
            return n;
        n++;
        a += length;
        b += length;
        if (*a == '\0' || *b == '\0')
            return n;
        a++;
        b++;
    }
}

enum dpt_path_kind dpt_topology_between(const struct dpt_pci_device *a,
                                        const struct dpt_pci_device *b)
{
    const size_t root_a = host_bridge_length(a->path), root_b = host_bridge_length(b->path);
    if (root_a == 0 || root_b == 0)
        return DPT_PATH_UNKNOWN;
    if (strcmp(a->path, b->path) == 0)
        return DPT_PATH_SELF;
    if (root_a != root_b || strncmp(a->path, b->path, root_a) != 0)
        return a->numa == b->numa ? DPT_PATH_NODE : DPT_PATH_SYS;
    /* Below the common folders: the bridges between, and the device. */
    const int common = count_common(a->path, b->path);
    const int below_a = count_folders(a->path) - common, below_b = count_folders(b->path) - common;
    char root[DPT_PCI_PATH_BYTES];
    memcpy(root, a->path, root_a);
    root[root_a] = '\0';
    if (common == count_folders(root))
        return DPT_PATH_PHB;
    return below_a <= 2 && below_b <= 2 ? DPT_PATH_PIX : DPT_PATH_PXB;
}

const char *dpt_topology_word(enum dpt_path_kind kind)
{
    static const char *const words[DPT_PATH_COUNT] = {"X", "PIX", "PXB", "PHB", "NODE", "SYS", "?"};
    return words[kind];
}
