/* Kinds of folders of weights (hf_folder_kind.h). */
#include "worker/weights/hf_folder_kind.h"

#include "base/fs.h"
#include "checkpoint/reader.h"

#include <errno.h>
#include <limits.h>
#include <sys/stat.h>

bool dpt_hf_folder_has(const char *dir, const char *name)
{
    char path[PATH_MAX];
    return dpt_fs_join(dir, name, path, sizeof path, NULL) == DPT_OK && dpt_fs_exists(path);
}

bool dpt_hf_folder_has_model(const char *dir)
{
    return dpt_hf_folder_has(dir, DPT_NAME_SINGLE) || dpt_hf_folder_has(dir, DPT_NAME_INDEX);
}

bool dpt_hf_folder_has_adapters(const char *dir)
{
    return dpt_hf_folder_has(dir, DPT_NAME_ADAPTER_CONFIG) && !dpt_hf_folder_has_model(dir);
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

/* checkpoint.dir of a run has no weights itself; the folders of its steps have them. */
static enum dpt_status refuse_checkpoints(const char *dir, struct dpt_err *err)
{
    struct dpt_checkpoint *newest = NULL;
    int64_t step;
    if (dpt_hf_folder_has_model(dir) || dpt_hf_folder_has(dir, DPT_NAME_CONFIG))
        return DPT_OK;
    DPT_TRY(dpt_checkpoint_newest(dir, &step, err));
    if (step < 0)
        return DPT_OK;
    DPT_TRY(dpt_checkpoint_open(dir, step, &newest, err));
    const char *path = newest->folder.path;
    const enum dpt_status status =
        dpt_hf_folder_has_adapters(path)
            ? refuse_adapters(path, err)
            : dpt_fail(err, DPT_ECONFIG,
                       "'%s' has the checkpoints of a run; name one of them, of which the newest "
                       "is '%s'",
                       dir, path);
    dpt_checkpoint_close(&newest);
    return status;
}

enum dpt_status dpt_hf_folder_check_model(const char *dir, struct dpt_err *err)
{
    struct stat st;
    const bool known = stat(dir, &st) == 0;
    if (known ? S_ISDIR(st.st_mode) : errno != ENOENT && errno != ENOTDIR)
        return dpt_hf_folder_has_adapters(dir) ? refuse_adapters(dir, err)
                                               : refuse_checkpoints(dir, err);
    return dpt_fail(
        err, DPT_ECONFIG,
        "there is no folder '%s'; give the path of one: a model of the Hugging Face hub "
        "is to be downloaded first (hf download MODEL --local-dir FOLDER)",
        dir);
}
