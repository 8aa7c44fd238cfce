/* Decisions about keys from the two lists. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/keys/admission.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys of 64 equal digits. */
#define ONES   "1111111111111111111111111111111111111111111111111111111111111111"
#define TWOS   "2222222222222222222222222222222222222222222222222222222222222222"
#define THREES "3333333333333333333333333333333333333333333333333333333333333333"
#define FOURS  "4444444444444444444444444444444444444444444444444444444444444444"

static struct dpt_admission lists;

static int teardown(void **state)
{
    (void)state;
    dpt_admission_fini(&lists);
    return 0;
}

static struct dpt_key key_of(uint8_t digit)
{
    struct dpt_key key;
    memset(key.bytes, digit << 4 | digit, sizeof key.bytes);
    return key;
}

static enum dpt_right right_of(uint8_t digit)
{
    const struct dpt_key key = key_of(digit);
    return dpt_admission_right(&lists, &key, 8);
}

static void read_machines(const char *text)
{
    struct dpt_err err;
    if (dpt_admission_read_machines(&lists, text, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

static void read_tokens(const char *text)
{
    struct dpt_err err;
    if (dpt_admission_read_tokens(&lists, text, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

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
    assert_non_null(strstr(err.text, "more than 65536 machines"));
    at[-LINE] = '\0'; /* one line less */
    read_machines(text);
    assert_int_equal(lists.n_machines, DPT_ADMISSION_MACHINES_MAX);
    free(text);
}

static struct dpt_admission_decision decide(uint8_t token, uint8_t machine, int64_t now_s)
{
    struct dpt_admission_decision decision;
    const struct dpt_key token_key = key_of(token);
    const struct dpt_enroll_request request = {.key = key_of(machine), .name = "gpu7"};
    dpt_admission_decide(&lists, &token_key, &request, now_s, &decision);
    return decision;
}

static void expect_refused(uint8_t token, uint8_t machine, int64_t now_s, const char *why)
{
    const struct dpt_admission_decision decision = decide(token, machine, now_s);
    assert_false(decision.answer.admitted || decision.is_new);
    if (strstr(decision.answer.text, why) == NULL)
        fail_msg("wanted '%s' in: %s", why, decision.answer.text);
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
    assert_false(dpt_admission_token_is_good(&lists.tokens[0], 999));
    assert_int_equal(right_of(4), DPT_RIGHT_SPENT); /* used up */
    read_tokens("token " FOURS " join 9 1\n");
    assert_int_equal(right_of(4), DPT_RIGHT_TOKEN);
    read_tokens("token " FOURS " join 8 1\n");
    assert_int_equal(right_of(4), DPT_RIGHT_SPENT); /* expired */
    assert_string_equal(dpt_right_text(DPT_RIGHT_SPENT), "spent");
    assert_string_equal(dpt_right_text(DPT_RIGHT_DEFINE), "define");
}

static void tokens_are_refused_with_reason(void **state)
{
    (void)state;
    read_tokens("token " FOURS " define 1000 1\nused " THREES " " ONES "\n");
    assert_true(dpt_admission_token_is_good(&lists.tokens[0], 999));
    expect_refused(4, 1, 1000, "the token expired 0 s ago");
    expect_refused(4, 1, 1060, "the token expired 60 s ago");
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

/* Tokens that have expired or are used up leave the list with their uses; the rest stays. */
static void spent_tokens_are_pruned(void **state)
{
    (void)state;
    static const char good[] =
        "# mine\n\ntoken " ONES " join 1000 2 my-run\nused " ONES " " THREES "\n";
    char text[1024], pruned[1024];
    struct dpt_err err;
    size_t n = 9;
    (void)snprintf(text, sizeof text,
                   "token " TWOS " define 999 9\nused " TWOS " " ONES "\n%stoken " FOURS
                   " join 1000 1\nused " FOURS " " THREES "\nused " THREES " " ONES "\n",
                   good);
    assert_int_equal(dpt_admission_prune_tokens(text, 999, pruned, &n, &err), DPT_OK);
    assert_string_equal(pruned, good);
    assert_int_equal(n, 1);
    assert_int_equal(dpt_admission_prune_tokens(good, 1000, pruned, &n, &err), DPT_OK);
    assert_string_equal(pruned, "# mine\n\n");
    assert_int_equal(n, 0);
    assert_int_equal(dpt_admission_prune_tokens("token x", 0, pruned, &n, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "line 1: expected 'token KEY"));
    enum { N = 3 * DPT_ADMISSION_TOKENS_MAX, LINE = 6 + 64 + 12 };
    char *many = malloc((size_t)N * LINE + 1), *less = malloc((size_t)N * LINE + 1), *at = many;
    assert_true(many != NULL && less != NULL);
    for (int i = 0; i < N; i++)
        at += snprintf(at, LINE + 1, "token %064x join %d 1\n", (unsigned)i, i % 3 == 0 ? 9 : 7);
    assert_int_equal(dpt_admission_read_tokens(&lists, many, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "more than 1024 tokens"));
    assert_int_equal(dpt_admission_prune_tokens(many, 8, less, &n, &err), DPT_OK);
    assert_int_equal(n, DPT_ADMISSION_TOKENS_MAX);
    read_tokens(less);
    free(many);
    free(less);
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
        CASE(token_admits_each_machine_once),
        CASE(tokens_are_refused_with_reason),
        CASE(lines_are_read_again),
        CASE(right_may_be_for_one_run),
        CASE(spent_tokens_are_pruned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
