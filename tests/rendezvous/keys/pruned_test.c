/* Tokens that leave the list, or stay in it, when it is written again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/keys/lists.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    assert_int_equal(pruned.n_staying, 1);
    assert_int_equal(pruned.n_ahead, 0);
    (void)prune(&list, 2000 + SPENT_S); /* the first one leaves */
    assert_int_equal(strlen(list.text), strlen(before) - strlen("token  join 2000 1\n") - 64);
    (void)prune(&list, 2001 + SPENT_S); /* and the other, with its uses */
    assert_null(strstr(list.text, "join 2001 3"));
    assert_true(strncmp(list.text, head, strlen(head)) == 0);
    pruned = prune(&list, 2000000); /* the rest is among the newest */
    read_tokens(list.text);
    assert_int_equal(lists.n_tokens, DPT_ADMISSION_SPENT_NEWEST);
    assert_int_equal(pruned.n_staying, 0);
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
    assert_int_equal(pruned.n_staying, 4);
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
    assert_int_equal(prune(&list, 8).n_staying, GOOD);
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
    assert_int_equal(prune(&list, 8).n_staying, 0);
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
    assert_int_equal(pruned.n_ahead, MAX - GOOD);
    read_tokens(list.text);
    assert_int_equal(lists.n_tokens, MAX);
    free(list.text);
}

/* The lines of other tokens, and what they have used, stay as they are. */
static void revoked_token_admits_nobody(void **state)
{
    (void)state;
    static const char before[] =
        "# mine\n\ntoken " ONES " join 1000 2 my-run\nused " ONES " " THREES "\n  token  " FOURS
        " define\t1000 9 my-run # b\nused " FOURS " " THREES "\nused " TWOS " " FOURS
        "\ntoken " TWOS " join 1000 3";
    static const char first[] =
        "# mine\n\ntoken " ONES " join 1000 2 my-run\nused " ONES " " THREES "\ntoken " FOURS
        " define 0 9 my-run\nused " TWOS " " FOURS "\ntoken " TWOS " join 1000 3";
    static const char both[] = "# mine\n\ntoken " ONES " join 1000 2 my-run\nused " ONES " " THREES
                               "\ntoken " FOURS " define 0 9 my-run\ntoken " TWOS " join 0 3\n";
    char text[sizeof before + DPT_ADMISSION_LINE_BYTES], again[sizeof text];
    char why[DPT_ADMISSION_WHY_BYTES];
    const struct dpt_key two = key_of(2), four = key_of(4);
    struct dpt_err err;
    assert_int_equal(dpt_admission_revoke_token(before, &four, text, &err), DPT_OK);
    assert_string_equal(text, first);
    assert_int_equal(dpt_admission_revoke_token(first, &four, again, &err), DPT_OK);
    assert_string_equal(again, first);
    assert_int_equal(dpt_admission_revoke_token(first, &two, text, &err), DPT_OK);
    assert_string_equal(text, both);
    read_tokens(text);
    assert_int_equal(right_of(1), DPT_RIGHT_TOKEN);
    for (int64_t now_s = 0; now_s < 2000; now_s += 999) { /* also by a clock that is wrong */
        assert_int_equal(dpt_admission_right(&lists, &four, now_s), DPT_RIGHT_SPENT);
        expect_refused(4, 3, now_s, "the token was revoked: make another");
        dpt_admission_explain(&lists, &four, now_s, why);
        assert_string_equal(why, "of a token that was revoked");
    }
    assert_int_equal(dpt_admission_revoke_token("token x", &four, text, &err), DPT_ECONFIG);
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

int main(void)
{
#define CASE(test) cmocka_unit_test_teardown(test, teardown)
    const struct CMUnitTest tests[] = {
        CASE(spent_tokens_stay_for_days),      CASE(tokens_of_a_clock_ahead_are_counted),
        CASE(spent_tokens_take_no_room),       CASE(uses_of_spent_tokens_are_bounded),
        CASE(wrong_clock_loses_no_good_token), CASE(tokens_ahead_give_way_to_none),
        CASE(revoked_token_admits_nobody),     CASE(bad_list_is_not_pruned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
