/* The parsers of checkpoints: accepted and refused texts with the reason, and no memory error with
 * any bytes. */
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/state_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

static enum dpt_status parse(const char *json, int64_t data_bytes)
{
    struct dpt_safetensors header = {0};
    const size_t n = strlen(json);
    enum dpt_status status =
        dpt_safetensors_parse(json, n, 8 + (int64_t)n + data_bytes, "f", &header, &err);
    if (status == DPT_OK)
        status = dpt_safetensors_check_f32(&header, "f", &err);
    dpt_safetensors_fini(&header);
    return status;
}

#define TENSOR(name, shape, begin, end)                                                            \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":[" shape "],\"data_offsets\":[" begin "," end "]}"

static void safetensors_accepts(void **state)
{
    (void)state;
    struct dpt_safetensors header = {0};
    /* Not in the order of the data, blanks at the end, an empty tensor, a scalar. */
    const char *json = "{" TENSOR("b", "2,3", "8", "32") "," TENSOR("a", "2", "0", "8") "," TENSOR(
        "e", "0,7", "8", "8") "," TENSOR("s", "", "32",
                                         "36") ",\"__metadata__\":{\"format\":\"pt\"}}  ";
    const int64_t data = 8 + (int64_t)strlen(json);
    assert_int_equal(dpt_safetensors_parse(json, strlen(json), data + 36, "f", &header, &err),
                     DPT_OK);
    assert_int_equal(header.n, 4);
    assert_string_equal(header.entries[0].name, "a");
    assert_string_equal(header.entries[1].name, "e");
    assert_string_equal(header.entries[2].name, "b");
    assert_int_equal(header.entries[2].ndim, 2);
    assert_int_equal(header.entries[2].dim[1], 3);
    assert_int_equal(header.entries[2].begin, data + 8);
    assert_int_equal(header.entries[3].ndim, 0);
    dpt_safetensors_fini(&header);
    assert_int_equal(parse("{}", 0), DPT_OK);
}

/* Files of other programs: 16-bit floats are parsed, other dtypes keep their name. */
static void safetensors_other_dtypes(void **state)
{
    (void)state;
    struct dpt_safetensors header = {0};
    const char *json = "{\"h\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[0,6]},"
                       "\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[6,10]},"
                       "\"i\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[10,26]}}";
    const int64_t data = 8 + (int64_t)strlen(json);
    assert_int_equal(dpt_safetensors_parse(json, strlen(json), data + 26, "f", &header, &err),
                     DPT_OK);
    assert_int_equal(header.n, 3);
    assert_int_equal(header.entries[0].dtype, DPT_SAFETENSORS_F16);
    assert_int_equal(header.entries[1].dtype, DPT_SAFETENSORS_BF16);
    assert_int_equal(header.entries[2].dtype, DPT_SAFETENSORS_OTHER);
    assert_string_equal(header.entries[2].dtype_name, "I64");
    assert_int_equal(dpt_safetensors_width(DPT_SAFETENSORS_BF16), 2);
    assert_int_equal(dpt_safetensors_check_f32(&header, "f", &err), DPT_EUNSUPPORTED);
    dpt_safetensors_fini(&header);
    const char *odd = "{\"h\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,6]}}";
    assert_int_equal(
        dpt_safetensors_parse(odd, strlen(odd), 8 + (int64_t)strlen(odd) + 6, "f", &header, &err),
        DPT_ECORRUPT);
}

