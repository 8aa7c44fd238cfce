/* tokenizer.json files that are refused, each with one line that names the file and the place; the
 * accepted patterns, and their matches; the differences that a vocabulary's digest covers. */
#include "worker/data/tokenizer.h"

#include "base/fs.h"
#include "tests/tmp.h"
#include "worker/data/split_pattern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PATH_BYTES = 256 };

static struct dpt_err err;
static char root[128];

static const char *recorded(const char *name)
{
    static char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, DPT_RECORDED "/%s.json", name);
    return path;
}

/* ---------------------------------------------------------------- files that are refused */

static enum dpt_status open_text(const char *text, size_t bytes, char digest[DPT_HASH_HEX_BYTES])
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/changed.json", root);
    assert_int_equal(dpt_fs_write_file_atomic(path, text, bytes, &err), DPT_OK);
    const struct dpt_vocab_options options = {.kind = DPT_TOKENIZER_HF, .tokenizer_json = path};
    struct dpt_vocab *vocab = NULL;
    const enum dpt_status status = dpt_vocab_open(&options, &vocab, &err);
    assert_true((status == DPT_OK) == (vocab != NULL));
    if (vocab)
        dpt_vocab_digest(vocab, digest);
    dpt_vocab_close(&vocab);
    return status;
}

/* The file `name` with the first `old` replaced by `new`. */
static enum dpt_status open_changed(const char *name, const char *old, const char *new,
                                    char digest[DPT_HASH_HEX_BYTES])
{
    char *text, *changed;
    size_t bytes;
    assert_int_equal(dpt_fs_read_file(recorded(name), 1 << 20, &text, &bytes, &err), DPT_OK);
    const char *at = strstr(text, old);
    if (!at)
        fail_msg("'%s' is not in %s.json", old, name);
    const size_t room = bytes + strlen(new) + 1;
    changed = malloc(room);
    const int n =
        snprintf(changed, room, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    const enum dpt_status status = open_text(changed, (size_t)n, digest);
    free(changed);
    free(text);
    return status;
}

static const struct {
    const char *name, *old, *new, *says;
} refused_cases[] = {
    /* other kinds of tokenizers */
    {"hf_gpt2", "\"BPE\"", "\"WordPiece\"", "model.type: 'WordPiece' is not supported, only BPE"},
    {"hf_gpt2", "\"BPE\"", "\"Unigram\"", "model.type: 'Unigram' is not supported"},
    {"hf_gpt2", "\"model\"", "\"modell\"", "it has no model"},
    {"hf_gpt2", "\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}",
     "normalizer: 'NFC' is not supported"},
    {"hf_gpt2", "\"normalizer\": null",
     "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}]}",
     "normalizer: 'Sequence' is not supported"},
    {"hf_gpt2", "\"decoder\": {\n  \"type\": \"ByteLevel\"",
     "\"decoder\": {\n  \"type\": \"Metaspace\"", "decoder: 'Metaspace' is not supported"},
    {"hf_gpt2", "\"post_processor\": {\n  \"type\": \"ByteLevel\"",
     "\"post_processor\": {\n  \"type\": \"BertProcessing\"",
     "post_processor: 'BertProcessing' is not supported"},
    {"hf_llama3", "\"TemplateProcessing\"", "\"RobertaProcessing\"",
     "post_processor.processors[1]: 'RobertaProcessing' is not supported"},
    /* the model */
    {"hf_gpt2", "\"dropout\": null", "\"dropout\": 0.1", "model.dropout: 0.1 is not"},
    {"hf_gpt2", "\"fuse_unk\": false", "\"fuse_unk\": true", "model.fuse_unk: true is not"},
    {"hf_gpt2", "\"byte_fallback\": false", "\"byte_fallback\": true",
     "model.byte_fallback: true is not"},
    {"hf_gpt2", "\"byte_fallback\": false", "\"byte_fallback\": 0",
     "model.byte_fallback: expected true or false"},
    {"hf_gpt2", "\"continuing_subword_prefix\": \"\"", "\"continuing_subword_prefix\": \"##\"",
     "model.continuing_subword_prefix: '##' is not"},
    {"hf_gpt2", "\"end_of_word_suffix\": \"\"", "\"end_of_word_suffix\": \"</w>\"",
     "model.end_of_word_suffix: '</w>' is not"},
    {"hf_smollm2", "\"unk_token\": \"<|endoftext|>\"", "\"unk_token\": \"<unk>\"",
     "model.unk_token: '<unk>' is no token of model.vocab, and the byte 0 has none"},
    /* ids */
    {"hf_gpt2", "\"!\": 1,", "\"!\": 900,",
     "token '!': its id is none of 0 … 479, and there are 480 tokens: the ids have holes"},
    {"hf_gpt2", "\"!\": 1,", "\"!\": -1,", "token '!': its id is none of 0 … 479"},
    {"hf_gpt2", "\"!\": 1,", "\"!\": \"1\",", "token '!': its id is none of 0 … 479"},
    {"hf_gpt2", "\"!\": 1,", "\"!\": 2,", "its id 2 is that of another token"},
    {"hf_gpt2", "\"!\": 1,", "\"\": 1,", "model.vocab: token 1 is empty"},
    {"hf_gpt2", "\"!\": 1,", "\"\\\"\": 1,", "no JSON: duplicate object key"},
    {"hf_gpt2", "\"vocab\": {", "\"vocab\": [], \"x\": {", "model.vocab: expected an object"},
    {"hf_llama3", "\"id\": 481,", "\"id\": 480,",
     "added_tokens[0]: token '<|begin_of_text|>': its id 480 is that of another token"},
    {"hf_llama3", "\"id\": 481,", "\"id\": 487,",
     "added_tokens[0]: token '<|begin_of_text|>': "
     "its id is none of 0 … 486"},
    {"hf_gpt2", "\"id\": 0,", "\"id\": 1,",
     "added_tokens[0].id: token '<|endoftext|>' has another id in model.vocab, 0"},
    /* merges */
    {"hf_gpt2", "\"Ġ t\"", "\"Ġ qq\"", "model.merges[0]: 'qq' is no token of model.vocab"},
    {"hf_gpt2", "\"Ġ t\"", "\"Ġt\"", "model.merges[0]: it is not two tokens"},
    {"hf_gpt2", "\"Ġ t\"", "\"Ġ t h\"", "model.merges[0]: 't h' is no token"},
    {"hf_gpt2", "\"Ġ t\"", "\" t\"", "model.merges[0]: '' is no token"},
    {"hf_gpt2", "\"Ġ t\"", "\"中 t\"", "model.merges[0]: '中' is no token"},
    {"hf_gpt2", "\"Ġ t\"", "\"q q\"", "model.merges[0]: its result is no token"},
    {"hf_gpt2", "\"Ġ t\"", "[\"Ġ\"]", "model.merges[0]: it is not two tokens"},
    {"hf_gpt2", "\"Ġ t\"", "[\"Ġ\", \"t\", \"h\"]", "model.merges[0]: it is not two tokens"},
    {"hf_gpt2", "\"Ġ t\"", "[\"Ġ\", 3]", "model.merges[0]: it is not two tokens"},
    {"hf_gpt2", "\"Ġ t\"", "null", "model.merges[0]: it is not two tokens"},
    {"hf_gpt2", "\"merges\": [", "\"merges\": {}, \"x\": [", "model.merges: expected a list"},
    /* added tokens */
    {"hf_gpt2", "\"lstrip\": false", "\"lstrip\": true", "added_tokens[0].lstrip: true is not"},
    {"hf_gpt2", "\"rstrip\": false", "\"rstrip\": true", "added_tokens[0].rstrip: true is not"},
    {"hf_gpt2", "\"single_word\": false", "\"single_word\": true",
     "added_tokens[0].single_word: true is not"},
    {"hf_gpt2", "\"special\": true", "\"special\": 1",
     "added_tokens[0].special: expected true or false"},
    {"hf_gpt2", "\"content\": \"<|endoftext|>\"", "\"content\": \"\"",
     "added_tokens[0].content: expected a string"},
    {"hf_gpt2", "\"id\": 0,\n   \"content\": \"<|endoftext|>\"",
     "\"id\": 95,\n   \"content\": \"¡\"", "in model.vocab the same characters stand for other"},
    {"hf_gpt2", "\"added_tokens\": [", "\"added_tokens\": 1, \"x\": [",
     "added_tokens: expected a list"},
    /* the pre-tokenizer */
    {"hf_gpt2", "\"pre_tokenizer\": {", "\"pre_tokenizer\": null, \"x\": {",
     "pre_tokenizer: '' is not supported as the last, only ByteLevel is"},
    {"hf_gpt2", "\"pre_tokenizer\": {\n  \"type\": \"ByteLevel\"",
     "\"pre_tokenizer\": {\n  \"type\": \"Whitespace\"",
     "pre_tokenizer: 'Whitespace' is not supported as the last"},
    {"hf_gpt2", "\"pre_tokenizer\": {\n  \"type\": \"ByteLevel\"",
     "\"pre_tokenizer\": {\n  \"type\": \"Sequence\"", "pre_tokenizer: a Sequence of none"},
    {"hf_llama3", "\"Split\"", "\"Punctuation\"",
     "pre_tokenizer.pretokenizers[0]: 'Punctuation' is not supported; Split, Digits and"},
    {"hf_llama3", "\"Split\"", "\"ByteLevel\"",
     "pre_tokenizer.pretokenizers[0]: ByteLevel is supported as the last alone"},
    {"hf_llama3", "\"Regex\"", "\"String\"",
     "pre_tokenizer.pretokenizers[0].pattern: expected a Regex"},
    {"hf_llama3", "\"Isolated\"", "\"Removed\"",
     "pre_tokenizer.pretokenizers[0].behavior: 'Removed' is not supported"},
    {"hf_llama3", "\"invert\": false", "\"invert\": true",
     "pre_tokenizer.pretokenizers[0].invert: true is not supported"},
    {"hf_llama3", "(?i:'s", "(?i:('s",
     "pre_tokenizer.pretokenizers[0].pattern: the pattern does not compile: missing"},
    {"hf_llama3", "(?i:'s", "(?i:\\\\w's",
     "pre_tokenizer.pretokenizers[0].pattern: '\\w' in the pattern: this escape is not"},
};

static void test_tokenizer_json_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused_cases / sizeof *refused_cases; i++) {
        char digest[DPT_HASH_HEX_BYTES];
        const enum dpt_status status =
            open_changed(refused_cases[i].name, refused_cases[i].old, refused_cases[i].new, digest);
        if (status != DPT_ECONFIG || !strstr(err.text, refused_cases[i].says) ||
            !strstr(err.text, "/changed.json'") || strchr(err.text, '\n'))
            fail_msg("case %zu: '%s' is not in: %s", i, refused_cases[i].says,
                     status == DPT_OK ? "success" : err.text);
    }
}

