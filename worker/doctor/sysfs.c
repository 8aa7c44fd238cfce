/* Small reads of sysfs (sysfs.h). */
#include "worker/doctor/sysfs.h"

#include "base/fs.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dpt_sysfs_text(const char *folder, const char *name, char ret[DPT_SYSFS_TEXT_BYTES])
{
    char path[PATH_MAX];
    const int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    ret[0] = '\0';
    if (length > 0 && (size_t)length < sizeof path &&
        !dpt_fs_read_line(path, ret, DPT_SYSFS_TEXT_BYTES))
        ret[0] = '\0';
}

int64_t dpt_sysfs_number(const char *folder, const char *name, int64_t missing)
{
    char text[DPT_SYSFS_TEXT_BYTES], *end = text;
    dpt_sysfs_text(folder, name, text);
    errno = 0;
    const long long number = strtoll(text, &end, strncmp(text, "0x", 2) == 0 ? 16 : 10);
    return errno != 0 || end == text || *end != '\0' ? missing : number;
}

bool dpt_sysfs_pci(const char *root, const char *folder, struct dpt_pci_device *ret)
{
    char devices[PATH_MAX], wanted[PATH_MAX], path[PATH_MAX];
    const int length = snprintf(wanted, sizeof wanted, "%s/sys/devices", root);
    *ret = (struct dpt_pci_device){.numa = -1};
    if (length < 0 || (size_t)length >= sizeof wanted || !realpath(wanted, devices) ||
        !realpath(folder, path))
        return false;
    const size_t prefix = strlen(devices);
    if (strncmp(path, devices, prefix) != 0 || path[prefix] != '/' ||
        strlen(path + prefix + 1) >= sizeof ret->path)
        return false;
    (void)snprintf(ret->path, sizeof ret->path, "%s", path + prefix + 1);
    const char *last = strrchr(path, '/') + 1;
    if (strlen(last) < sizeof ret->bus_id)
        (void)snprintf(ret->bus_id, sizeof ret->bus_id, "%s", last);
    ret->numa = (int)dpt_sysfs_number(path, "numa_node", -1);
    return strstr(ret->path, "pci") != NULL;
}
