/* The checkpoint that a path on the command line means. */
#include "worker/ckpt/open.h"

#include "checkpoint/names.h"
#include "checkpoint/reader.h"

#include <limits.h>
#include <string.h>

enum dpt_status dpt_ckpt_open(const char *path, struct dpt_checkpoint **ret, struct dpt_err *err)
{
    char dir[PATH_MAX];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof dir)
        return dpt_fail(err, DPT_EINVAL, "the path is empty or too long");
    memcpy(dir, path, n + 1);
    while (n > 1 && dir[n - 1] == '/')
        dir[--n] = '\0';
    char *slash = strrchr(dir, '/');
    int64_t step;
    const char *name = slash ? slash + 1 : dir;
    const bool is_rescue = dpt_name_parse_rescue(name, &step);
    if (is_rescue || dpt_name_parse_step(name, &step)) {
        if (slash)
            *slash = '\0';
        return dpt_checkpoint_open_named(slash == dir ? "/"
                                         : slash      ? dir
                                                      : ".",
                                         step, is_rescue ? DPT_WHOLE_RESCUE : DPT_WHOLE_STEP, ret,
                                         err);
    }
    DPT_TRY(dpt_checkpoint_newest(dir, &step, err));
    if (step < 0)
        return dpt_fail(err, DPT_ENOENT, "no whole checkpoint in '%s'", dir);
    return dpt_checkpoint_open(dir, step, ret, err);
}
