/* Decisions about keys from the two lists. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/keys/folder.h"
#include "tests/rendezvous/keys/lists.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void rights_are_of_last_line(void **state)
{
    (void)state;
    assert_int_equal(right_of(1), DPT_RIGHT_NONE);
    read_machines("# a comment\n"
                  "\n"
                  "define " ONES " head and more words that are ignored\n"
                  "  join\t" TWOS "  b\r\n"
                  "define " THREES "\n"
                  "deny " THREES " c\n"
                  "deny " TWOS " b\n"
                  "join " TWOS " b2"); /* no newline at the end */
    assert_int_equal(right_of(1), DPT_RIGHT_DEFINE);
    assert_int_equal(right_of(2), DPT_RIGHT_JOIN);
    assert_int_equal(right_of(3), DPT_RIGHT_DENY);
    assert_int_equal(right_of(4), DPT_RIGHT_NONE);
    assert_int_equal(lists.n_machines, 3);
    assert_string_equal(lists.machines[1].name, "b2"); /* the machines are in the order of keys */
    read_machines("");                                 /* the file was emptied */
    assert_int_equal(right_of(1), DPT_RIGHT_NONE);
}

static void bad_lines_change_nothing(void **state)
{
    (void)state;
    static const char *const bad_machines[] = {"allow " ONES " a",
                                               "define",
                                               "define 1234 a",
                                               "define " ONES "1 a",
                                               "DEFINE " ONES " a",
                                               "token " ONES " a",
                                               "none " ONES " a",
                                               ONES,
                                               "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
                                               "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"};
    static const char *const bad_tokens[] = {"token",
                                             "token " ONES,
                                             "token " ONES " deny 9 9",
                                             "token " ONES " join -1 9",
                                             "token " ONES " join 9 0",
                                             "token " ONES " join 9 65537",
                                             "token " ONES " join x 1",
                                             "used " ONES,
                                             "used x " ONES,
                                             "define " ONES " a",
                                             "token " TWOS " join 9 9\ntoken " TWOS " join 9 9"};
    struct dpt_err err;
    char text[512];
    read_machines("join " ONES " a\n");
    read_tokens("token " FOURS " join 9 9\n");
    for (size_t i = 0; i < sizeof bad_machines / sizeof bad_machines[0]; i++) {
        (void)snprintf(text, sizeof text, "# first\njoin " TWOS " b\n%s\n", bad_machines[i]);
        assert_int_equal(dpt_admission_read_machines(&lists, text, &err), DPT_ECONFIG);
        assert_non_null(strstr(err.text, "line 3: expected define, join or deny"));
    }
    for (size_t i = 0; i < sizeof bad_tokens / sizeof bad_tokens[0]; i++) {
        assert_int_equal(dpt_admission_read_tokens(&lists, bad_tokens[i], &err), DPT_ECONFIG);
        assert_non_null(strstr(err.text, "line "));
    }
    assert_int_equal(right_of(1), DPT_RIGHT_JOIN);
    assert_int_equal(right_of(2), DPT_RIGHT_NONE);
    assert_int_equal(right_of(4), DPT_RIGHT_TOKEN);
}

static void lists_are_bounded(void **state)
{
    (void)state;
    enum { LINE = 5 + 64 + 1 };
    struct dpt_err err;
    char *text = malloc((size_t)(DPT_ADMISSION_MACHINES_MAX + 1) * LINE + 1), *at = text;
    assert_non_null(text);
    for (int i = 0; i <= DPT_ADMISSION_MACHINES_MAX; i++)
        at += snprintf(at, LINE + 1, "join %064x\n", (unsigned)i);
    assert_int_equal(dpt_admission_read_machines(&lists, text, &err), DPT_ECONFIG);
    assert_non_null(
        strstr(err.text, "more than 65536 lines: delete those of machines that are gone"));
    at[-LINE] = '\0'; /* one line less */
    read_machines(text);
    assert_int_equal(lists.n_machines, DPT_ADMISSION_MACHINES_MAX);
    free(text);
}

