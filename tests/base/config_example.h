/* The config that the tests of base start from. */
#ifndef DPT_TESTS_BASE_CONFIG_EXAMPLE_H
#define DPT_TESTS_BASE_CONFIG_EXAMPLE_H

/* The example of the design, in fp32. */
static const char example[] =
    "run: demo                  # rendezvous run id\n"
    "seed: 42\n"
    "cluster:   {nnodes: \"1:4\", gpus_per_node: auto, device: auto, threads: auto, timeout_s: 5, "
    "max_restarts: 100, rdzv: null}\n"
    "model:     {name: gpt2, preset: gpt2-124m}\n"
    "data:      {kind: tokens, train: \"data/train_*.bin\", val: \"data/val_*.bin\"}\n"
    "train:     {steps: 200, global_batch: 32, micro_batch: 4, seq_len: 64, precision: fp32, "
    "reduction: canonical, accumulate: auto, lanes: auto,\n"
    "            activation_checkpointing: none, grad_clip: 1.0, log_every: 1, eval_every: 50}\n"
    "optimizer: {name: adamw, lr: 3.0e-4, min_lr: 3.0e-5, schedule: cosine, warmup_steps: 10, "
    "betas: "
    "[0.9, 0.95], eps: 1.0e-8, weight_decay: 0.1, lr_scaling: none}\n"
    "strategy:  {name: ddp, bucket_mib: 25, overlap: true}\n"
    "checkpoint: {dir: runs/demo/checkpoints, every_steps: 50, keep: 3}\n"
    "log:       {dir: runs/demo}\n";

#endif