static void safetensors_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *json, *why;
        int64_t data_bytes;
    } cases[] = {
        {"", "begin with '{'", 0},
        {" {}", "begin with '{'", 0},
        {"[]", "begin with '{'", 0},
        {"{", "line 1", 0},
        {"{} x", "line 1", 0},
        {"{" TENSOR("a", "1", "0", "4") "," TENSOR("a", "1", "0", "4") "}", "duplicate", 4},
        {"{" TENSOR("a", "1", "0", "4") "," TENSOR("b", "1", "8", "12") "}", "a hole", 12},
        {"{" TENSOR("a", "1", "4", "8") "}", "a hole", 8},
        {"{" TENSOR("a", "2", "0", "8") "," TENSOR("b", "1", "4", "8") "}", "an overlap", 8},
        {"{" TENSOR("a", "1", "0", "4") "}", "the file at", 5},
        {"{" TENSOR("a", "2", "0", "8") "}", "lies at [0, 8) of 4", 4},
        {"{" TENSOR("a", "1", "-4", "0") "}", "lies at", 0},
        {"{" TENSOR("a", "1", "4", "0") "}", "lies at", 4},
        {"{" TENSOR("a", "2", "0", "4") "}", "does not fit its 4 bytes", 4},
        {"{" TENSOR("a", "-1,-1", "0", "4") "}", "does not fit", 4},
        {"{" TENSOR("a", "4611686018427387904,4", "0", "0") "}", "does not fit", 0},
        {"{" TENSOR("a", "1.0", "0", "4") "}", "does not fit", 4},
        {"{" TENSOR("a", "1,1,1,1,1", "0", "4") "}", "at most 4", 4},
        {"{" TENSOR("a", "1", "0", "99999999999999999999") "}", "line 1", 4},
        {"{" TENSOR("a", "1", "0.0", "4") "}", "tensor 'a'", 4},
        {"{" TENSOR("", "1", "0", "4") "}", "empty", 4},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]}}", "dtype F16", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", "tensor 'a'", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", "x", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", "no list", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", "tensor 'a'", 4},
        {"{\"a\":7}", "tensor 'a'", 0},
        {"{\"__metadata__\":7}", "__metadata__", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err.text[0] = '\0';
        if (parse(cases[i].json, cases[i].data_bytes) == DPT_OK ||
            !strstr(err.text, cases[i].why) || strncmp(err.text, "'f'", 3) != 0)
            fail_msg("%s: %s", cases[i].json, err.text);
    }
}

static void safetensors_length(void **state)
{
    (void)state;
    size_t n = 0;
    const uint8_t ten[8] = {10}, huge[8] = {1, 225, 245, 5}, wild[8] = {0, 0, 0, 0, 0, 0, 0, 255};
    const uint8_t one[8] = {1};
    assert_int_equal(dpt_safetensors_parse_length(ten, 18, "f", &n, &err), DPT_OK);
    assert_int_equal(n, 10);
    assert_int_equal(dpt_safetensors_parse_length(ten, 17, "f", &n, &err), DPT_ECORRUPT);
    assert_int_equal(dpt_safetensors_parse_length(ten, 3, "f", &n, &err), DPT_ECORRUPT);
    assert_int_equal(dpt_safetensors_parse_length(one, 99, "f", &n, &err), DPT_ECORRUPT);
    /* 100,000,001 */
    assert_int_equal(dpt_safetensors_parse_length(huge, INT64_MAX, "f", &n, &err), DPT_ECORRUPT);
    assert_int_equal(dpt_safetensors_parse_length(wild, INT64_MAX, "f", &n, &err), DPT_ECORRUPT);
}

