/* The lists of a test, and decisions by them about keys of equal digits. */
#ifndef DPT_TESTS_RENDEZVOUS_KEYS_LISTS_H
#define DPT_TESTS_RENDEZVOUS_KEYS_LISTS_H

#include "rendezvous/keys/admission.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

/* Keys of 64 equal digits. */
#define ONES   "1111111111111111111111111111111111111111111111111111111111111111"
#define TWOS   "2222222222222222222222222222222222222222222222222222222222222222"
#define THREES "3333333333333333333333333333333333333333333333333333333333333333"
#define FOURS  "4444444444444444444444444444444444444444444444444444444444444444"

static struct dpt_admission lists;

static inline int teardown(void **state)
{
    (void)state;
    dpt_admission_fini(&lists);
    return 0;
}

static inline struct dpt_key key_of(uint8_t digit)
{
    struct dpt_key key;
    memset(key.bytes, digit << 4 | digit, sizeof key.bytes);
    return key;
}

static inline enum dpt_right right_of(uint8_t digit)
{
    const struct dpt_key key = key_of(digit);
    return dpt_admission_right(&lists, &key, 8);
}

static inline void read_machines(const char *text)
{
    struct dpt_err err;
    if (dpt_admission_read_machines(&lists, text, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

static inline void read_tokens(const char *text)
{
    struct dpt_err err;
    if (dpt_admission_read_tokens(&lists, text, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

static inline struct dpt_admission_decision decide(uint8_t token, uint8_t machine, int64_t now_s)
{
    struct dpt_admission_decision decision;
    const struct dpt_key token_key = key_of(token);
    const struct dpt_enroll_request request = {.key = key_of(machine), .name = "gpu7"};
    dpt_admission_decide(&lists, &token_key, &request, now_s, &decision);
    return decision;
}

static inline void expect_refused(uint8_t token, uint8_t machine, int64_t now_s, const char *why)
{
    const struct dpt_admission_decision decision = decide(token, machine, now_s);
    assert_false(decision.answer.admitted || decision.is_new);
    if (strstr(decision.answer.text, why) == NULL)
        fail_msg("wanted '%s' in: %s", why, decision.answer.text);
}

#endif