static void expect_same_machines(const struct dpt_admission *a, const struct dpt_admission *b)
{
    assert_int_equal(a->n_machines, b->n_machines);
    assert_int_equal(a->machine_lines, b->machine_lines);
    assert_int_equal(a->machine_bytes, b->machine_bytes);
    for (size_t i = 0; i < a->n_machines; i++) {
        assert_memory_equal(&a->machines[i].key, &b->machines[i].key, sizeof a->machines[i].key);
        assert_int_equal(a->machines[i].right, b->machines[i].right);
        assert_string_equal(a->machines[i].name, b->machines[i].name);
        assert_string_equal(a->machines[i].run, b->machines[i].run);
    }
}

/* Lines of new keys and of keys that are known, in any order: each one changes the list in memory
 * as reading all of them does. */
static void added_line_counts_as_when_read(void **state)
{
    (void)state;
    enum { LINES = 300, KEYS = 100 };
    static const char *const rights[] = {"define", "join", "deny"};
    struct dpt_admission added = {0};
    struct dpt_err err;
    char text[LINES * DPT_ADMISSION_LINE_BYTES] = "", line[DPT_ADMISSION_LINE_BYTES], *at = text;
    uint32_t draw = 1;
    for (int i = 0; i < LINES; i++) {
        draw = draw * 1664525 + 1013904223;
        (void)snprintf(line, sizeof line, "%s %064x m%d%s", rights[draw >> 16 & 1 ? 0 : 1 + i % 2],
                       draw / 65536 % KEYS, i, i % 3 == 0 ? " my-run" : "");
        assert_int_equal(dpt_admission_add_machine(&added, line, &err), DPT_OK);
        at += snprintf(at, sizeof line, "%s\n", line);
        read_machines(text);
        expect_same_machines(&added, &lists);
    }
    assert_int_equal(dpt_admission_add_machine(&added, "allow " ONES " a", &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "expected define, join or deny"));
    expect_same_machines(&added, &lists);
    dpt_admission_fini(&added);
}

static void token_admits_each_machine_once(void **state)
{
    (void)state;
    read_tokens("token " FOURS " join 1000 2\n");
    struct dpt_admission_decision decision = decide(4, 1, 999);
    assert_true(decision.answer.admitted && decision.is_new);
    assert_string_equal(decision.machine_line, "join " ONES " gpu7");
    assert_string_equal(decision.token_line, "used " FOURS " " ONES);
    read_machines(decision.machine_line);
    read_tokens("token " FOURS " join 1000 2\nused " FOURS " " ONES "\n");
    decision = decide(4, 1, 999); /* again: it costs no use */
    assert_true(decision.answer.admitted && !decision.is_new);
    decision = decide(4, 1, 5000); /* the token has expired, the machine stays */
    assert_true(decision.answer.admitted && !decision.is_new);
    assert_true(decide(4, 2, 999).is_new);
    read_tokens("token " FOURS " join 1000 2\nused " FOURS " " ONES "\nused " FOURS " " TWOS "\n");
    expect_refused(4, 3, 999, "the token is used up (it admits 2 machines)");
    assert_int_equal(dpt_admission_token_state(&lists.tokens[0], 999), DPT_TOKEN_USED_UP);
    assert_int_equal(right_of(4), DPT_RIGHT_SPENT); /* used up */
    read_tokens("token " FOURS " join 9 1\n");
    assert_int_equal(right_of(4), DPT_RIGHT_TOKEN);
    read_tokens("token " FOURS " join 8 1\n");
    assert_int_equal(right_of(4), DPT_RIGHT_SPENT); /* expired */
    assert_string_equal(dpt_right_text(DPT_RIGHT_SPENT), "spent");
    assert_string_equal(dpt_right_text(DPT_RIGHT_DEFINE), "define");
}

/* A list that a use makes too long, in lines or bytes, for the operator to add to it: one line
 * less, and the machine is admitted. */