static void safetensors_round_trip(void **state)
{
    (void)state;
    const struct dpt_checkpoint_tensor tensors[] = {
        {.name = "z \"quoted\"", .ndim = 2, .dim = {3, 5}},
        {.name = "a", .ndim = 1, .dim = {7}},
        {.name = "empty", .ndim = 1, .dim = {0}}};
    struct dpt_safetensors header = {0};
    char *head;
    size_t bytes, n;
    assert_int_equal(dpt_safetensors_print(tensors, 3, DPT_SAFETENSORS_F32, &head, &bytes, &err),
                     DPT_OK);
    assert_int_equal(bytes % DPT_SAFETENSORS_ALIGN, 0);
    const int64_t file = (int64_t)bytes + (15 + 7) * 4;
    assert_int_equal(dpt_safetensors_parse_length((uint8_t *)head, file, "f", &n, &err), DPT_OK);
    assert_int_equal(n + 8, bytes);
    assert_int_equal(dpt_safetensors_parse(head + 8, n, file, "f", &header, &err), DPT_OK);
    assert_string_equal(header.entries[0].name, "z \"quoted\"");
    assert_int_equal(header.entries[0].begin, (int64_t)bytes);
    assert_int_equal(header.entries[1].dim[0], 7);
    dpt_safetensors_fini(&header);
    free(head);
    const struct dpt_checkpoint_tensor bad[] = {{.name = "__metadata__", .ndim = 1, .dim = {1}},
                                                {.name = "", .ndim = 1, .dim = {1}},
                                                {.name = "\xff", .ndim = 1, .dim = {1}},
                                                {.name = "a", .ndim = 5},
                                                {.name = "a", .ndim = 1, .dim = {-1}},
                                                {.name = "a", .ndim = 2, .dim = {INT64_MAX, 2}}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(
            dpt_safetensors_print(&bad[i], 1, DPT_SAFETENSORS_F32, &head, &bytes, &err),
            DPT_EINVAL);
}

/* `writer` >= 0: a report, with a run in the middle of the file and with hashes. */
static void make_list(int writer, char **ret_text, size_t *ret_bytes)
{
    static uint8_t block[DPT_CHECKPOINT_BLOCK_BYTES];
    struct dpt_manifest manifest = {.step = 12, .writer = writer, .n_writers = 3};
    struct dpt_manifest_file *file;
    assert_int_equal(
        dpt_manifest_add(&manifest, "model-00001-of-00001.safetensors", 0, &file, &err), DPT_OK);
    assert_int_equal(dpt_manifest_add_bytes(file, block, sizeof block, &err), DPT_OK);
    assert_int_equal(dpt_manifest_add_bytes(file, block, 100, &err), DPT_OK);
    assert_int_equal(dpt_manifest_add(&manifest, "optimizer/x", 0, &file, &err), DPT_OK);
    if (writer >= 0) {
        const struct dpt_hash128 hash = {.hi = 0x0123456789abcdef, .lo = 0xfedcba9876543210};
        assert_int_equal(
            dpt_manifest_add(&manifest, "optimizer/x", DPT_CHECKPOINT_BLOCK_BYTES - 5, &file, &err),
            DPT_OK);
        assert_int_equal(dpt_manifest_add_bytes(file, block, 10, &err), DPT_OK);
        for (int64_t at = 7; at < 11; at += at == 8 ? 2 : 1)
            assert_int_equal(dpt_manifest_add_hash(&manifest, at, hash, &err), DPT_OK);
    }
    assert_int_equal(dpt_manifest_print(&manifest, ret_text, ret_bytes, &err), DPT_OK);
    dpt_manifest_fini(&manifest);
}

static void make_manifest(char **ret_text, size_t *ret_bytes)
{
    make_list(-1, ret_text, ret_bytes);
}

static void manifest_round_trip(void **state)
{
    (void)state;
    struct dpt_manifest manifest = {0}, other = {0};
    char *text;
    size_t bytes;
    make_manifest(&text, &bytes);
    assert_int_equal(dpt_manifest_parse(text, bytes, "m", &manifest, &err), DPT_OK);
    assert_int_equal(manifest.step, 12);
    assert_int_equal(manifest.writer, -1);
    assert_int_equal(manifest.n_writers, 3);
    assert_int_equal(manifest.n_files, 2);
    assert_int_equal(manifest.files[0].bytes, DPT_CHECKPOINT_BLOCK_BYTES + 100);
    assert_int_equal(manifest.files[0].n_crc, 2);
    assert_int_equal(manifest.files[1].bytes, 0);
    /* A second report of the same file. */
    assert_int_equal(dpt_manifest_parse(text, bytes, "m", &other, &err), DPT_OK);
    assert_int_equal(dpt_manifest_take(&manifest, &other, &err), DPT_OK);
    assert_int_equal(dpt_manifest_join(&manifest, &err), DPT_ECORRUPT);
    dpt_manifest_fini(&other);
    dpt_manifest_fini(&manifest);
    free(text);
}

static void report_round_trip(void **state)
{
    (void)state;
    struct dpt_manifest part = {0};
    char *text;
    size_t bytes;
    make_list(2, &text, &bytes);
    assert_int_equal(dpt_manifest_parse(text, bytes, "p", &part, &err), DPT_OK);
    assert_int_equal(part.writer, 2);
    assert_int_equal(part.n_files, 3);
    assert_int_equal(part.files[2].first, DPT_CHECKPOINT_BLOCK_BYTES - 5);
    assert_int_equal(part.files[2].bytes, 10);
    assert_int_equal(part.files[2].n_crc, 2);
    assert_int_equal(part.n_hashes, 2);
    assert_int_equal(part.hashes[0].first, 7);
    assert_int_equal(part.hashes[0].n, 2);
    assert_int_equal(part.hashes[1].first, 10);
    assert_true(part.hashes[1].hash[0].hi == 0x0123456789abcdef &&
                part.hashes[1].hash[0].lo == 0xfedcba9876543210);
    dpt_manifest_fini(&part);
    free(text);
}

/* Parses a list in which `to` replaces `from`, with a seal that fits. */
static enum dpt_status parse_changed_list(int writer, const char *from, const char *to)
{
    struct dpt_manifest manifest = {0};
    char *text, changed[4096];
    size_t bytes;
    make_list(writer, &text, &bytes);
    const char *at = strstr(text, from);
    assert_non_null(at);
    const int n = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to,
                           at + strlen(from));
    assert_true(n > 0 && (size_t)n < sizeof changed);
    free(text);
    /* The last member: eight digits, quote, newline, brace, newline. */
    char *seal = changed + n - 12;
    memcpy(seal, "00000000", 8);
    char hex[9];
    (void)snprintf(hex, sizeof hex, "%08x", dpt_crc32c(0, changed, (size_t)n));
    memcpy(seal, hex, 8);
    enum dpt_status status = dpt_manifest_parse(changed, (size_t)n, "m", &manifest, &err);
    dpt_manifest_fini(&manifest);
    return status;
}

