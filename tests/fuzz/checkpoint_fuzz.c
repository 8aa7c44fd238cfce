/* Fuzz target: any bytes as the header of a safetensors file, a manifest, state.json, the index or
 * a name, by the first byte. Accepted input must satisfy the parser's contract, and print and parse
 * again if there is a printer. */
#include "base/hash.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/state_json.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEAL_BYTES = 8, AFTER_SEAL_BYTES = 4 };

/* The first byte is the size of the data behind the header. */
static void safetensors(const char *text, size_t bytes)
{
    struct dpt_safetensors header = {0};
    struct dpt_err err;
    bool ours = true;
    if (bytes == 0)
        return;
    const int64_t data_bytes = (unsigned char)text[0];
    const int64_t start = DPT_SAFETENSORS_LENGTH_BYTES + (int64_t)bytes - 1;
    if (dpt_safetensors_parse(text + 1, bytes - 1, start + data_bytes, "fuzz", &header, &err) !=
        DPT_OK)
        return;
    int64_t at = start;
    for (int i = 0; i < header.n; i++) {
        const struct dpt_safetensors_entry *entry = &header.entries[i];
        const int64_t width = dpt_safetensors_width(entry->dtype);
        int64_t values = width;
        for (int d = 0; d < entry->ndim; d++)
            values *= width > 0 ? entry->dim[d] : 1;
        DPT_ASSERT(entry->name[0] != '\0' && entry->begin == at && entry->end >= at);
        DPT_ASSERT(width == 0 || entry->end == at + values);
        ours = ours && entry->dtype == DPT_SAFETENSORS_F32;
        at = entry->end;
    }
    DPT_ASSERT(at == start + data_bytes);
    DPT_ASSERT(ours == (dpt_safetensors_check_f32(&header, "fuzz", &err) == DPT_OK));
    dpt_safetensors_fini(&header);
}

/* Sealed first, as otherwise nothing would get past its checksum. */
static void manifest(char *text, size_t bytes)
{
    struct dpt_manifest parsed = {0}, again = {0};
    struct dpt_err err;
    char *printed, hex[SEAL_BYTES + 1];
    size_t printed_bytes;
    if (bytes > SEAL_BYTES + AFTER_SEAL_BYTES) {
        char *seal = text + bytes - SEAL_BYTES - AFTER_SEAL_BYTES;
        memset(seal, '0', SEAL_BYTES);
        (void)snprintf(hex, sizeof hex, "%08x", dpt_crc32c(0, text, bytes));
        memcpy(seal, hex, SEAL_BYTES);
    }
    if (dpt_manifest_parse(text, bytes, "fuzz", &parsed, &err) != DPT_OK)
        return;
    for (int i = 0; i < parsed.n_files; i++)
        DPT_ASSERT(dpt_name_is_listable(parsed.files[i].name));
    DPT_ASSERT(dpt_manifest_print(&parsed, &printed, &printed_bytes, &err) == DPT_OK);
    DPT_ASSERT(dpt_manifest_parse(printed, printed_bytes, "printed", &again, &err) == DPT_OK);
    DPT_ASSERT(again.step == parsed.step && again.n_files == parsed.n_files);
    free(printed);
    dpt_manifest_fini(&again);
    dpt_manifest_fini(&parsed);
}

static void state(const char *text, size_t bytes)
{
    struct dpt_state_json parsed = {0}, again = {0};
    struct dpt_err err;
    char *printed;
    if (dpt_state_json_parse(text, bytes, &parsed, &err) != DPT_OK)
        return;
    DPT_ASSERT(dpt_state_json_print(&parsed.state, &printed, &err) == DPT_OK);
    DPT_ASSERT(dpt_state_json_parse(printed, strlen(printed), &again, &err) == DPT_OK);
    DPT_ASSERT(again.state.seed == parsed.state.seed &&
               strcmp(again.state.history_json, parsed.state.history_json) == 0);
    free(printed);
    dpt_state_json_fini(&again);
    dpt_state_json_fini(&parsed);
}

static void index_and_names(const char *text, size_t bytes)
{
    struct dpt_index index = {0};
    struct dpt_err err;
    char *name = malloc(bytes + 1);
    DPT_ASSERT(name != NULL);
    memcpy(name, text, bytes);
    name[bytes] = '\0';
    int64_t step;
    uint64_t generation;
    enum dpt_kind kind;
    int i, n;
    (void)dpt_name_parse_step(name, &step);
    (void)dpt_name_parse_temporary(name, &step, &generation);
    if (dpt_name_parse_tensors(name, &kind, &i, &n))
        DPT_ASSERT(dpt_name_is_listable(name) && i < n);
    if (dpt_index_parse(text, bytes, &index, &err) == DPT_OK)
        DPT_ASSERT(dpt_index_check(&index, "no such tensor", "no such file", &err) == DPT_ECORRUPT);
    dpt_index_fini(&index);
    free(name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0)
        return 0;
    char *text = malloc(bytes); /* exact, so that a byte too far is seen */
    DPT_ASSERT(text != NULL);
    const size_t n = bytes - 1;
    memcpy(text, data + 1, n);
    switch (data[0]) {
    case 's':
        safetensors(text, n);
        break;
    case 'm':
        manifest(text, n);
        break;
    case 't':
        state(text, n);
        break;
    default:
        index_and_names(text, n);
    }
    free(text);
    return 0;
}