static void cut_off(void **state)
{
    (void)state;
    char *text, digest[DPT_HASH_HEX_BYTES];
    size_t bytes;
    assert_int_equal(dpt_fs_read_file(recorded("hf_llama3"), 1 << 20, &text, &bytes, &err), DPT_OK);
    for (size_t n = 0; n + 2 < bytes; n += 97) {
        assert_int_equal(open_text(text, n, digest), DPT_ECONFIG);
        assert_non_null(strstr(err.text, "/changed.json', line "));
    }
    free(text);
}

/* Each part of a file that decides about tokens decides about the digest, and its form does not. */
static void digests(void **state)
{
    (void)state;
    static const struct {
        const char *name, *old, *new;
        bool same;
    } cases[] = {
        {"hf_gpt2", "\"Ġ t\"", "[\"Ġ\", \"t\"]", true},
        {"hf_gpt2", "\"trim_offsets\": true", "\"trim_offsets\": false", true},
        {"hf_gpt2", "\"normalizer\": null",
         "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": []}", true},
        {"hf_gpt2", "\"add_prefix_space\": false", "\"add_prefix_space\": true", false},
        {"hf_gpt2", "\"use_regex\": true", "\"use_regex\": false", false},
        {"hf_gpt2", "\"special\": true", "\"special\": false", false},
        {"hf_gpt2", "\"normalized\": false", "\"normalized\": true", false},
        {"hf_gpt2", "\"Ġ t\",", "", false},
        {"hf_llama3", "\"ignore_merges\": true", "\"ignore_merges\": false", false},
        {"hf_llama3", "{1,3}", "{1,2}", false},
        {"hf_smollm2", "\"individual_digits\": true", "\"individual_digits\": false", false},
        {"hf_smollm2", "\"unk_token\": \"<|endoftext|>\"", "\"unk_token\": null", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char was[DPT_HASH_HEX_BYTES], is[DPT_HASH_HEX_BYTES];
        assert_int_equal(open_changed(cases[i].name, "{", "{", was), DPT_OK);
        if (open_changed(cases[i].name, cases[i].old, cases[i].new, is) != DPT_OK)
            fail_msg("case %zu: %s", i, err.text);
        if ((strcmp(was, is) == 0) != cases[i].same)
            fail_msg("case %zu: the digest is %s", i, cases[i].same ? "another" : "the same");
    }
}

/* ---------------------------------------------------------------- patterns */

static void patterns_refused(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *says;
    } cases[] = {
        {"a^b", "'^' in the pattern: the ends of lines"},
        {"a$", "'$' in the pattern: the ends of lines"},
        {"\\bword", "'\\b' in the pattern: this escape"},
        {"\\h+", "'\\h' in the pattern: this escape"},
        {"\\x{41}", "'\\x' in the pattern: this escape"},
        {"a\\", "'\\' in the pattern: this escape"},
        {"[a\\S]", "'\\S' in the pattern: it is not supported in a class"},
        {"\\p{Han}+", "'\\p{Han}+' in the pattern: only general categories"},
        {"\\p{^L}", "'\\p{^L}' in the pattern: only general categories"},
        {"\\pL", "'\\pL' in the pattern: only general categories"},
        {"\\p{L", "'\\p{L' in the pattern: only general categories"},
        {"[a[b]]", "'[' in the pattern: a class within a class"},
        {"[[:alpha:]]", "'[' in the pattern: a class within a class"},
        {"[a-z&&b]", "'&&' in the pattern: intersections"},
        {"[]a]", "'[]' in the pattern"},
        {"[^]a]", "'[^]' in the pattern"},
        {"(?i)a", "'(?i)' in the pattern: this kind of group"},
        {"(?<n>a)", "'(?<n' in the pattern: this kind of group"},
        {"(?#a)", "'(?#a' in the pattern: this kind of group"},
        {"(*FAIL)", "'(*' in the pattern: verbs"},
        {"a{,3}", "expected {n}, {n,} or {n,m}, or \\{"},
        {"a{x}", "expected {n}, {n,} or {n,m}, or \\{"},
        {"a{2", "expected {n}, {n,} or {n,m}, or \\{"},
        {"a{1,3}+", "'{1,3}+' in the pattern: the sign after {}"},
        {"a{2}?", "'{2}?' in the pattern: the sign after {}"},
        {"(a", "the pattern does not compile: missing closing parenthesis"},
        {"[a", "the pattern does not compile: missing terminating ]"},
        {"*a", "the pattern does not compile: quantifier does not follow"},
        {"\\p{Lz}", "the pattern does not compile: unknown property"},
        {"a{3,1}", "the pattern does not compile: numbers out of order"},
    };
    static char long_pattern[DPT_PATTERN_BYTES_MAX + 2];
    struct dpt_pattern *pattern = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (dpt_pattern_compile(cases[i].pattern, &pattern, &err) != DPT_ECONFIG ||
            !strstr(err.text, cases[i].says))
            fail_msg("'%s' is not in: %s", cases[i].says, pattern ? "success" : err.text);
        assert_null(pattern);
    }
    memset(long_pattern, 'a', sizeof long_pattern - 1);
    assert_int_equal(dpt_pattern_compile(long_pattern, &pattern, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "the pattern has 4097 bytes, at most 4096"));
}

