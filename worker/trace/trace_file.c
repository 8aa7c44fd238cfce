/* Trace files (trace_file.h). */
#include "worker/trace/trace_file.h"

#include "base/fs.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>
#include <zlib.h>

enum { NAME_BYTES = 128 };

struct packed_file {
    gzFile file;
    const char *path;
};

/* An error of the system in the last call for the file. */
static enum dpt_status fail_packed(const struct packed_file *out, int saved_errno,
                                   struct dpt_err *err)
{
    return dpt_fail_errno(err, saved_errno != 0 ? saved_errno : EIO, "write '%s'", out->path);
}

static enum dpt_status write_packed(void *ctx, const char *text, size_t bytes, struct dpt_err *err)
{
    const struct packed_file *out = ctx;
    errno = 0;
    return gzwrite(out->file, text, (unsigned)bytes) == (int)bytes ? DPT_OK
                                                                   : fail_packed(out, errno, err);
}

/* Writes the file at `path`, which is new. */
static enum dpt_status write_new_file(const char *path, const struct dpt_kineto_trace *trace,
                                      struct dpt_err *err)
{
    errno = 0;
    struct packed_file out = {.file = gzopen(path, "wbe1"), .path = path}; /* fast, close on exec */
    if (!out.file)
        return fail_packed(&out, errno, err);
    const struct dpt_kineto_sink sink = {.write = write_packed, .ctx = &out};
    const enum dpt_status status = dpt_kineto_print(trace, &sink, err);
    errno = 0;
    if (gzclose(out.file) != Z_OK && status == DPT_OK)
        return fail_packed(&out, errno, err);
    return status;
}

static enum dpt_status make_folder(const char *dir, const struct dpt_kineto_trace *trace,
                                   char ret[PATH_MAX], struct dpt_err *err)
{
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof name, "profile/%s/rank_%d", trace->strategy, trace->rank);
    DPT_TRY(dpt_fs_join(dir, name, ret, PATH_MAX, err));
    return dpt_fs_mkdirs(ret, err);
}

enum dpt_status dpt_trace_file_write(const char *dir, const struct dpt_kineto_trace *trace,
                                     int64_t wall_ns, char *ret_path, struct dpt_err *err)
{
    char folder[PATH_MAX], name[NAME_BYTES], path[PATH_MAX], unfinished[PATH_MAX];
    DPT_TRY(make_folder(dir, trace, folder, err));
    (void)snprintf(name, sizeof name, "worker_%d.%lld.pt.trace.json.gz", trace->rank,
                   (long long)wall_ns);
    DPT_TRY(dpt_fs_join(folder, name, path, sizeof path, err));
    (void)snprintf(name, sizeof name, "worker_%d.%lld.unfinished", trace->rank, (long long)wall_ns);
    DPT_TRY(dpt_fs_join(folder, name, unfinished, sizeof unfinished, err));
    enum dpt_status status = write_new_file(unfinished, trace, err);
    if (status == DPT_OK && rename(unfinished, path) != 0)
        status = dpt_fail_errno(err, errno, "rename '%s'", unfinished);
    if (status != DPT_OK)
        (void)unlink(unfinished);
    else
        (void)snprintf(ret_path, PATH_MAX, "%s", path);
    return status;
}
