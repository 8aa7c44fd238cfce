/* A folder with config.json (hf_rig.h). */
#include "tests/worker/model/hf_rig.h"

#include "base/fs.h"
#include "tests/tmp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

char hf_dir[128], hf_path[192];
struct dpt_err hf_err;

int hf_set_up(void **state)
{
    (void)state;
    if (!test_make_dir(hf_dir, sizeof hf_dir, "hf"))
        return -1;
    (void)snprintf(hf_path, sizeof hf_path, "%s/config.json", hf_dir);
    return 0;
}

int hf_tear_down(void **state)
{
    (void)state;
    return dpt_fs_remove_tree(hf_dir, &hf_err) == DPT_OK ? 0 : -1;
}

struct dpt_config hf_config_of(const char *yaml, const struct dpt_config_sizes *said)
{
    struct dpt_config config;
    if (dpt_config_load(
            &(struct dpt_config_input){
                .text = yaml, .bytes = strlen(yaml), .name = "test", .sizes = said},
            &config, &hf_err) != DPT_OK)
        fail_msg("%s", hf_err.text);
    return config;
}

void hf_write(const char *text)
{
    assert_int_equal(dpt_fs_write_file_atomic(hf_path, text, strlen(text), &hf_err), DPT_OK);
}

json_t *hf_print(const struct dpt_config *config, const struct dpt_hf_beside *beside)
{
    char *text = NULL;
    assert_int_equal(dpt_hf_config_print(config, beside, "float32", &text, &hf_err), DPT_OK);
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(json);
    free(text);
    return json;
}