/* What oniguruma finds in Ruby's syntax. */
static void patterns_taken(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *text;
        size_t begin, end;
    } cases[] = {
        {"\\s+", "a \t\u00a0\xc2\x85\u3000b", 1, 10},
        {"\\s", "\u180e", 3, 3}, /* no white space since Unicode 6.3 */
        {"[\\s]", "\u180e ", 3, 4},
        {"\\S", " \u180e", 1, 4},
        {"[^\\s]", "\n\u200b", 1, 4},
        {"\\d+\\D", "a1\u0664\u00b2", 1, 6}, /* the superscript is no digit */
        {"[\\d]",
         "\u00b2"
         "7",
         2, 3},
        {"\\P{L}", "ж1", 2, 3},
        {"(?i:'s)", "x'\u017f", 1, 4}, /* the long s folds to s */
        {".", "\r\n", 0, 1},
        {".", "\n\u2028", 1, 4},
        {"(?<=\\s)a(?!b)", "aab ab ac", 7, 8},
        {"(?:ab){2,}?|(?>a+)", "ababab", 0, 4},
        {"[a\\-\\]]{3}", "b-]a", 1, 4},
        {"a++|b?+c*+", "aab", 0, 2},
        {"\\{\\.\\\\", "{.\\", 0, 3},
        {"z", "ab", 2, 2},
    };
    struct dpt_matcher *matcher = NULL;
    assert_int_equal(dpt_matcher_create(&matcher, &err), DPT_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_pattern *pattern = NULL;
        struct dpt_match match = {.from = 0};
        if (dpt_pattern_compile(cases[i].pattern, &pattern, &err) != DPT_OK)
            fail_msg("%s: %s", cases[i].pattern, err.text);
        assert_int_equal(dpt_pattern_next(pattern, matcher, (const uint8_t *)cases[i].text,
                                          strlen(cases[i].text), &match, &err),
                         DPT_OK);
        if (match.begin != cases[i].begin || match.end != cases[i].end)
            fail_msg("%s matches bytes %zu to %zu of '%s'", cases[i].pattern, match.begin,
                     match.end, cases[i].text);
        dpt_pattern_free(&pattern);
    }
    dpt_matcher_destroy(&matcher);
}