static void full_lists_admit_nobody(void **state)
{
    (void)state;
    enum {
        LINES = DPT_ADMISSION_MACHINES_MAX - DPT_ADMISSION_SPARE_LINES,
        BYTES = DPT_KEY_FILE_BYTES_MAX - DPT_ADMISSION_SPARE_BYTES
    };
    read_tokens("token " FOURS " join 1000 2\n");
    const size_t token_bytes = lists.token_bytes;
    assert_int_equal(token_bytes, strlen("token " FOURS " join 1000 2\n"));
    lists.machine_lines = LINES - 1;
    assert_true(decide(4, 1, 999).is_new);
    lists.machine_lines = LINES;
    expect_refused(4, 1, 999,
                   "file 'machines' has 64512 lines and 0 bytes, and tokens fill 64512 "
                   "and 8126464: delete lines of machines that are gone");
    lists.machine_lines = 0;
    lists.machine_bytes = BYTES - DPT_ADMISSION_LINE_BYTES;
    assert_true(decide(4, 1, 999).is_new);
    lists.machine_bytes++;
    expect_refused(4, 1, 999, "file 'machines' has 0 lines and 8126145 bytes");
    lists.machine_bytes = 0;
    lists.token_bytes = BYTES - DPT_ADMISSION_LINE_BYTES;
    assert_true(decide(4, 1, 999).is_new);
    const struct dpt_key four = key_of(4);
    dpt_admission_count_use(&lists, &four);
    expect_refused(4, 1, 999, "file 'tokens' has 8126279 bytes, and uses of tokens fill 8126464: ");
    assert_int_equal(lists.token_bytes,
                     BYTES - DPT_ADMISSION_LINE_BYTES + strlen("used " FOURS " " ONES "\n"));
}

static void tokens_are_refused_with_reason(void **state)
{
    (void)state;
    read_tokens("token " FOURS " define 1000 1\nused " THREES " " ONES "\n");
    assert_int_equal(dpt_admission_token_state(&lists.tokens[0], 999), DPT_TOKEN_GOOD);
    expect_refused(4, 1, 1000, "the token expired 0 s ago");
    expect_refused(4, 1, 1060,
                   "the token expired 60 s ago by the server's clock (1970-01-01 00:17");
    expect_refused(3, 1, 999, "does not know this token");
    expect_refused(4, 4, 999, "was removed"); /* a token's own key becomes no machine */
    read_machines("deny " ONES " a\n");
    expect_refused(4, 1, 999, "was removed from the server");
    assert_string_equal(decide(4, 2, 999).machine_line, "define " TWOS " gpu7");
}

static void lines_are_read_again(void **state)
{
    (void)state;
    const struct dpt_admission_token token = {
        .key = key_of(4), .right = DPT_RIGHT_DEFINE, .expires_s = 1795737600, .uses = 64};
    char line[DPT_ADMISSION_LINE_BYTES];
    dpt_admission_print_token(&token, line);
    assert_string_equal(line, "token " FOURS " define 1795737600 64");
    read_tokens(line);
    assert_int_equal(lists.n_tokens, 1);
    assert_int_equal(lists.tokens[0].right, DPT_RIGHT_DEFINE);
    assert_int_equal(lists.tokens[0].expires_s, token.expires_s);
    assert_int_equal(lists.tokens[0].uses, 64);
}

/* The times of a token that a clock has made which was ahead, or that a clock judges which is
 * behind. */
static void token_of_a_clock_ahead_admits_nobody(void **state)
{
    (void)state;
    enum { NOW = 1795737600, LONGEST = DPT_ADMISSION_TOKEN_HOURS_MAX * 3600 };
    struct dpt_admission_token token = {.key = key_of(4), .right = DPT_RIGHT_JOIN, .uses = 2};
    char line[DPT_ADMISSION_LINE_BYTES], why[DPT_ADMISSION_WHY_BYTES];
    token.expires_s = (int64_t)NOW + LONGEST; /* the longest that is made now */
    assert_int_equal(dpt_admission_token_state(&token, NOW), DPT_TOKEN_GOOD);
    assert_int_equal(dpt_admission_token_state(&token, NOW - DPT_ADMISSION_CLOCK_S),
                     DPT_TOKEN_GOOD);
    assert_int_equal(dpt_admission_token_state(&token, NOW - DPT_ADMISSION_CLOCK_S - 1),
                     DPT_TOKEN_AHEAD);
    token.expires_s = 2111270400; /* ten years after NOW, less a day for two leap days more */
    dpt_admission_print_token(&token, line);
    read_tokens(line);
    assert_int_equal(dpt_admission_right(&lists, &token.key, NOW), DPT_RIGHT_SPENT);
    expect_refused(4, 1, NOW, "made by a clock that was ahead of the server's (2026-11-27 00:00");
    dpt_admission_explain(&lists, &token.key, NOW, why);
    assert_non_null(strstr(why, "of a token that expires at 2036-11-26 00:00 UTC, later than"));
    assert_non_null(strstr(why, "clock says 2026-11-27 00:00 UTC: set the clock if it is wrong"));
    assert_true(strlen(why) < sizeof why - 1);
    assert_true(decide(4, 1, 2111270399).is_new); /* the clock that made it */
}

