/* Fuzz target: any text as a config (the text after a byte 1 is one --set). It is refused as
 * DPT_ECONFIG, or it loads, prints and loads again to the same text. */
#include "base/config.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

enum { OVERRIDE_BYTES = 256 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static char first[DPT_CONFIG_TEXT_BYTES_MAX], second[DPT_CONFIG_TEXT_BYTES_MAX];
    struct dpt_config config, back;
    struct dpt_err err = {.status = DPT_OK};
    char buf[OVERRIDE_BYTES], keys[64];
    const char *override = buf;
    size_t text_bytes = bytes, n_overrides = 0;
    const uint8_t *mark = bytes > 0 ? memchr(data, 1, bytes) : NULL;
    if (mark && bytes - (size_t)(mark - data) <= OVERRIDE_BYTES) {
        text_bytes = (size_t)(mark - data);
        size_t n = bytes - text_bytes - 1;
        memcpy(buf, mark + 1, n);
        buf[n] = '\0';
        n_overrides = 1;
    }
    if (dpt_config_load(&(struct dpt_config_input){.text = (const char *)data,
                                                   .bytes = text_bytes,
                                                   .name = "fuzz",
                                                   .overrides = &override,
                                                   .n_overrides = n_overrides},
                        &config, &err) != DPT_OK) {
        DPT_ASSERT(err.status == DPT_ECONFIG && err.text[0] != '\0');
        return 0;
    }
    DPT_ASSERT(dpt_config_print(&config, first, &err) == DPT_OK);
    DPT_ASSERT(dpt_config_load_text(first, "printed", NULL, 0, &back, &err) == DPT_OK);
    DPT_ASSERT(dpt_config_print(&back, second, &err) == DPT_OK);
    DPT_ASSERT(strcmp(first, second) == 0);
    DPT_ASSERT(dpt_config_diff(&config, &back, DPT_CONFIG_NODE, NULL, keys, sizeof keys) == 0);
    return 0;
}
