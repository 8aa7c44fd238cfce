/* Edits of a file in memory. */
#include "tests/fuzz/edited_file.h"

#include "base/err.h"
#include "base/fs.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { EDITS_MAX = 16, PUT_IN_MAX = 32, FILE_BYTES_MAX = 64 * 1024 };

void edited_file_open(struct edited_file *file, const char *path)
{
    struct dpt_err err;
    DPT_ASSERT(dpt_fs_read_file(path, FILE_BYTES_MAX, &file->text, &file->bytes, &err) == DPT_OK);
    file->fd = memfd_create("edited", MFD_CLOEXEC);
    DPT_ASSERT(file->fd >= 0);
    (void)snprintf(file->path, sizeof file->path, "/proc/self/fd/%d", file->fd);
}

static void edit(char *text, size_t *bytes, struct feed *feed)
{
    const size_t place = feed_u8(feed) | (size_t)feed_u8(feed) << 8;
    const size_t at = place % (*bytes + 1);
    const size_t n = 1 + feed_below(feed, PUT_IN_MAX);
    const size_t left_out = n < *bytes - at ? n : *bytes - at;
    switch (feed_below(feed, 4)) {
    case 0: /* put in */
        memmove(text + at + n, text + at, *bytes - at);
        for (size_t i = 0; i < n; i++)
            text[at + i] = (char)feed_u8(feed);
        *bytes += n;
        break;
    case 1: /* left out */
        memmove(text + at, text + at + left_out, *bytes - at - left_out);
        *bytes -= left_out;
        break;
    case 2: /* cut off */
        *bytes = at;
        break;
    default:
        if (at < *bytes)
            text[at] = (char)feed_u8(feed);
    }
}

void edited_file_write(const struct edited_file *file, struct feed *feed, uint32_t edits)
{
    static char text[FILE_BYTES_MAX + EDITS_MAX * PUT_IN_MAX];
    size_t bytes = file->bytes;
    DPT_ASSERT(edits <= EDITS_MAX);
    memcpy(text, file->text, bytes);
    for (uint32_t i = 0; i < edits; i++)
        edit(text, &bytes, feed);
    DPT_ASSERT(ftruncate(file->fd, (off_t)bytes) == 0 &&
               pwrite(file->fd, text, bytes, 0) == (ssize_t)bytes);
}
