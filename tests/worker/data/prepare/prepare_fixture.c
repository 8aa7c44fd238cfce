/* What the tests of dpt-data encode share. */
#include "tests/worker/data/prepare/prepare_fixture.h"

#include "base/rng.h"
#include "tests/tmp.h"
#include "worker/data/prepare/disk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

char root[128];
struct dpt_err err;
struct dpt_inputs inputs;
struct dpt_encode_options options;
struct dpt_encode_result result;

const char *in_root(const char *name)
{
    static char path[4][256];
    static int next;
    char *ret = path[next++ % 4];
    (void)snprintf(ret, sizeof path[0], "%s/%s", root, name);
    return ret;
}

/* ---------------------------------------------------------------- texts */

static uint32_t draw_u32(uint64_t i)
{
    uint32_t block[4];
    dpt_philox(dpt_rng_key(7, DPT_RNG_TEST, 0, 0, 0), i, block);
    return block[0];
}

/* A line of up to 8 words, some of them not English, some blanks, some bytes that are no UTF-8. */
static size_t write_line(uint64_t i, char *ret)
{
    static const char *const words[] = {
        "the",  "machines", "don't",   "go",    "  on",     "2026", "Größe",
        "中文", "\xff\xc3", "\u00a0x", "=====", "training", "'ll",  "antidisestablishment"};
    size_t n = 0;
    for (uint32_t w = 0; w < draw_u32(1000 * i) % 9; w++) {
        const char *word = words[draw_u32(1000 * i + w + 1) % 14];
        ret[n++] = ' ';
        memcpy(ret + n, word, strlen(word));
        n += strlen(word);
    }
    ret[n++] = '\n';
    return n;
}

void write_text(const char *name, int lines, uint64_t seed)
{
    char *text = malloc((size_t)lines * 256);
    size_t n = 0;
    for (int i = 0; i < lines; i++)
        n += write_line(seed * 100000 + (uint64_t)i, text + n);
    OK(dpt_fs_write_file_atomic(in_root(name), text, n, &err));
    free(text);
}

void write_string(const char *name, const char *text)
{
    OK(dpt_fs_write_file_atomic(in_root(name), text, strlen(text), &err));
}

/* Documents "document I …", with a blank line now and then. */
void write_jsonl(const char *name)
{
    char *text = malloc(DOCUMENTS * 512);
    size_t n = 0;
    for (int i = 0; i < DOCUMENTS; i++)
        n += (size_t)snprintf(
            text + n, 512, "{\"id\": %d, \"text\": \"document %d \\u4e2d%.*s\"}\n%s", i, i,
            (int)(draw_u32((uint64_t)i) % 100),
            "a document that is longer or shorter than the one before it and that "
            "is about nothing at all really",
            i % 7 == 0 ? " \n" : "");
    OK(dpt_fs_write_file_atomic(in_root(name), text, n, &err));
    free(text);
}

int setup(void **state)
{
    (void)state;
    /* Thousands of fsyncs: in memory where there is a place for that. */
    (void)snprintf(root, sizeof root, "/dev/shm/dpt-encode-test-XXXXXX");
    if (access("/dev/shm", W_OK) != 0 ? !test_make_dir(root, sizeof root, "encode-test")
                                      : !mkdtemp(root))
        return -1;
    options =
        (struct dpt_encode_options){.vocab = {.kind = DPT_TOKENIZER_GPT2,
                                              .vocab_bpe = DPT_RECORDED "/tiny.bpe",
                                              .encoder_json = DPT_RECORDED "/tiny.json",
                                              .any_vocab = true},
                                    .cut = {.val_fraction = 0.2, .seed = 5, .block_bytes = 1024},
                                    .text_key = "text",
                                    .shard_tokens = 1500,
                                    .threads = 2};
    return 0;
}

int teardown(void **state)
{
    (void)state;
    dpt_prepare_fault_hook = NULL;
    dpt_inputs_fini(&inputs);
    return dpt_fs_remove_tree(root, NULL) == DPT_OK ? 0 : -1;
}

void add(const char *name, bool val)
{
    OK(dpt_inputs_add(&inputs, in_root(name), "txt,jsonl", val, &err));
}

/* Six texts, one of them without a last line's end, and a file of documents. */
void add_all(void)
{
    OK(dpt_fs_mkdirs(in_root("texts/more"), &err));
    write_text("texts/a.txt", LINES, 1);
    write_text("texts/b.txt", 20, 2);
    write_string("texts/c.txt", "one line without an end");
    write_string("texts/empty.txt", "");
    write_string("texts/picture.png", "no text");
    write_jsonl("texts/d.jsonl");
    write_text("texts/more/e.txt", 50, 3);
    write_text("texts/more/f.txt", 1, 4);
    write_text("texts/more/.hidden.txt", 1, 4);
    add("texts", false);
    assert_int_equal(inputs.n, 6);
    assert_int_equal(inputs.left_out, 1);
}

enum dpt_status encode(const char *out)
{
    options.out = in_root(out);
    return dpt_encode(&options, &inputs, &result, &err);
}

/* Both folders have the same files with the same bytes. */
void expect_same(const char *a, const char *b)
{
    char **names_a, **names_b;
    size_t n_a, n_b;
    OK(dpt_fs_list(in_root(a), &names_a, &n_a, &err));
    OK(dpt_fs_list(in_root(b), &names_b, &n_b, &err));
    if (n_a != n_b)
        fail_msg("%s has %zu files, %s has %zu", a, n_a, b, n_b);
    for (size_t i = 0; i < n_a; i++) {
        char path[512], *bytes_a, *bytes_b;
        size_t size_a, size_b;
        assert_string_equal(names_a[i], names_b[i]);
        (void)snprintf(path, sizeof path, "%s/%s", in_root(a), names_a[i]);
        OK(dpt_fs_read_file(path, 1 << 24, &bytes_a, &size_a, &err));
        (void)snprintf(path, sizeof path, "%s/%s", in_root(b), names_a[i]);
        OK(dpt_fs_read_file(path, 1 << 24, &bytes_b, &size_b, &err));
        if (size_a != size_b || memcmp(bytes_a, bytes_b, size_a) != 0)
            fail_msg("%s differs in %s and %s", names_a[i], a, b);
        free(bytes_a);
        free(bytes_b);
    }
    dpt_fs_list_free(&names_a, n_a);
    dpt_fs_list_free(&names_b, n_b);
}

void expect_refusal(const char *out, enum dpt_status status, const char *what)
{
    assert_int_equal(encode(out), status);
    if (!strstr(err.text, what) || strchr(err.text, '\n'))
        fail_msg("'%s' is not in: %s", what, err.text);
}
