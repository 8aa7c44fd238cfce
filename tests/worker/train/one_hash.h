/* What every family of models is held to: one hash over strategies and worlds, that of the
 * textbook's loop (plain.h). */
#ifndef DPT_TESTS_WORKER_TRAIN_ONE_HASH_H
#define DPT_TESTS_WORKER_TRAIN_ONE_HASH_H

#include "base/config.h"

/* Trains the config by the textbook's loop, and undisturbed under each strategy of rig.h in worlds
 * of 1 to `world_max` ranks, on two hosts where there are two: all have the same weights at the
 * end. The runs' folders begin with `name`. */
void expect_one_hash(const char *name, const struct dpt_config *config, int world_max);

/* The same of a config with labels that evaluates `samples` samples (rig_evaluate): each run's last
 * evaluation is the loop's, too, its loss but for the bits that the shape of a batch makes. */
void expect_one_hash_and_accuracy(const char *name, const struct dpt_config *config, int world_max,
                                  int samples);

#endif
