/* Sealed shared memory (sealed.h). */
#include "worker/comm/sealed.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum { SIZE_SEALS = F_SEAL_SHRINK | F_SEAL_GROW };

enum dpt_status dpt_sealed_create(size_t bytes, bool open, struct sealed_memory *ret,
                                  struct dpt_err *err)
{
    void *data = MAP_FAILED;
    const int fd = memfd_create("dpt-comm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int failed = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)bytes);
    if (failed == 0) {
        data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
        failed = data == MAP_FAILED ? errno : 0;
    }
    /* Linux before 5.1 has no F_SEAL_FUTURE_WRITE. */
    if (failed == 0 && fcntl(fd, F_ADD_SEALS, SIZE_SEALS | (open ? 0 : F_SEAL_FUTURE_WRITE)) != 0 &&
        fcntl(fd, F_ADD_SEALS, SIZE_SEALS) != 0)
        failed = errno;
    if (failed == 0) {
        *ret = (struct sealed_memory){.fd = fd, .data = data};
        return DPT_OK;
    }
    if (data != MAP_FAILED)
        munmap(data, bytes);
    if (fd >= 0)
        close(fd);
    return dpt_fail_errno(err, failed, "create shared memory of %zu bytes", bytes);
}

bool dpt_sealed_keeps_size(int fd)
{
    const int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

bool dpt_sealed_is_open(int fd)
{
    const int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) == 0;
}
