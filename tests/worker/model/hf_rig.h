/* What the tests of config.json share: a folder with the file, configs from YAML, and the text that
 * is written of one. */
#ifndef DPT_TESTS_WORKER_MODEL_HF_RIG_H
#define DPT_TESTS_WORKER_MODEL_HF_RIG_H

#include "worker/model/hf_config.h"

#include <jansson.h>

extern char hf_dir[128], hf_path[192]; /* the folder, and config.json in it */
extern struct dpt_err hf_err;          /* of the newest call that failed */

/* Of cmocka_run_group_tests: makes and removes the folder. */
int hf_set_up(void **state);
int hf_tear_down(void **state);

/* Each fails the test where the text is refused. */
struct dpt_config hf_config_of(const char *yaml, const struct dpt_config_sizes *said);
void hf_write(const char *text);

/* What is written of the config, as JSON. Owned by the caller. */
json_t *hf_print(const struct dpt_config *config, const struct dpt_hf_beside *beside);

#endif
