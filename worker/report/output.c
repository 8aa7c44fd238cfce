/* Writes texts to files (output.h). */
#include "worker/report/output.h"

#include "base/fs.h"

#include <stdlib.h>

enum dpt_status report_output(const char *dir, const char *name, report_print *print,
                              const void *what, struct dpt_err *err)
{
    char path[PATH_MAX], *text = NULL;
    size_t bytes = 0;
    DPT_TRY(dpt_fs_join(dir, name, path, sizeof path, err));
    DPT_TRY(dpt_fs_mkdirs(dir, err));
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return dpt_fail_nomem(err, "text of '%s'", path);
    enum dpt_status status = print(what, out, err);
    const bool failed = ferror(out) != 0;
    if ((fclose(out) != 0 || failed) && status == DPT_OK)
        status = dpt_fail_nomem(err, "text of '%s'", path);
    if (status == DPT_OK)
        status = dpt_fs_write_file_atomic(path, text, bytes, err);
    free(text);
    if (status == DPT_OK)
        (void)printf("%s\n", path);
    return status;
}
