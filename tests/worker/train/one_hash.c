/* One hash over strategies and worlds (one_hash.h). */
#include "tests/worker/train/one_hash.h"

#include "tests/worker/train/plain.h"
#include "tests/worker/train/rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* What each run ends with; no samples: it does not evaluate. */
struct expected {
    char hash[DPT_HASH_HEX_BYTES];
    int samples;
    struct plain_validation validation;
};

static void expect_validation(const char *dir, const struct expected *expected)
{
    const struct plain_validation *found = &expected->validation;
    json_t *summary = rig_summary_of(dir);
    assert_true(rig_number(summary, "val_samples") == expected->samples);
    assert_true(rig_number(summary, "val_accuracy") == (double)found->right / expected->samples);
    assert_true(fabs(rig_number(summary, "val_loss") - found->loss) < 1e-6 * found->loss);
    json_decref(summary);
}

static void every_strategy(const char *name, struct dpt_config config, int world_max,
                           const struct expected *expected)
{
    char hash[64], folder[64];
    for (int v = 0; v < RIG_STRATEGIES + RIG_COVERED; v++)
        for (int world = 1; world <= world_max; world += RIG_EVERY) {
            const bool covered = v >= RIG_STRATEGIES;
            const char *strategy = covered ? rig_covered[v - RIG_STRATEGIES] : rig_strategies[v];
            rig_choose(&config, strategy);
            (void)snprintf(folder, sizeof folder, "%s-%d-%d", name, v, world);
            rig_undisturbed(&config, folder, world, world > 1, hash);
            if (strcmp(hash, expected->hash) != 0)
                fail_msg("%s, %s, world %d: %s instead of %s", name, strategy, world, hash,
                         expected->hash);
            if (expected->samples > 0)
                expect_validation(rig_dir(folder), expected);
        }
}

void expect_one_hash(const char *name, const struct dpt_config *config, int world_max)
{
    struct expected expected = {.samples = 0};
    plain_train(config, expected.hash);
    every_strategy(name, *config, world_max, &expected);
}

void expect_one_hash_and_accuracy(const char *name, const struct dpt_config *config, int world_max,
                                  int samples)
{
    struct expected expected = {.samples = samples};
    plain_train_and_evaluate(config, samples, expected.hash, &expected.validation);
    assert_true(expected.validation.right > 0 && expected.validation.right <= samples);
    every_strategy(name, *config, world_max, &expected);
}
