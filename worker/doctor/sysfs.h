/* Small reads of sysfs. `root` is put before the paths; "" except in tests and for copies of
 * another machine's files. */
#ifndef DPT_WORKER_DOCTOR_SYSFS_H
#define DPT_WORKER_DOCTOR_SYSFS_H

#include "worker/doctor/topology.h"

#include <stdbool.h>
#include <stdint.h>

enum { DPT_SYSFS_TEXT_BYTES = 128 };

/* The number in a file; `missing` if there is no such file or no number in it. Decimal, or
 * hexadecimal after "0x". */
int64_t dpt_sysfs_number(const char *folder, const char *name, int64_t missing);
/* The first line of a file; "" if there is none. */
void dpt_sysfs_text(const char *folder, const char *name, char ret[DPT_SYSFS_TEXT_BYTES]);
/* The place in the PCI tree of the device whose folder this is (a symbolic link resolves to it).
 * False: it is no device of that tree. */
bool dpt_sysfs_pci(const char *root, const char *folder, struct dpt_pci_device *ret);

#endif