static enum dpt_status parse_changed(const char *from, const char *to)
{
    return parse_changed_list(-1, from, to);
}

static void report_refuses(void **state)
{
    (void)state;
    static const char *const changes[][2] = {
        {"\"first\": 1048571", "\"first\": -1"},
        {"\"first\": 1048571", "\"first\": 1048576"}, /* one block, two checksums */
        {"\"first\": 1048571", "\"first\": 9223372036854775807"},
        {"\"first\": 7", "\"first\": -7"},
        {"\"first\": 7", "\"first\": 9223372036854775807"},
        {"\"first\": 7", "\"fist\": 7"},
        {"0123456789abcdef", "0123456789abcdeF"},
        {"0123456789abcdef", "0123456789abcde"},
        {"\"hashes\": [", "\"hashes\": 7, \"x\": ["},
        {"\"writer\": 2", "\"writer\": -1"}}; /* a manifest has neither runs nor hashes */
    assert_int_equal(parse_changed_list(2, "\"step\": 12", "\"step\": 13"), DPT_OK);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        if (parse_changed_list(2, changes[i][0], changes[i][1]) != DPT_ECORRUPT)
            fail_msg("%s accepted", changes[i][1]);
}

static void manifest_refuses(void **state)
{
    (void)state;
    assert_int_equal(parse_changed("\"step\": 12", "\"step\": 13"), DPT_OK);
    assert_int_equal(parse_changed("\"version\": 1", "\"version\": 2"), DPT_EVERSION);
    assert_non_null(strstr(err.text, "has version 2, this program reads version 1"));
    assert_int_equal(parse_changed("\"step\": 12", "\"step\": -1"), DPT_ECORRUPT);
    assert_int_equal(parse_changed("\"step\": 12", "\"step\": 12, \"step\": 13"), DPT_ECORRUPT);
    assert_int_equal(parse_changed("dpt-checkpoint", "other"), DPT_ECORRUPT);
    assert_int_equal(parse_changed("optimizer/x", "optimizer/../x"), DPT_ECORRUPT);
    assert_int_equal(parse_changed("optimizer/x", "../../etc/passwd"), DPT_ECORRUPT);
    assert_int_equal(parse_changed("optimizer/x", "/etc/passwd"), DPT_ECORRUPT);
    assert_int_equal(parse_changed("optimizer/x", "model-00001-of-00001.safetensors"),
                     DPT_ECORRUPT);
    assert_int_equal(parse_changed("\"bytes\": 0", "\"bytes\": 1"), DPT_ECORRUPT);
    assert_int_equal(parse_changed("\"bytes\": 0", "\"bytes\": -1"), DPT_ECORRUPT);
    assert_int_equal(parse_changed("\"bytes\": 0", "\"bytes\": 9223372036854775807"), DPT_ECORRUPT);
    assert_int_equal(parse_changed("1048576,", "1048577,"), DPT_ECORRUPT);
    assert_int_equal(parse_changed("\"crc32c\": \"\"", "\"crc32c\": \"zz\""), DPT_ECORRUPT);
}

