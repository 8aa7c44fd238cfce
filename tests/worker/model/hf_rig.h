/* Shared by the tests of config.json: a folder with the file, configs from YAML, and the
 * config.json that is written for a config. */
#ifndef DPT_TESTS_WORKER_MODEL_HF_RIG_H
#define DPT_TESTS_WORKER_MODEL_HF_RIG_H

#include "worker/model/hf_config.h"

#include <jansson.h>

extern char hf_dir[128], hf_path[192]; /* the folder, and config.json in it */
extern struct dpt_err hf_err;          /* of the last call that failed */

/* Group fixtures of cmocka: make and remove the folder. */
int hf_set_up(void **state);
int hf_tear_down(void **state);

/* hf_config_of reads a config, hf_write writes config.json. Both fail the test on an error. */
struct dpt_config hf_config_of(const char *yaml, const struct dpt_config_sizes *said);
void hf_write(const char *text);

/* The config.json that dpt writes for the config; owned by the caller. */
json_t *hf_print(const struct dpt_config *config, const struct dpt_hf_beside *beside);

#endif
