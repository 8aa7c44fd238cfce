/* Reads a config of the user's, and changes keys of it (user_config.h). */
#include "worker/bench/user_config.h"

#include "base/fs.h"
#include "worker/bench/bench.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { FILE_BYTES_MAX = 1 << 20 };

static const char *const steps_only[] = {"train.epochs=0",           "train.epoch_steps=auto",
                                         "train.log_every=1",        "train.eval_every=0",
                                         "train.eval_only=false",    "checkpoint.dir=null",
                                         "checkpoint.every_steps=0", "checkpoint.keep_best=0",
                                         "trace.dir=null",           "log.tensorboard=false"};
enum { STEPS_ONLY = sizeof steps_only / sizeof *steps_only };

static void add_set(struct user_config *c, const char *set)
{
    DPT_ASSERT(c->n_sets < USER_CONFIG_SETS_MAX);
    c->set[c->n_sets++] = set;
}

static void add_number(struct user_config *c, const char *key, int64_t value)
{
    char *text = c->text[c->n_sets];
    (void)snprintf(text, USER_CONFIG_SET_BYTES, "%s=%lld", key, (long long)value);
    add_set(c, text);
}

static struct dpt_config_input input_of(const char *text, size_t bytes, const struct user_config *c)
{
    return (struct dpt_config_input){.text = text,
                                     .bytes = bytes,
                                     .name = c->path,
                                     .overrides = c->set,
                                     .n_overrides = (size_t)c->n_sets};
}

static enum dpt_status user_config_change(const char *text, size_t bytes,
                                          const struct user_config_changes *x,
                                          struct user_config *c, struct dpt_err *err)
{
    for (int i = 0; i < x->n_sets; i++)
        add_set(c, x->sets[i]);
    for (int i = 0; i < STEPS_ONLY; i++)
        add_set(c, steps_only[i]);
    add_number(c, "train.steps", x->steps);
    if (x->nodes > 0)
        add_number(c, "cluster.nnodes", x->nodes);
    if (x->micro_batch > 0)
        add_number(c, "train.micro_batch", x->micro_batch);
    struct dpt_config_input input = input_of(text, bytes, c);
    DPT_TRY(dpt_config_parse(&input, &c->config, err));
    if (c->config.optimizer.warmup_steps > x->steps) {
        add_number(c, "optimizer.warmup_steps", x->steps);
        input = input_of(text, bytes, c);
    }
    if (c->config.model.init_from[0]) /* its folder has sizes that the config lacks */
        return dpt_config_parse(&input, &c->config, err);
    return dpt_config_load(&input, &c->config, err);
}

enum dpt_status user_config_load(const char *path, const struct user_config_changes *changes,
                                 struct user_config *ret, struct dpt_err *err)
{
    char *text = NULL;
    size_t bytes = 0;
    DPT_ASSERT(changes->n_sets <= DPT_BENCH_SETS_MAX);
    *ret = (struct user_config){.path = path};
    DPT_TRY(dpt_fs_read_file(path, FILE_BYTES_MAX, &text, &bytes, err));
    const enum dpt_status status = user_config_change(text, bytes, changes, ret, err);
    free(text);
    return status;
}
