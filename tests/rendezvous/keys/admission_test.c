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
    assert_int_equal(dpt_admission_token_state(&lists.tokens[0], 999), DPT_TOKEN_USED_UP);
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

enum { DAYS = 24 * 3600, SPENT_S = DPT_ADMISSION_SPENT_DAYS * DAYS };

/* A list that grows line by line. */
struct growing {
    char *text, *at, *end;
};

static struct growing grow(size_t lines)
{
    const size_t bytes = lines * DPT_ADMISSION_LINE_BYTES + 1;
    char *text = calloc(1, bytes);
    assert_non_null(text);
    return (struct growing){text, text, text + bytes};
}

static void add_line(struct growing *list, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    list->at += vsnprintf(list->at, (size_t)(list->end - list->at), format, args);
    va_end(args);
    assert_true(list->at < list->end);
}

static void add_token(struct growing *list, unsigned key, int64_t expires_s, unsigned used)
{
    add_line(list, "token %064x join %lld %u\n", key, (long long)expires_s, used > 0 ? used : 1);
    for (unsigned i = 0; i < used; i++)
        add_line(list, "used %064x " ONES "\n", key);
}

/* Prunes the list in place. */
static struct dpt_admission_pruned prune(struct growing *list, int64_t now_s)
{
    struct dpt_admission_pruned ret;
    struct dpt_err err;
    char *pruned = malloc(strlen(list->text) + 1);
    assert_non_null(pruned);
    assert_int_equal(dpt_admission_prune_tokens(list->text, now_s, pruned, &ret, &err), DPT_OK);
    list->at = list->text + strlen(pruned);
    memcpy(list->text, pruned, strlen(pruned) + 1);
    free(pruned);
    return ret;
}

/* Of the newest tokens, those that are kept whatever their expiry come last. */
static void spent_tokens_stay_for_days(void **state)
{
    (void)state;
    static const char head[] =
        "# mine\n\ntoken " ONES " join 1000000 2 my-run\nused " ONES " " THREES "\n";
    static const char of_nothing[] = "used " TWOS " " ONES "\n";
    struct growing list = grow(99);
    add_line(&list, "%s%s", of_nothing, head);
    const size_t kept = strlen(of_nothing);
    add_token(&list, 8, 2000, 0); /* expired */
    add_token(&list, 9, 2001, 3); /* used up and expired */
    for (unsigned i = 0; i < DPT_ADMISSION_SPENT_NEWEST; i++)
        add_token(&list, 100 + i, i, 0);
    char *before = strdup(list.text + kept);
    struct dpt_admission_pruned pruned = prune(&list, 1999 + SPENT_S);
    assert_string_equal(list.text, before);
    assert_int_equal(pruned.n_good, 1);
    assert_int_equal(pruned.n_ahead, 0);
    (void)prune(&list, 2000 + SPENT_S); /* the first one leaves */
    assert_int_equal(strlen(list.text), strlen(before) - strlen("token  join 2000 1\n") - 64);
    (void)prune(&list, 2001 + SPENT_S); /* and the other, with its uses */
    assert_null(strstr(list.text, "join 2001 3"));
    assert_true(strncmp(list.text, head, strlen(head)) == 0);
    pruned = prune(&list, 2000000); /* the rest is among the newest */
    read_tokens(list.text);
    assert_int_equal(lists.n_tokens, DPT_ADMISSION_SPENT_NEWEST);
    assert_int_equal(pruned.n_good, 0);
    free(before);
    free(list.text);
}

static void tokens_of_a_clock_ahead_are_counted(void **state)
{
    (void)state;
    struct growing list = grow(9);
    add_token(&list, 1, 1000, 0);
    add_token(&list, 2, 99999999998, 0);
    add_token(&list, 3, 99999999999, 0);
    add_token(&list, 4, 99999999997, 0);
    const struct dpt_admission_pruned pruned = prune(&list, 999);
    assert_int_equal(pruned.n_good, 1);
    assert_int_equal(pruned.n_ahead, 3);
    assert_int_equal(pruned.ahead_s, 99999999999);
    read_tokens(list.text);
    assert_int_equal(lists.n_tokens, 4);
    free(list.text);
}

