/* Checkpoints and folders that the command line names (open.h). */
#include "worker/ckpt/open.h"

#include "base/fs.h"
#include "checkpoint/names.h"
#include "checkpoint/reader.h"
#include "worker/weights/hf_folder_kind.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Copies the path without slashes at its end. `ret_name`: the last part of the path. */
static enum dpt_status split_path(const char *path, char ret_path[PATH_MAX], const char **ret_name,
                                  struct dpt_err *err)
{
    size_t n = strlen(path);
    if (n == 0 || n >= PATH_MAX)
        return dpt_fail(err, DPT_EINVAL, "the path is empty or too long");
    memcpy(ret_path, path, n + 1);
    while (n > 1 && ret_path[n - 1] == '/')
        ret_path[--n] = '\0';
    const char *slash = strrchr(ret_path, '/');
    *ret_name = slash ? slash + 1 : ret_path;
    return DPT_OK;
}

bool dpt_ckpt_names_one(const char *path)
{
    char copy[PATH_MAX];
    const char *name;
    int64_t step;
    return split_path(path, copy, &name, NULL) == DPT_OK &&
           (dpt_name_parse_rescue(name, &step) || dpt_name_parse_step(name, &step));
}

bool dpt_ckpt_is_folder(const char *path)
{
    return !dpt_ckpt_names_one(path) &&
           (dpt_hf_folder_has_model(path) || dpt_hf_folder_has_adapters(path));
}

static enum dpt_status refuse_no_checkpoint(const char *dir, struct dpt_err *err)
{
    if (dpt_hf_folder_has_model(dir))
        return dpt_fail(err, DPT_ENOENT,
                        "'%s' is a Hugging Face folder and no checkpoint: `dpt-ckpt diff`, "
                        "`generate` and `import` take it, and so does model.init_from; name "
                        "checkpoint.dir of a run",
                        dir);
    if (dpt_hf_folder_has_adapters(dir))
        return dpt_fail(err, DPT_ENOENT,
                        "'%s' is a folder of LoRA adapters (" DPT_NAME_ADAPTER_CONFIG
                        ") and no checkpoint: `dpt-ckpt diff` takes it; name checkpoint.dir of a "
                        "run",
                        dir);
    return dpt_fail(err, DPT_ENOENT, "no complete checkpoint in '%s'", dir);
}

enum dpt_status dpt_ckpt_open(const char *path, struct dpt_checkpoint **ret, struct dpt_err *err)
{
    char dir[PATH_MAX], parent[PATH_MAX];
    const char *name;
    int64_t step;
    DPT_TRY(split_path(path, dir, &name, err));
    const bool is_rescue = dpt_name_parse_rescue(name, &step);
    if (is_rescue || dpt_name_parse_step(name, &step)) {
        DPT_TRY(dpt_fs_folder(dir, parent, err));
        return dpt_checkpoint_open_named(
            parent, step, is_rescue ? DPT_COMPLETE_RESCUE : DPT_COMPLETE_STEP, ret, err);
    }
    DPT_TRY(dpt_checkpoint_newest(dir, &step, err));
    if (step < 0)
        return refuse_no_checkpoint(dir, err);
    return dpt_checkpoint_open(dir, step, ret, err);
}

enum dpt_status dpt_ckpt_config_of_sizes(const char *from, const struct dpt_config_sizes *sizes,
                                         struct dpt_config *ret, struct dpt_err *err)
{
    static const char *const shortest[] = {
        "train.seq_len=1"}; /* the default may be longer than the context */
    return dpt_config_load(&(struct dpt_config_input){.text = "",
                                                      .bytes = 0,
                                                      .name = from,
                                                      .overrides = shortest,
                                                      .n_overrides = 1,
                                                      .sizes = sizes},
                           ret, err);
}

void dpt_ckpt_tell_left_out(const char *folder, const struct dpt_published *published)
{
    char names[DPT_PUBLISHED_LEFT_OUT_BYTES];
    if (dpt_published_left_out(published, names) > 0)
        (void)fprintf(
            stderr, "dpt-ckpt: '%s' has tensors that are not in the model: %s; they are left out\n",
            folder, names);
}

enum dpt_status dpt_ckpt_of_folder(enum dpt_status status)
{
    return status == DPT_ENOENT || status == DPT_ECORRUPT || status == DPT_EUNSUPPORTED
               ? DPT_ECONFIG
               : status;
}