static void index_names_each_tensor(void **state)
{
    (void)state;
    const struct dpt_checkpoint_tensor tensors[] = {{.name = "a", .ndim = 1, .dim = {7}},
                                                    {.name = "b", .ndim = 1, .dim = {3}},
                                                    {.name = "c", .ndim = 1, .dim = {1}}};
    struct dpt_files files;
    struct dpt_index index;
    char *text;
    assert_int_equal(dpt_files_init(tensors, 3, 30, false, &files, &err), DPT_OK);
    assert_int_equal(files.n, 2);
    assert_int_equal(dpt_index_print(tensors, &files, &text, &err), DPT_OK);
    dpt_files_fini(&files);
    assert_int_equal(dpt_index_parse(text, strlen(text), &index, &err), DPT_OK);
    assert_int_equal(index.n, 3);
    assert_int_equal(index.total_bytes, 44);
    assert_int_equal(dpt_index_check(&index, "a", "model-00001-of-00002.safetensors", &err),
                     DPT_OK);
    assert_int_equal(dpt_index_check(&index, "c", "model-00001-of-00002.safetensors", &err),
                     DPT_ECORRUPT);
    assert_int_equal(dpt_index_check(&index, "d", "model-00001-of-00002.safetensors", &err),
                     DPT_ECORRUPT);
    dpt_index_fini(&index);
    free(text);
    assert_int_equal(dpt_index_parse("{}", 2, &index, &err), DPT_ECORRUPT);
    assert_int_equal(dpt_index_parse("[", 1, &index, &err), DPT_ECORRUPT);
}

static void test_names_of_files(void **state)
{
    (void)state;
    static const char *const alien[] = {
        "step-",          "step-1",         "step-000000001",
        "step-0000000x",  "step-00000001/", "xstep-00000001",
        "step-00000001 ", "step--0000001",  "step-9999999999999999999"};
    int64_t step;
    uint64_t generation;
    enum dpt_kind kind;
    int i, n;
    char name[DPT_CHECKPOINT_NAME_BYTES];
    for (size_t k = 0; k < sizeof alien / sizeof *alien; k++)
        assert_false(dpt_name_parse_step(alien[k], &step));
    assert_true(dpt_name_parse_step("step-00000000", &step) && step == 0);
    assert_true(dpt_name_parse_step("step-123456789", &step) && step == 123456789);
    assert_int_equal(dpt_name_temporary(3, 9, "ab-1", name, &err), DPT_OK);
    assert_string_equal(name, ".tmp-step-00000003-g9-ab-1");
    assert_true(dpt_name_parse_temporary(name, &step, &generation) && step == 3 && generation == 9);
    assert_false(dpt_name_parse_temporary(".tmp-step-3-g", &step, &generation));
    assert_false(dpt_name_parse_temporary(".tmp-step-3", &step, &generation));
    assert_true(dpt_name_parse_tensors("optimizer/v-00002-of-00003.safetensors", &kind, &i, &n));
    assert_true(kind == DPT_KIND_V && i == 1 && n == 3);
    assert_false(dpt_name_parse_tensors("model-00004-of-00003.safetensors", &kind, &i, &n));
    assert_false(dpt_name_parse_tensors("model-1-of-3.safetensors", &kind, &i, &n));
    assert_false(dpt_name_parse_tensors("model.safetensors.index.json", &kind, &i, &n));
    assert_true(dpt_name_parse_tensors("adapter_model.safetensors", &kind, &i, &n));
    assert_true(kind == DPT_KIND_PARAM && i == 0 && n == 1);
    assert_false(dpt_name_parse_tensors("adapter_model.safetensors.index.json", &kind, &i, &n));
    assert_false(dpt_name_parse_tensors("optimizer/adapter_model.safetensors", &kind, &i, &n));
    assert_true(dpt_name_is_listable("adapter_model.safetensors"));
    assert_true(dpt_name_is_listable("optimizer/m-1"));
    static const char *const bad[] = {"",    ".",          "..",           ".x",
                                      "a/b", "optimizer/", "optimizer/.x", "optimizer/a/b",
                                      "/a",  "a b",        "a\n",          "optimizer//a"};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
        assert_false(dpt_name_is_listable(bad[k]));
}