/* Spent tokens give way to good ones, the oldest first, and to one that is added. */
static void spent_tokens_take_no_room(void **state)
{
    (void)state;
    enum { MAX = DPT_ADMISSION_TOKENS_MAX, N = 3 * MAX, GOOD = MAX - 5 };
    struct dpt_err err;
    struct growing list = grow(N);
    for (unsigned i = 0; i < N; i++)
        add_token(&list, i, i % 3 == 0 && i / 3 < GOOD ? 9 : 7, 0);
    assert_int_equal(dpt_admission_read_tokens(&lists, list.text, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "more than 1024 tokens"));
    assert_int_equal(prune(&list, 8).n_good, GOOD);
    add_token(&list, N, 9, 0);
    read_tokens(list.text);
    assert_int_equal(lists.n_tokens, MAX);
    assert_int_equal(lists.tokens[MAX - 2].key.bytes[31], (N - 1) & 0xff); /* the newest stay */
    assert_int_equal(right_of(1), DPT_RIGHT_NONE);
    free(list.text);
}

/* A used-up token has many lines: the file is bounded. */
static void uses_of_spent_tokens_are_bounded(void **state)
{
    (void)state;
    enum { USES = DPT_ADMISSION_SPENT_LINES_MAX / 2 };
    struct growing list = grow(3 * USES + 3);
    for (unsigned i = 0; i < 3; i++)
        add_token(&list, i + 1, 9, USES - 1);
    assert_int_equal(prune(&list, 8).n_good, 0);
    read_tokens(list.text);
    assert_int_equal(lists.n_tokens, 2);
    assert_int_equal(lists.tokens[0].key.bytes[31], 2);
    assert_int_equal(lists.tokens[1].used, USES - 1);
    free(list.text);
}

/* A token of 10,000 machines, 9,000 of which it has admitted, at a start with a clock that is
 * wrong: it is there when the clock is right. One that is used up leaves. */
static void wrong_clock_loses_no_good_token(void **state)
{
    (void)state;
    enum { USED = 9000, NOW = 1795737600, EXPIRES = NOW + DAYS };
    static const struct {
        int64_t now_s;
        size_t n_ahead;
    } clocks[] = {{0, 2}, {NOW + INT64_C(301) * DAYS, 0}, {EXPIRES + SPENT_S - 1, 0}};
    for (size_t i = 0; i < sizeof clocks / sizeof clocks[0]; i++) {
        struct growing list = grow(2 * (USED + 1));
        add_token(&list, 5, EXPIRES, USED); /* used up */
        add_line(&list, "token " FOURS " join %d 10000\n", EXPIRES);
        for (unsigned n = 0; n < USED; n++)
            add_line(&list, "used " FOURS " " ONES "\n");
        const struct dpt_admission_pruned pruned = prune(&list, clocks[i].now_s);
        assert_int_equal(pruned.n_ahead, clocks[i].n_ahead);
        read_tokens(list.text);
        assert_int_equal(lists.n_tokens, 1);
        assert_int_equal(lists.tokens[0].used, USED);
        assert_int_equal(dpt_admission_token_state(&lists.tokens[0], NOW), DPT_TOKEN_GOOD);
        free(list.text);
    }
}

/* The clock is behind: good tokens take no place from those that it finds ahead. */
static void tokens_ahead_give_way_to_none(void **state)
{
    (void)state;
    enum { MAX = DPT_ADMISSION_TOKENS_MAX, GOOD = 4 };
    struct growing list = grow(MAX);
    for (unsigned i = 0; i < MAX; i++)
        add_token(&list, i, i < MAX - GOOD ? INT64_C(1795737600) : 9, 0);
    const struct dpt_admission_pruned pruned = prune(&list, 8);
    assert_int_equal(pruned.n_staying, MAX);
    assert_int_equal(pruned.n_good, GOOD);
    read_tokens(list.text);
    assert_int_equal(lists.n_tokens, MAX);
    free(list.text);
}

static void bad_list_is_not_pruned(void **state)
{
    (void)state;
    struct dpt_admission_pruned pruned;
    struct dpt_err err;
    char text[16];
    assert_int_equal(dpt_admission_prune_tokens("token x", 0, text, &pruned, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "line 1: expected 'token KEY"));
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
        CASE(token_of_a_clock_ahead_admits_nobody),
        CASE(refused_keys_are_explained),
        CASE(spent_tokens_stay_for_days),
        CASE(tokens_of_a_clock_ahead_are_counted),
        CASE(spent_tokens_take_no_room),
        CASE(uses_of_spent_tokens_are_bounded),
        CASE(wrong_clock_loses_no_good_token),
        CASE(tokens_ahead_give_way_to_none),
        CASE(bad_list_is_not_pruned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
