/* Files that are no vocabulary of GPT-2's form. */
#include "worker/data/tokenizer.h"

#include "base/fs.h"
#include "tests/tmp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TINY_BPE  DPT_RECORDED "/tiny.bpe"
#define TINY_JSON DPT_RECORDED "/tiny.json"

static struct dpt_err err;
static char root[128];

static int setup(void **state)
{
    (void)state;
    return test_make_dir(root, sizeof root, "bpe-test") ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return dpt_fs_remove_tree(root, NULL) == DPT_OK ? 0 : -1;
}

static void expect_refusal(const char *bpe, const char *json, bool any_vocab,
                           enum dpt_status status, const char *what)
{
    const struct dpt_vocab_options options = {
        .kind = DPT_TOKENIZER_GPT2, .vocab_bpe = bpe, .encoder_json = json, .any_vocab = any_vocab};
    struct dpt_vocab *vocab = NULL;
    assert_int_equal(dpt_vocab_open(&options, &vocab, &err), status);
    assert_null(vocab);
    if (!strstr(err.text, what) || strchr(err.text, '\n'))
        fail_msg("'%s' is not in: %s", what, err.text);
}

static void other_vocabularies(void **state)
{
    (void)state;
    expect_refusal(TINY_BPE, TINY_JSON, false, DPT_ECONFIG, "/tiny.bpe' is not OpenAI's vocab.bpe");
    expect_refusal("", TINY_JSON, true, DPT_ECONFIG, "needs the path of OpenAI's vocab.bpe");
    expect_refusal(TINY_BPE, NULL, true, DPT_ECONFIG, "needs the path of OpenAI's encoder.json");
    expect_refusal("/nowhere/vocab.bpe", TINY_JSON, false, DPT_ENOENT, "'/nowhere/vocab.bpe'");
    expect_refusal(TINY_JSON, TINY_JSON, true, DPT_ECORRUPT, "does not begin with the line");
    expect_refusal(TINY_BPE, TINY_BPE, true, DPT_ECORRUPT, "/tiny.bpe' is no JSON object");
}

/* tiny's file `from` with the first `old` replaced by `new`, against its whole partner. */
static void expect_damage(const char *from, const char *old, const char *new, const char *what)
{
    const bool merges = strcmp(from, TINY_BPE) == 0;
    char path[192], *text, *damaged;
    size_t bytes;
    (void)snprintf(path, sizeof path, "%s/damaged", root);
    assert_int_equal(dpt_fs_read_file(from, 1 << 20, &text, &bytes, &err), DPT_OK);
    char *at = strstr(text, old);
    assert_non_null(at);
    damaged = malloc(bytes + strlen(new) + 1);
    const size_t head = (size_t)(at - text), tail = bytes - head - strlen(old);
    memcpy(damaged, text, head);
    memcpy(damaged + head, new, strlen(new));
    memcpy(damaged + head + strlen(new), at + strlen(old), tail);
    assert_int_equal(dpt_fs_write_file_atomic(path, damaged, head + strlen(new) + tail, &err),
                     DPT_OK);
    expect_refusal(merges ? path : TINY_BPE, merges ? TINY_JSON : path, true, DPT_ECORRUPT, what);
    free(damaged);
    free(text);
}

static void damaged_files(void **state)
{
    (void)state;
    expect_damage(TINY_JSON, "\"!\": 0,", "\"!\": 657,", "token '!': its id is none of");
    expect_damage(TINY_JSON, "\"!\": 0,", "\"!\": -1,", "token '!': its id is none of");
    expect_damage(TINY_JSON, "\"!\": 0,", "\"!\": \"0\",", "token '!': its id is none of");
    expect_damage(TINY_JSON, "\"!\": 0,", "\"!\": 1,", "of another token");
    expect_damage(TINY_JSON, "\"!\": 0,", "\"\\\"\": 0,", "is no JSON object: duplicate");
    expect_damage(TINY_JSON, "\"!\": 0,", "\"!!!!\": 0,", "has no token for the byte 33");
    expect_damage(TINY_JSON, "\"!\": 0,", "\" \": 0,", "token ' ' is not written in");
    expect_damage(TINY_JSON, "\"!\": 0,", "\"中\": 0,", "is not written in");
    expect_damage(TINY_JSON, "\"!\": 0,", "\"\": 0,", "is not written in");
    expect_damage(TINY_JSON, "{", "[", "is no JSON object");
    expect_damage(TINY_BPE, "#version", "#Version", "does not begin with the line");
    expect_damage(TINY_BPE, "Ġ t\n", "Ġt\n", "line 2: it is not two tokens");
    expect_damage(TINY_BPE, "Ġ t\n", "Ġ  t\n", "line 2: it is not two tokens");
    expect_damage(TINY_BPE, "Ġ t\n", "\n", "line 2: it is not two tokens");
    expect_damage(TINY_BPE, "Ġ t\n", "Ġ 中\n", "line 2: it is not two tokens");
    expect_damage(TINY_BPE, "Ġ t\n", "Ġ qq\n", "line 2: encoder.json has no number for");
    expect_damage(TINY_BPE, "Ġ t\n", "Ġt h\n", "line 2: encoder.json has no number for its result");
    expect_damage(TINY_BPE, "Ġ t\n", "Ġt he\n", "line 2: no earlier line makes one of its tokens");
    expect_damage(TINY_BPE, "Ġ t\n", "Ġ t\nĠ t\n", "line 3: an earlier line makes the same token");
    expect_damage(TINY_BPE, "Ġmachin e\n", "", "neither a byte nor made by a merge");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(other_vocabularies), TEST(damaged_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
