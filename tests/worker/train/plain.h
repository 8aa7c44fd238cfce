/* Training as a textbook would write it: one thread, no lanes' stack, no reducer, no ranks. */
#ifndef DPT_TESTS_WORKER_TRAIN_PLAIN_H
#define DPT_TESTS_WORKER_TRAIN_PLAIN_H

#include "base/config.h"
#include "base/hash.h"

/* Trains config->train.steps steps from the seed. `ret_hex` is the weights hash. Any error fails
 * the test. */
void plain_train(const struct dpt_config *config, char ret_hex[DPT_HASH_HEX_BYTES]);

/* The same, and then the mean loss over the first `sequences` of data.val, one after another. */
void plain_train_and_validate(const struct dpt_config *config, int64_t sequences,
                              char ret_hex[DPT_HASH_HEX_BYTES], double *ret_loss);

/* The same for a model with labels: `right` counts the correct predictions. */
struct plain_validation {
    double loss;
    int64_t right;
};
void plain_train_and_evaluate(const struct dpt_config *config, int64_t samples,
                              char ret_hex[DPT_HASH_HEX_BYTES], struct plain_validation *ret);

#endif
