/* Network interfaces and RDMA devices (nics.h). */
#include "worker/doctor/nics.h"

#include "base/fs.h"
#include "worker/doctor/sysfs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* ---- interfaces ---- */

static bool read_nic(const char *root, const char *folder, const char *name, struct dpt_nic *ret)
{
    char state[DPT_SYSFS_TEXT_BYTES], device[PATH_MAX];
    *ret = (struct dpt_nic){.mtu = (int)dpt_sysfs_number(folder, "mtu", 0), .pci = {.numa = -1}};
    if (strlen(name) >= sizeof ret->name)
        return false;
    (void)snprintf(ret->name, sizeof ret->name, "%s", name);
    dpt_sysfs_text(folder, "operstate", state);
    /* Loopback and tunnels say "unknown" while they are up. */
    ret->up = strcmp(state, "up") == 0 || strcmp(state, "unknown") == 0;
    /* The kernel refuses to read the speed of an interface that is down. */
    ret->mbit = dpt_sysfs_number(folder, "speed", -1);
    if (ret->mbit <= 0)
        ret->mbit = -1;
    (void)snprintf(device, sizeof device, "%.4000s/device", folder);
    ret->is_virtual = !dpt_fs_exists(device);
    if (!ret->is_virtual && !dpt_sysfs_pci(root, device, &ret->pci))
        ret->pci.bus_id[0] = '\0';
    return true;
}

/* ---- RDMA ---- */

static void copy_text(const char *folder, const char *name, char *ret, size_t bytes)
{
    char text[DPT_SYSFS_TEXT_BYTES];
    dpt_sysfs_text(folder, name, text);
    (void)snprintf(ret, bytes, "%.*s", (int)bytes - 1, text);
}

static bool read_rdma(const char *root, const char *folder, const char *name, struct dpt_rdma *ret)
{
    char path[PATH_MAX], **names = NULL;
    size_t n = 0;
    struct dpt_err err;
    *ret = (struct dpt_rdma){.active = false};
    if (strlen(name) >= sizeof ret->name)
        return false;
    (void)snprintf(ret->name, sizeof ret->name, "%s", name);
    (void)snprintf(path, sizeof path, "%.4000s/ports/1", folder);
    copy_text(path, "state", ret->state, sizeof ret->state);
    copy_text(path, "rate", ret->rate, sizeof ret->rate);
    copy_text(path, "link_layer", ret->link_layer, sizeof ret->link_layer);
    ret->active = strstr(ret->state, "ACTIVE") != NULL;
    (void)snprintf(path, sizeof path, "%.4000s/device/net", folder);
    if (dpt_fs_list(path, &names, &n, &err) == DPT_OK && n > 0 &&
        strlen(names[0]) < sizeof ret->net)
        (void)snprintf(ret->net, sizeof ret->net, "%s", names[0]);
    dpt_fs_list_free(&names, n);
    (void)snprintf(path, sizeof path, "%.4000s/device", folder);
    if (!dpt_sysfs_pci(root, path, &ret->pci))
        ret->pci.bus_id[0] = '\0';
    return true;
}

/* ---- both ---- */

static void add_nic(const char *root, const char *folder, const char *name, struct dpt_nics *nics)
{
    if (nics->n == DPT_NICS_MAX)
        nics->left_out++;
    else
        nics->n += read_nic(root, folder, name, &nics->nic[nics->n]);
}

static void add_rdma(const char *root, const char *folder, const char *name, struct dpt_nics *nics)
{
    if (nics->n_rdma == DPT_RDMA_MAX)
        nics->rdma_left_out++;
    else
        nics->n_rdma += read_rdma(root, folder, name, &nics->rdma[nics->n_rdma]);
}

static enum dpt_status read_class(const char *root, const char *class,
                                  void (*add)(const char *root, const char *folder,
                                              const char *name, struct dpt_nics *nics),
                                  struct dpt_nics *nics, struct dpt_err *err)
{
    char all[PATH_MAX], folder[PATH_MAX], **names = NULL;
    size_t n = 0;
    struct dpt_err why;
    (void)snprintf(all, sizeof all, "%.3000s/sys/class/%s", root, class);
    enum dpt_status status = dpt_fs_list(all, &names, &n, &why);
    if (status == DPT_ENOENT)
        return DPT_OK;
    if (status != DPT_OK)
        return dpt_pass(err, &why);
    for (size_t i = 0; i < n && status == DPT_OK; i++) {
        status = dpt_fs_join(all, names[i], folder, sizeof folder, err);
        if (status == DPT_OK)
            add(root, folder, names[i], nics);
    }
    dpt_fs_list_free(&names, n);
    return status;
}

enum dpt_status dpt_nics_read(const char *root, struct dpt_nics *ret, struct dpt_err *err)
{
    *ret = (struct dpt_nics){.n = 0};
    DPT_TRY(read_class(root, "net", add_nic, ret, err));
    return read_class(root, "infiniband", add_rdma, ret, err);
}

/* ---- addresses ---- */

/* Link-local addresses of IPv6 are left out: peers cannot use them. */
static bool format_numeric(const struct sockaddr *address, char ret[INET6_ADDRSTRLEN])
{
    if (!address)
        return false;
    if (address->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, address, sizeof v4);
        return inet_ntop(AF_INET, &v4.sin_addr, ret, INET6_ADDRSTRLEN) != NULL;
    }
    struct sockaddr_in6 v6;
    if (address->sa_family != AF_INET6)
        return false;
    memcpy(&v6, address, sizeof v6);
    return !IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr) &&
           inet_ntop(AF_INET6, &v6.sin6_addr, ret, INET6_ADDRSTRLEN) != NULL;
}

enum dpt_status dpt_nics_add_addresses(struct dpt_nics *nics, struct dpt_err *err)
{
    struct ifaddrs *list;
    if (getifaddrs(&list) != 0)
        return dpt_fail_errno(err, errno, "list the addresses of network interfaces");
    for (const struct ifaddrs *entry = list; entry; entry = entry->ifa_next) {
        char text[INET6_ADDRSTRLEN];
        if (!format_numeric(entry->ifa_addr, text))
            continue;
        for (int i = 0; i < nics->n; i++) {
            struct dpt_nic *nic = &nics->nic[i];
            const size_t used = strlen(nic->addresses);
            if (strcmp(nic->name, entry->ifa_name) == 0 &&
                used + strlen(text) + 3 < sizeof nic->addresses)
                (void)snprintf(nic->addresses + used, sizeof nic->addresses - used, "%s%s",
                               used > 0 ? ", " : "", text);
        }
    }
    freeifaddrs(list);
    return DPT_OK;
}

const struct dpt_nic *dpt_nics_with_address(const struct dpt_nics *nics, const char *address)
{
    const size_t length = strlen(address);
    for (int i = 0; i < nics->n; i++)
        for (const char *at = nics->nic[i].addresses; *at != '\0';) {
            const size_t bytes = strcspn(at, ",");
            if (bytes == length && strncmp(at, address, length) == 0)
                return &nics->nic[i];
            at += bytes;
            at += strspn(at, ", ");
        }
    return NULL;
}