/* Bytes of good texts are changed, removed and repeated at random: each parser returns. Under the
 * sanitizers this checks that the parsers stay inside their bytes. */
static void test_mutated_texts_do_not_crash_parsers(void **state)
{
    (void)state;
    static const char good[] = "{\"__metadata__\":{\"format\":\"pt\"}," TENSOR(
        "a", "2,3", "0", "24") "," TENSOR("b", "1", "24", "28") "}";
    enum { ROUNDS = 20000, BYTES_MAX = 1024 };
    char *manifest_text, text[BYTES_MAX];
    size_t manifest_bytes;
    int accepted = 0;
    uint64_t x = 88172645463325252u;
    make_manifest(&manifest_text, &manifest_bytes);
    assert_true(manifest_bytes < BYTES_MAX);
    for (int round = 0; round < ROUNDS; round++) {
        const bool sealed = round % 2;
        size_t n = sealed ? manifest_bytes : sizeof good - 1;
        memcpy(text, sealed ? manifest_text : good, n);
        for (int change = 0; change < 1 + round % 3; change++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            const size_t at = (size_t)(x >> 8) % n;
            if (x % 4 == 0)
                n = at + 1;
            else if (x % 4 == 1 && n > 1)
                memmove(text + at, text + at + 1, --n - at);
            else
                text[at] = (char)(x >> 40);
        }
        char *copy = malloc(n); /* exact, so that the sanitizer sees a byte too far */
        memcpy(copy, text, n);
        struct dpt_safetensors header = {0};
        struct dpt_manifest manifest = {0};
        struct dpt_state_json s = {0};
        struct dpt_index index = {0};
        accepted +=
            dpt_safetensors_parse(copy, n, 8 + (int64_t)n + 28, "f", &header, &err) == DPT_OK;
        accepted += dpt_manifest_parse(copy, n, "m", &manifest, &err) == DPT_OK;
        accepted += dpt_state_json_parse(copy, n, &s, &err) == DPT_OK;
        accepted += dpt_index_parse(copy, n, &index, &err) == DPT_OK;
        dpt_safetensors_fini(&header);
        dpt_manifest_fini(&manifest);
        dpt_state_json_fini(&s);
        dpt_index_fini(&index);
        free(copy);
    }
    assert_true(accepted > 0 && accepted < ROUNDS);
    free(manifest_text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(safetensors_accepts),
                                       cmocka_unit_test(safetensors_other_dtypes),
                                       cmocka_unit_test(safetensors_refuses),
                                       cmocka_unit_test(safetensors_length),
                                       cmocka_unit_test(safetensors_round_trip),
                                       cmocka_unit_test(manifest_round_trip),
                                       cmocka_unit_test(manifest_refuses),
                                       cmocka_unit_test(report_round_trip),
                                       cmocka_unit_test(report_refuses),
                                       cmocka_unit_test(index_names_each_tensor),
                                       cmocka_unit_test(test_names_of_files),
                                       cmocka_unit_test(test_mutated_texts_do_not_crash_parsers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
