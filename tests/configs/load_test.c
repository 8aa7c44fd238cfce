/* Loads the configs given as arguments, through the table, the loader and all checks. Each must be
 * valid in its place, have no key without effect that this test finds, and read back from its
 * canonical form to the same values. */
#include "base/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum dpt_status check_one(const char *path, struct dpt_err *err)
{
    static char text[DPT_CONFIG_TEXT_BYTES_MAX], again[DPT_CONFIG_TEXT_BYTES_MAX];
    static struct dpt_config config, copy, defaults;
    char keys[512];
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return dpt_fail(err, DPT_EIO, "cannot open '%s'", path);
    size_t bytes = fread(text, 1, sizeof text, file);
    fclose(file);
    DPT_TRY(dpt_config_load(&(struct dpt_config_input){.text = text, .bytes = bytes, .name = path},
                            &config, err));
    dpt_config_defaults(&defaults);
    if (dpt_config_reads_labels(&config) && config.train.eval_tokens != defaults.train.eval_tokens)
        return dpt_fail(err, DPT_ECONFIG,
                        "%s: train.eval_tokens has no effect: data with labels are read whole",
                        path);
    DPT_TRY(dpt_config_print(&config, again, err));
    DPT_TRY(dpt_config_load_text(again, "canonical form", NULL, 0, &copy, err));
    if (dpt_config_diff(&config, &copy, DPT_CONFIG_NODE, NULL, keys, sizeof keys) != 0)
        return dpt_fail(err, DPT_ECONFIG, "%s: the canonical form differs in %s", path, keys);
    if (dpt_config_slots(&config) < 1)
        return dpt_fail(err, DPT_ECONFIG, "%s: no slot a step", path);
    return DPT_OK;
}

int main(int argc, char **argv)
{
    int failures = argc < 2;
    for (int i = 1; i < argc; i++) {
        struct dpt_err err;
        if (check_one(argv[i], &err) != DPT_OK) {
            failures++;
            fprintf(stderr, "%s\n", err.text);
        }
    }
    printf("%d configs, %d failures\n", argc - 1, failures);
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
