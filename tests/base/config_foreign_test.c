/* Configs of other programs: refused at the first key, with our spelling. */
#include "base/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define TRANSLATES " (deploy/convert-config translates the file)"

static const struct {
    const char *text, *error;
} spelling_cases[] = {
    {"run: x\ntraining:\n  batch_size: 32\n",
     "my.yaml:3:3: training.batch_size is per GPU in other programs; here: train.micro_batch "
     "and train.global_batch (the samples of all GPUs together)" TRANSLATES},
    {"num_epochs: 10\n",
     "my.yaml:1:1: num_epochs is another program's word; here: train.epochs" TRANSLATES},
    {"trainer: {accumulate_grad_batches: 2}\n",
     "my.yaml:1:11: trainer.accumulate_grad_batches follows from the batches: global_batch / "
     "(micro_batch x GPUs); here: train.global_batch" TRANSLATES},
    {"train: {num_epochs: 10}\n", "my.yaml:1:9: train.num_epochs is another program's word; "
                                  "here: train.epochs" TRANSLATES},
    {"fsdp:\n  sharding_strategy: FULL_SHARD\n",
     "my.yaml:2:3: fsdp.sharding_strategy is another program's word; here: strategy.name: fsdp "
     "with strategy.sharding: full_shard, shard_grad_op, hybrid_shard or no_shard" TRANSLATES},
    {"training: {optimizer: {learning_rate: 1}}\n",
     "my.yaml:1:24: training.optimizer.learning_rate is another program's word; here: "
     "optimizer.lr" TRANSLATES},
    {"model: {type: gpt2}\n", "my.yaml:1:9: model.type is another program's word; here: "
                              "model.name: gpt2, llama or resnet" TRANSLATES},
    {"data: {num_workers: 4}\n",
     "my.yaml:1:8: data.num_workers is not needed: the data loader reads ahead by itself; leave "
     "it out" TRANSLATES},
    /* Keys with dpt's name in another section, and unknown keys. */
    {"experiment: 4\nscheduler: {type: cosine}\n",
     "my.yaml:2:13: scheduler.type is another program's word; here: optimizer.schedule: "
     "constant, linear or cosine" TRANSLATES},
    {"training: {epochs: 3}\n",
     "my.yaml:1:12: training.epochs is another program's word; here: train.epochs" TRANSLATES},
    {"training: {lr: 0.1}\n",
     "my.yaml:1:12: training.lr is another program's word; here: optimizer.lr" TRANSLATES},
    {"training: {optimizer: adam}\n",
     "my.yaml:1:12: training.optimizer is another program's word; here: optimizer.name: adamw, "
     "adam or sgd" TRANSLATES},
    {"epochs: 3\n", "my.yaml:1:1: epochs is another program's word; here: train.epochs" TRANSLATES},
    {"lr: 0.1\n", "my.yaml:1:1: lr is another program's word; here: optimizer.lr" TRANSLATES},
    {"train: {lr: 0.1}\n", "my.yaml:1:9: unknown key 'train.lr'; did you mean 'optimizer.lr'?"},
    {"model: {num_classes: 10}\n",
     "my.yaml:1:9: model.num_classes is another program's word; here: model.labels" TRANSLATES},
    {"model: {num_labels: 10}\n",
     "my.yaml:1:9: model.num_labels is another program's word; here: model.labels" TRANSLATES},
    {"model: {num_key_value_heads: 2}\n",
     "my.yaml:1:9: model.num_key_value_heads is another program's word; here: "
     "model.n_kv_head" TRANSLATES},
    {"model: {intermediate_size: 2}\n",
     "my.yaml:1:9: model.intermediate_size is another program's word; here: "
     "model.n_inner" TRANSLATES},
    {"lora: {r: 8}\n",
     "my.yaml:1:8: lora.r is another program's word; here: train.lora.rank" TRANSLATES},
    /* A section of theirs alone: a name that several of our keys have is no hint. */
    {"training: {label_smoothing: 0.1}\n",
     "my.yaml:1:12: training.label_smoothing is another program's word" TRANSLATES},
    {"trainer: {name: x}\n", "my.yaml:1:11: trainer.name is another program's word" TRANSLATES},
    {"scheduler: {step_size: 30}\n",
     "my.yaml:1:13: scheduler.step_size is another program's word" TRANSLATES},
    {"fsdp: {wrap: true}\n", "my.yaml:1:8: fsdp.wrap is another program's word" TRANSLATES},
    {"fsdp: {enabled: true}\n",
     "my.yaml:1:8: fsdp.enabled is another program's word; here: strategy.name: "
     "fsdp" TRANSLATES},
    {"trainings: {wrap: true}\n",
     "my.yaml:1:1: unknown key 'trainings'; known are: run, seed, cluster, model, data, "
     "train, optimizer, strategy, checkpoint, log, trace"},
    {"training: {}\n", "my.yaml:1:1: unknown key 'training'; did you mean 'train'?"},
    {"scheduler: cosine\n",
     "my.yaml:1:1: scheduler is another program's word; here: optimizer.schedule: constant, "
     "linear or cosine" TRANSLATES},
    {"optimizer: {name: AdamW}\n",
     "my.yaml:1:19: optimizer.name: unknown value 'AdamW'; supported: adamw, adam, sgd"},
    {"strategy: {sharding: FULL_SHARD}\n",
     "my.yaml:1:22: strategy.sharding: unknown value 'FULL_SHARD'; supported: null, "
     "full_shard, shard_grad_op, hybrid_shard, no_shard"},
};

static void our_spelling(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof spelling_cases / sizeof *spelling_cases; i++) {
        struct dpt_config c;
        struct dpt_err err;
        assert_int_equal(dpt_config_load_text(spelling_cases[i].text, "my.yaml", NULL, 0, &c, &err),
                         DPT_ECONFIG);
        assert_string_equal(err.text, spelling_cases[i].error);
    }
}

static void on_the_command_line(void **state)
{
    (void)state;
    const char *const set = "training.batch_size=8";
    struct dpt_config c;
    struct dpt_err err;
    assert_int_equal(dpt_config_load_text("", "my.yaml", &set, 1, &c, &err), DPT_ECONFIG);
    assert_string_equal(err.text,
                        "--set training.batch_size=8: training.batch_size is per GPU in other "
                        "programs; here: train.micro_batch and train.global_batch (the samples of "
                        "all GPUs together)" TRANSLATES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(our_spelling),
                                       cmocka_unit_test(on_the_command_line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
