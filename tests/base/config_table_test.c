/* The table: each line consistent in itself, defaults readable, and docs/config.md made from it. */
#include "base/config_table.h"

#include "base/fs.h"
#include "tests/base/config_page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

static void lines_are_consistent(void **state)
{
    (void)state;
    size_t covered = 0;
    for (size_t i = 0; i < dpt_config_n_keys; i++) {
        const struct dpt_key *key = &dpt_config_keys[i];
        bool number = key->type == DPT_KEY_INT || key->type == DPT_KEY_INT64 ||
                      key->type == DPT_KEY_DOUBLE || key->type == DPT_KEY_DOUBLE_PAIR ||
                      key->type == DPT_KEY_RANGE || key->type == DPT_KEY_STEPS;
        bool choice = key->type == DPT_KEY_CHOICE || key->type == DPT_KEY_CHOICE_TEXT ||
                      key->type == DPT_KEY_WORDS;
        static const size_t sizes[] = {
            [DPT_KEY_CHOICE] = 4, [DPT_KEY_INT] = 4,
            [DPT_KEY_INT64] = 8,  [DPT_KEY_UINT64] = 8,
            [DPT_KEY_DOUBLE] = 8, [DPT_KEY_DOUBLE_PAIR] = 16,
            [DPT_KEY_BOOL] = 1,   [DPT_KEY_RANGE] = 8,
            [DPT_KEY_WORDS] = 4,  [DPT_KEY_STEPS] = sizeof(struct dpt_config_steps)};
        assert_int_equal(dpt_config_key_index(key->path), i); /* no path twice */
        assert_true(strlen(key->path) < DPT_CONFIG_NAME_BYTES);
        assert_true(strlen(key->help) > 0);
        assert_int_equal(choice, key->choices != NULL);
        assert_true(!number || key->min < key->max);
        assert_true(number || key->max == 0);
        if (key->type != DPT_KEY_TEXT && key->type != DPT_KEY_CHOICE_TEXT)
            assert_int_equal(key->size, sizes[key->type]);
        if (key->flags & DPT_KEY_AUTO)
            assert_true(key->min > DPT_AUTO); /* the number 0 is not auto */
        for (const struct dpt_choice *c = key->choices; c && c->name; c++)
            assert_true(strlen(c->name) < key->size || key->type != DPT_KEY_CHOICE_TEXT);
        if (i > 0) /* sections are not scattered: printing writes each heading once */
            assert_true(key->offset > dpt_config_keys[i - 1].offset);
        covered = key->offset + key->size;
    }
    enum { ALIGN = _Alignof(struct dpt_config) }; /* ends with the last member, and its padding */
    assert_int_equal((covered + ALIGN - 1) / ALIGN * ALIGN, sizeof(struct dpt_config));
}

static void unknown_paths(void **state)
{
    (void)state;
    static const char *const unknown[] = {"",           "train",        "train.",
                                          "train.step", "train.stepss", "Seed"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_int_equal(dpt_config_key_index(unknown[i]), dpt_config_n_keys);
}

static void words_of_choices(void **state)
{
    (void)state;
    char text[256];
    dpt_config_key_choices(&dpt_config_keys[dpt_config_key_index("cluster.device")], text, 256);
    assert_string_equal(text, "auto, cpu, cuda");
    dpt_config_key_choices(&dpt_config_keys[dpt_config_key_index("optimizer.schedule")], text, 256);
    assert_string_equal(text, "constant, linear, cosine");
    dpt_config_key_choices(&dpt_config_keys[dpt_config_key_index("strategy.sharding")], text, 256);
    assert_string_equal(text, "null, full_shard, shard_grad_op, hybrid_shard, no_shard");
}

static void reference_page_is_current(void **state)
{
    (void)state;
    char *made = NULL, *kept = NULL;
    size_t made_bytes = 0, kept_bytes = 0;
    FILE *out = open_memstream(&made, &made_bytes);
    assert_non_null(out);
    print_config_page(out);
    assert_int_equal(fclose(out), 0);
    if (dpt_fs_read_file(DPT_DOC_FILE, 1 << 20, &kept, &kept_bytes, &err) != DPT_OK)
        fail_msg("%s", err.text);
    if (made_bytes != kept_bytes || memcmp(made, kept, made_bytes) != 0)
        fail_msg("docs/config.md is not what the table says: build the target config-doc");
    for (size_t i = 0; i < dpt_config_n_keys; i++) {
        char cell[128];
        (void)snprintf(cell, sizeof cell, "\n| `%s` |", dpt_config_keys[i].path);
        assert_non_null(strstr(made, cell));
    }
    free(made);
    free(kept);
}

static void help_names_every_key(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    dpt_config_help(out);
    assert_int_equal(fclose(out), 0);
    for (size_t i = 0; i < dpt_config_n_keys; i++) {
        char line[128];
        (void)snprintf(line, sizeof line, "\n  %s ", dpt_config_keys[i].path);
        assert_non_null(strstr(text, line));
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_consistent), cmocka_unit_test(unknown_paths),
        cmocka_unit_test(words_of_choices), cmocka_unit_test(reference_page_is_current),
        cmocka_unit_test(help_names_every_key)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
