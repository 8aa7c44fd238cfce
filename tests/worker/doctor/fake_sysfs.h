/* A folder with the files of a machine's /sys: PCI devices with symbolic links, network interfaces
 * and RDMA devices. */
#ifndef DPT_TESTS_WORKER_DOCTOR_FAKE_SYSFS_H
#define DPT_TESTS_WORKER_DOCTOR_FAKE_SYSFS_H

#include <limits.h>

struct fake_sysfs {
    char root[PATH_MAX / 2];
};

void fake_sysfs_make(struct fake_sysfs *sysfs);
void fake_sysfs_remove(struct fake_sysfs *sysfs);
/* Writes ROOT/PATH with this text and a newline, and makes its folders. */
void fake_sysfs_write(const struct fake_sysfs *sysfs, const char *path, const char *text);
/* Makes ROOT/PATH a symbolic link to ROOT/TARGET. */
void fake_sysfs_link(const struct fake_sysfs *sysfs, const char *path, const char *target);
/* A PCI device at this place below sys/devices, as sys/bus/pci/devices has it. */
void fake_sysfs_pci(const struct fake_sysfs *sysfs, const char *place, const char *vendor,
                    const char *class, const char *numa);

#endif
