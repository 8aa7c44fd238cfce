/* Kinds of folders of weights (folder_kind.h). */
#include "worker/weights/folder_kind.h"

#include "base/fs.h"
#include "checkpoint/names.h"

#include <errno.h>
#include <limits.h>
#include <sys/stat.h>

bool dpt_folder_has(const char *dir, const char *name)
{
    char path[PATH_MAX];
    return dpt_fs_join(dir, name, path, sizeof path, NULL) == DPT_OK && dpt_fs_exists(path);
}

bool dpt_folder_has_model(const char *dir)
{
    return dpt_folder_has(dir, DPT_NAME_SINGLE) || dpt_folder_has(dir, DPT_NAME_INDEX);
}

bool dpt_folder_has_adapters(const char *dir)
{
    return dpt_folder_has(dir, DPT_NAME_ADAPTER_CONFIG) && !dpt_folder_has_model(dir);
}

static enum dpt_status refuse_adapters(const char *dir, struct dpt_err *err)
{
    return dpt_fail(err, DPT_ECONFIG,
                    "'%s' has LoRA adapters (" DPT_NAME_ADAPTER_CONFIG ") and no model: name the "
                    "folder of their base to train new adapters; to begin from these, merge them "
                    "into the base (`dpt-ckpt export CHECKPOINTS FOLDER --merge`, or PEFT's "
                    "merge_and_unload and save_pretrained) and name the merged folder",
                    dir);
}

enum dpt_status dpt_folder_check_model(const char *dir, struct dpt_err *err)
{
    struct stat st;
    const bool known = stat(dir, &st) == 0;
    if (known ? S_ISDIR(st.st_mode) : errno != ENOENT && errno != ENOTDIR)
        return dpt_folder_has_adapters(dir) ? refuse_adapters(dir, err) : DPT_OK;
    return dpt_fail(
        err, DPT_ECONFIG,
        "there is no folder '%s'; give the path of one: a model of the Hugging Face hub "
        "is to be downloaded first (hf download MODEL --local-dir FOLDER)",
        dir);
}