static void refused_keys_are_explained(void **state)
{
    (void)state;
    static const struct {
        uint8_t key;
        const char *why;
    } cases[] = {
        {1, "denied in the list of machines"},
        {2, "of a token that expired at 1970-01-01 00:16 UTC, and this machine's clock says "
            "1970-01-03 00:00 UTC: set the clock if it is wrong or was wrong when the token was "
            "made, and make another token (dpt-rdzv --new-token)"},
        {3, "of no machine in the list and of no token"},
        {4, "of a token that is used up (it admits 1 machine)"},
    };
    char why[DPT_ADMISSION_WHY_BYTES];
    read_machines("deny " ONES " a\n");
    read_tokens("token " TWOS " join 999 9\ntoken " FOURS " join 999999 1\nused " FOURS " " ONES);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct dpt_key key = key_of(cases[i].key);
        dpt_admission_explain(&lists, &key, 2 * 24 * 3600, why);
        assert_string_equal(why, cases[i].why);
    }
}

/* A right for one run goes from the token to the machine. */
static void right_may_be_for_one_run(void **state)
{
    (void)state;
    struct dpt_admission_token token = {
        .key = key_of(4), .right = DPT_RIGHT_JOIN, .run = "my-run", .expires_s = 1000, .uses = 2};
    char line[DPT_ADMISSION_LINE_BYTES];
    struct dpt_err err;
    dpt_admission_print_token(&token, line);
    assert_string_equal(line, "token " FOURS " join 1000 2 my-run");
    read_tokens(line);
    assert_string_equal(lists.tokens[0].run, "my-run");
    read_machines("");
    assert_string_equal(decide(4, 2, 999).machine_line, "join " TWOS " gpu7 my-run");
    read_machines("join " TWOS " gpu7 my-run\ndefine " ONES " a\n");
    const struct dpt_key one = key_of(1), two = key_of(2), three = key_of(3);
    assert_string_equal(dpt_admission_run(&lists, &two), "my-run");
    assert_string_equal(dpt_admission_run(&lists, &one), "");
    assert_string_equal(dpt_admission_run(&lists, &three), "");
    static const char *const bad[] = {"define " ONES " a my/run\n", "define " ONES " a .run\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(dpt_admission_read_machines(&lists, bad[i], &err), DPT_ECONFIG);
    assert_int_equal(dpt_admission_read_tokens(&lists, "token " FOURS " join 1000 2 a:b\n", &err),
                     DPT_ECONFIG);
    assert_false(dpt_admission_is_run(""));
    assert_true(dpt_admission_is_run("A.b_9-"));
}

int main(void)
{
#define CASE(test) cmocka_unit_test_teardown(test, teardown)
    const struct CMUnitTest tests[] = {
        CASE(rights_are_of_last_line),
        CASE(bad_lines_change_nothing),
        CASE(lists_are_bounded),
        CASE(added_line_counts_as_when_read),
        CASE(token_admits_each_machine_once),
        CASE(full_lists_admit_nobody),
        CASE(tokens_are_refused_with_reason),
        CASE(lines_are_read_again),
        CASE(right_may_be_for_one_run),
        CASE(token_of_a_clock_ahead_admits_nobody),
        CASE(refused_keys_are_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