/* A pattern that would take for ever ends in an error. */
static void pattern_without_end(void **state)
{
    (void)state;
    char text[64], digest[DPT_HASH_HEX_BYTES], path[PATH_BYTES];
    struct dpt_vocab *vocab = NULL;
    struct dpt_encoder *encoder = NULL;
    struct dpt_tokens tokens = {0};
    assert_int_equal(open_changed("hf_llama3", "(?i:'s", "(?:a+)+!|(?i:'s", digest), DPT_OK);
    (void)snprintf(path, sizeof path, "%s/changed.json", root);
    const struct dpt_vocab_options options = {.kind = DPT_TOKENIZER_HF, .tokenizer_json = path};
    assert_int_equal(dpt_vocab_open(&options, &vocab, &err), DPT_OK);
    assert_int_equal(dpt_encoder_create(vocab, &encoder, &err), DPT_OK);
    memset(text, 'a', sizeof text);
    memcpy(text + sizeof text - 3, "b !", 3);
    assert_int_equal(dpt_encoder_encode(encoder, text, sizeof text, &tokens, &err), DPT_EOVERFLOW);
    assert_non_null(strstr(err.text, "gives up at byte 0 of a text of 64: match limit exceeded"));
    dpt_tokens_fini(&tokens);
    dpt_encoder_destroy(&encoder);
    dpt_vocab_close(&vocab);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

static int setup(void **state)
{
    (void)state;
    return test_make_dir(root, sizeof root, "hf-refused-test") ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return dpt_fs_remove_tree(root, NULL) == DPT_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_tokenizer_json_refused),
                                       TEST(cut_off),
                                       TEST(digests),
                                       TEST(patterns_refused),
                                       TEST(patterns_taken),
                                       TEST(pattern_without_end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
