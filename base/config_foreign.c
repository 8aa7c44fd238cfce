/* Keys of other programs' configs: what public courses on distributed training and their lab
 * repositories call what has another name here. Their files are refused with our spelling;
 * deploy/convert-config, whose test compares this table with its own, translates them. */
#include "base/config_table.h"

#include <stdio.h>
#include <string.h>

static const struct foreign {
    const char *name; /* a whole path with a dot in it, else the last part of one, in any section */
    const char *here; /* NULL: there is none */
    const char *why;  /* NULL: another word for the same */
} foreign[] = {
    {"batch_size", "train.micro_batch and train.global_batch (the samples of all GPUs together)",
     "is per GPU in other programs"},
    {"per_device_train_batch_size", "train.micro_batch and train.global_batch", "is per GPU"},
    {"micro_batch_size", "train.micro_batch", NULL},
    {"global_batch_size", "train.global_batch", NULL},
    {"gradient_accumulation_steps", "train.global_batch",
     "follows from the batches: global_batch / (micro_batch x GPUs)"},
    {"grad_accum_steps", "train.global_batch",
     "follows from the batches: global_batch / (micro_batch x GPUs)"},
    {"accumulate_grad_batches", "train.global_batch",
     "follows from the batches: global_batch / (micro_batch x GPUs)"},
    {"num_epochs", "train.epochs", NULL},
    {"num_train_epochs", "train.epochs", NULL},
    {"max_epochs", "train.epochs", NULL},
    {"max_steps", "train.steps", NULL},
    {"num_steps", "train.steps", NULL},
    {"max_iters", "train.steps", NULL},
    {"learning_rate", "optimizer.lr", NULL},
    {"training.optimizer", "optimizer.name: adamw, adam or sgd", NULL},
    {"lr_scheduler_type", "optimizer.schedule: constant, linear or cosine", NULL},
    {"scheduler", "optimizer.schedule: constant, linear or cosine", NULL},
    {"lr_scheduler", "optimizer.schedule: constant, linear or cosine", NULL},
    {"scheduler.type", "optimizer.schedule: constant, linear or cosine", NULL},
    {"scheduler.name", "optimizer.schedule: constant, linear or cosine", NULL},
    {"T_max", "optimizer.schedule_steps", NULL},
    {"eta_min", "optimizer.min_lr", NULL},
    {"warmup_ratio", "optimizer.warmup_steps",
     "is a part of the run; here it is a number of steps"},
    {"max_grad_norm", "train.grad_clip", NULL},
    {"gradient_clip", "train.grad_clip", NULL},
    {"gradient_clipping", "train.grad_clip", NULL},
    {"clip_grad_norm", "train.grad_clip", NULL},
    {"mixed_precision", "train.precision: fp32, bf16 or fp16", NULL},
    {"dtype", "train.precision: fp32, bf16 or fp16", NULL},
    {"sharding_strategy",
     "strategy.name: fsdp with strategy.sharding: full_shard, shard_grad_op, hybrid_shard or "
     "no_shard",
     NULL},
    {"fsdp_sharding_strategy",
     "strategy.name: fsdp with strategy.sharding: full_shard, shard_grad_op, hybrid_shard or "
     "no_shard",
     NULL},
    {"cpu_offload", "strategy.offload: optimizer", NULL},
    {"use_fsdp", "strategy.name: fsdp", NULL},
    {"fsdp.enabled", "strategy.name: fsdp", NULL},
    {"gradient_checkpointing", "train.activation_checkpointing: full", NULL},
    {"fsdp.activation_checkpointing", "train.activation_checkpointing: full", NULL},
    {"model.type", "model.name: gpt2, llama or resnet", NULL},
    {"optimizer.type", "optimizer.name: adamw, adam or sgd", NULL},
    {"vocab_size", "model.vocab", NULL},
    {"num_classes", "model.labels", NULL},
    {"num_labels", "model.labels", NULL},
    {"num_hidden_layers", "model.n_layer", NULL},
    {"num_attention_heads", "model.n_head", NULL},
    {"num_key_value_heads", "model.n_kv_head", NULL},
    {"num_kv_heads", "model.n_kv_head", NULL},
    {"intermediate_size", "model.n_inner", NULL},
    {"num_layers", "model.n_layer", NULL},
    {"n_layers", "model.n_layer", NULL},
    {"num_heads", "model.n_head", NULL},
    {"n_heads", "model.n_head", NULL},
    {"hidden_size", "model.n_embd", NULL},
    {"hidden_dim", "model.n_embd", NULL},
    {"d_model", "model.n_embd", NULL},
    {"block_size", "model.context and train.seq_len", NULL},
    {"max_seq_len", "model.context and train.seq_len", NULL},
    {"seq_length", "train.seq_len", NULL},
    {"sequence_length", "train.seq_len", NULL},
    {"train_path", "data.train", NULL},
    {"data_path", "data.train", NULL},
    {"data.path", "data.train", NULL},
    {"dataset.path", "data.train", NULL},
    {"val_path", "data.val", NULL},
    {"log_interval", "train.log_every", NULL},
    {"logging_steps", "train.log_every", NULL},
    {"eval_interval", "train.eval_every", NULL},
    {"eval_steps", "train.eval_every", NULL},
    {"save_interval", "checkpoint.every_steps", NULL},
    {"save_every", "checkpoint.every_steps", NULL},
    {"save_steps", "checkpoint.every_steps", NULL},
    {"save_dir", "checkpoint.dir", NULL},
    {"output_dir", "checkpoint.dir", NULL},
    {"checkpoint_dir", "checkpoint.dir", NULL},
    {"log_dir", "log.dir", NULL},
    {"lora.r", "train.lora.rank", NULL},
    {"lora.lora_alpha", "train.lora.alpha", NULL},
    {"lora.target_modules", "train.lora.targets", NULL},
    {"num_gpus", "cluster.gpus_per_node", NULL},
    {"nproc_per_node", "cluster.gpus_per_node", NULL},
    {"num_nodes", "cluster.nnodes", NULL},
    {"num_workers", NULL, "is the loader's, which reads ahead by itself here; leave it out"},
    {"pin_memory", NULL, "is the loader's, which reads ahead by itself here; leave it out"},
};

/* Sections of such files, none of which is one here. */
static const char *const sections[] = {"training", "trainer",     "scheduler", "lr_scheduler",
                                       "fsdp",     "fsdp_config", "lora"};

/* Keys of ours that such files have outside of any section. */
static const char *const outside[] = {"epochs", "lr"};

static bool is_named(const struct foreign *f, const char *path)
{
    const char *leaf = strrchr(path, '.');
    if (strchr(f->name, '.'))
        return strcmp(f->name, path) == 0;
    return strcmp(f->name, leaf ? leaf + 1 : path) == 0;
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

/* The only key of ours with the last part of `path`; NULL: there is none, or there are several. */
static const char *same_name(const char *path)
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

static void describe(const struct foreign *f, const char *path,
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
        describe(&foreign[i], path, ret_text);
        return true;
    }
    if (!is_in_foreign_section(path) && !is_outside(path))
        return false;
    describe(&(struct foreign){.name = path, .here = same_name(path)}, path, ret_text);
    return true;
}
