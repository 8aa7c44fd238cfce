/* Keys of other programs' configs, as in public courses on distributed training and their lab
 * repositories. A config with such a key is refused, and the message names the key to use here.
 * deploy/convert-config translates such configs; its test compares this table with its own. */
#include "base/config_table.h"

#include <stdio.h>
#include <string.h>

static const struct foreign {
    /* Separated by blanks. A name with a dot is a path; any other is the last part of a path. */
    const char *names;
    const char *here; /* the key to use here; NULL: there is none */
    const char *why;  /* the difference; NULL: the key only has another name */
} foreign[] = {
    {"batch_size", "train.micro_batch and train.global_batch (the samples of all GPUs together)",
     "is per GPU in other programs"},
    {"per_device_train_batch_size", "train.micro_batch and train.global_batch", "is per GPU"},
    {"micro_batch_size", "train.micro_batch", NULL},
    {"global_batch_size", "train.global_batch", NULL},
    {"gradient_accumulation_steps grad_accum_steps accumulate_grad_batches", "train.global_batch",
     "follows from the batches: global_batch / (micro_batch x GPUs)"},
    {"num_epochs num_train_epochs max_epochs", "train.epochs", NULL},
    {"max_steps num_steps max_iters", "train.steps", NULL},
    {"learning_rate", "optimizer.lr", NULL},
    {"training.optimizer optimizer.type", "optimizer.name: adamw, adam or sgd", NULL},
    {"lr_scheduler_type scheduler lr_scheduler scheduler.type scheduler.name",
     "optimizer.schedule: constant, linear or cosine", NULL},
    {"T_max", "optimizer.schedule_steps", NULL},
    {"eta_min", "optimizer.min_lr", NULL},
    {"warmup_ratio", "optimizer.warmup_steps",
     "is a part of the run; here it is a number of steps"},
    {"max_grad_norm gradient_clip gradient_clipping clip_grad_norm", "train.grad_clip", NULL},
    {"mixed_precision dtype", "train.precision: fp32, bf16 or fp16", NULL},
    {"sharding_strategy fsdp_sharding_strategy",
     "strategy.name: fsdp with strategy.sharding: full_shard, shard_grad_op, hybrid_shard or "
     "no_shard",
     NULL},
    {"cpu_offload", "strategy.offload: optimizer", NULL},
    {"use_fsdp fsdp.enabled", "strategy.name: fsdp", NULL},
    {"gradient_checkpointing fsdp.activation_checkpointing", "train.activation_checkpointing: full",
     NULL},
    {"model.type", "model.name: gpt2, llama or resnet", NULL},
    {"vocab_size", "model.vocab", NULL},
    {"num_classes num_labels", "model.labels", NULL},
    {"num_hidden_layers num_layers n_layers", "model.n_layer", NULL},
    {"num_attention_heads num_heads n_heads", "model.n_head", NULL},
    {"num_key_value_heads num_kv_heads", "model.n_kv_head", NULL},
    {"intermediate_size", "model.n_inner", NULL},
    {"hidden_size hidden_dim d_model", "model.n_embd", NULL},
    {"block_size max_seq_len", "model.context and train.seq_len", NULL},
    {"seq_length sequence_length", "train.seq_len", NULL},
    {"train_path data_path data.path dataset.path", "data.train", NULL},
    {"val_path", "data.val", NULL},
    {"log_interval logging_steps", "train.log_every", NULL},
    {"eval_interval eval_steps", "train.eval_every", NULL},
    {"save_interval save_every save_steps", "checkpoint.every_steps", NULL},
    {"save_dir output_dir checkpoint_dir", "checkpoint.dir", NULL},
    {"log_dir", "log.dir", NULL},
    {"lora.r", "train.lora.rank", NULL},
    {"lora.lora_alpha", "train.lora.alpha", NULL},
    {"lora.target_modules", "train.lora.targets", NULL},
    {"num_gpus nproc_per_node", "cluster.gpus_per_node", NULL},
    {"num_nodes", "cluster.nnodes", NULL},
    {"num_workers pin_memory", NULL,
     "is not needed: the data loader reads ahead by itself; leave it out"},
};

/* Sections of such configs that are not sections here. */
static const char *const sections[] = {"training", "trainer",     "scheduler", "lr_scheduler",
                                       "fsdp",     "fsdp_config", "lora"};

/* Names of keys here that such configs have outside of all sections. */
static const char *const outside[] = {"epochs", "lr"};

static bool is_named(const struct foreign *f, const char *path)
{
    const char *dot = strrchr(path, '.'), *leaf = dot ? dot + 1 : path;
    for (const char *name = f->names; *name; name += strspn(name, " ")) {
        const size_t n = strcspn(name, " ");
        const char *whole = memchr(name, '.', n) ? path : leaf;
        if (strlen(whole) == n && memcmp(whole, name, n) == 0)
            return true;
        name += n;
    }
    return false;
}

static bool is_in_foreign_section(const char *path)
{
    const size_t n = strcspn(path, ".");
    for (size_t i = 0; i < sizeof sections / sizeof *sections && path[n] == '.'; i++)
        if (strlen(sections[i]) == n && strncmp(sections[i], path, n) == 0)
            return true;
    return false;
}

static bool is_outside(const char *path)
{
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        if (strcmp(outside[i], path) == 0)
            return true;
    return false;
}

/* The key with the same last part as `path`; NULL: no key has it, or several keys have it. */
static const char *key_of_same_leaf(const char *path)
{
    const char *leaf = strrchr(path, '.'), *found = NULL;
    leaf = leaf ? leaf + 1 : path;
    for (size_t i = 0; i < dpt_config_n_keys; i++) {
        const char *ours = strrchr(dpt_config_keys[i].path, '.');
        if (strcmp(ours ? ours + 1 : dpt_config_keys[i].path, leaf) != 0)
            continue;
        if (found)
            return NULL;
        found = dpt_config_keys[i].path;
    }
    return found;
}

static void describe_foreign(const struct foreign *f, const char *path,
                             char ret_text[DPT_CONFIG_FOREIGN_BYTES])
{
    (void)snprintf(ret_text, DPT_CONFIG_FOREIGN_BYTES,
                   "%.64s %s%s%s (deploy/convert-config translates the file)", path,
                   f->why ? f->why : "is another program's word", f->here ? "; here: " : "",
                   f->here ? f->here : "");
}

bool dpt_config_foreign_key(const char *path, char ret_text[DPT_CONFIG_FOREIGN_BYTES])
{
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        if (!is_named(&foreign[i], path))
            continue;
        describe_foreign(&foreign[i], path, ret_text);
        return true;
    }
    if (!is_in_foreign_section(path) && !is_outside(path))
        return false;
    describe_foreign(&(struct foreign){.here = key_of_same_leaf(path)}, path, ret_text);
    return true;
}
