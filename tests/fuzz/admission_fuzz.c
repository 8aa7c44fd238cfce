/* Fuzz target: what strangers and operators may hand to a server's gate. The first byte chooses: a
 * request or an answer of an enrolment or a next key, which encodes again to the same bytes; the
 * text of a token, which prints again to the same text; a list of machines or of tokens, whose
 * machines are sorted and single, and whose tokens admit no more machines than they may. */
#include "rendezvous/keys/admission.h"
#include "rendezvous/keys/token.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { INPUT_BYTES_MAX = 16 * 1024, TOKENS_TRIED = 8, USES_TRIED = 8 };

static void request(const uint8_t *data, size_t bytes)
{
    struct dpt_enroll_request decoded;
    struct dpt_err err = {.status = DPT_OK};
    uint8_t again[DPT_ENROLL_MESSAGE_BYTES_MAX];
    char name[DPT_ENROLL_NAME_BYTES];
    if (dpt_enroll_request_decode(data, bytes, &decoded, &err) != DPT_OK) {
        DPT_ASSERT(err.status == DPT_EPROTO || err.status == DPT_EVERSION);
        return;
    }
    DPT_ASSERT(dpt_enroll_request_encode(&decoded, again) == bytes);
    DPT_ASSERT(memcmp(again, data, bytes) == 0);
    dpt_enroll_name(decoded.name, name);
    DPT_ASSERT(strcmp(name, decoded.name) == 0);
}

static void answer(const uint8_t *data, size_t bytes)
{
    struct dpt_enroll_answer decoded, second;
    struct dpt_err err = {.status = DPT_OK};
    uint8_t again[DPT_ENROLL_MESSAGE_BYTES_MAX];
    if (dpt_enroll_answer_decode(data, bytes, &decoded, &err) != DPT_OK) {
        DPT_ASSERT(err.status == DPT_EPROTO || err.status == DPT_EVERSION);
        return;
    }
    for (const char *at = decoded.text; *at != '\0'; at++)
        DPT_ASSERT((unsigned char)*at >= ' ');
    DPT_ASSERT(dpt_enroll_answer_encode(&decoded, again) == bytes);
    DPT_ASSERT(dpt_enroll_answer_decode(again, bytes, &second, &err) == DPT_OK);
    DPT_ASSERT(second.admitted == decoded.admitted && strcmp(second.text, decoded.text) == 0);
}

static void next_key(const uint8_t *data, size_t bytes)
{
    struct dpt_key key;
    uint8_t again[DPT_NEXT_KEY_BYTES];
    if (!dpt_next_key_decode(data, bytes, &key))
        return;
    dpt_next_key_encode(&key, again);
    DPT_ASSERT(bytes == sizeof again && memcmp(again, data, bytes) == 0);
}

static void token(const char *text)
{
    struct dpt_token parsed;
    struct dpt_err err = {.status = DPT_OK};
    char again[DPT_TOKEN_TEXT_BYTES];
    if (dpt_token_parse(text, &parsed, &err) != DPT_OK) {
        DPT_ASSERT(err.status == DPT_ECONFIG && err.text[0] != '\0');
        return;
    }
    dpt_token_print(&parsed, again);
    DPT_ASSERT(strcmp(again, text) == 0);
}

static void machines(const char *text)
{
    struct dpt_admission list = {0};
    struct dpt_err err = {.status = DPT_OK};
    if (dpt_admission_read_machines(&list, text, &err) != DPT_OK) {
        DPT_ASSERT(err.status == DPT_ECONFIG && list.n_machines == 0);
        return;
    }
    for (size_t i = 0; i < list.n_machines; i++) {
        const struct dpt_admitted_machine *each = &list.machines[i];
        DPT_ASSERT(dpt_admission_right(&list, &each->key, 0) == each->right);
        DPT_ASSERT(i == 0 || memcmp(each[-1].key.bytes, each->key.bytes, DPT_KEY_BYTES) < 0);
    }
    dpt_admission_fini(&list);
}

/* One unknown machine after another asks with the token. Returns the number admitted; *ret_asked:
 * the number that asked. */
static uint32_t use_token(const struct dpt_admission *list, struct dpt_admission_token *token_,
                          int64_t now_s, uint32_t *ret_asked)
{
    uint32_t admitted = 0;
    *ret_asked = 0;
    for (uint32_t i = 0; i < USES_TRIED; i++) {
        struct dpt_admission_decision decision;
        struct dpt_enroll_request asks = {.name = "fuzz"};
        memset(asks.key.bytes, (int)(i + 1), sizeof asks.key.bytes);
        if (dpt_admission_right(list, &asks.key, now_s) != DPT_RIGHT_NONE)
            continue; /* it is the key of a token */
        ++*ret_asked;
        dpt_admission_decide(list, &token_->key, &asks, now_s, &decision);
        DPT_ASSERT(decision.answer.admitted == (decision.answer.text[0] == '\0'));
        token_->used += decision.is_new;
        admitted += decision.is_new;
    }
    return admitted;
}

static size_t count_good(const struct dpt_admission *list, int64_t now_s)
{
    size_t n = 0;
    for (size_t i = 0; i < list->n_tokens; i++)
        n += dpt_admission_token_state(&list->tokens[i], now_s) == DPT_TOKEN_GOOD;
    return n;
}

static size_t count_ahead(const struct dpt_admission *list, int64_t now_s)
{
    size_t n = 0;
    for (size_t i = 0; i < list->n_tokens; i++)
        n += list->tokens[i].used < list->tokens[i].uses &&
             dpt_admission_token_state(&list->tokens[i], now_s) == DPT_TOKEN_AHEAD;
    return n;
}

/* A pruned list has the good tokens of the list, and those with uses left that a right clock may
 * find good, has room for another, and is pruned. */
static void prune(const char *text, const struct dpt_admission *list, int64_t now_s)
{
    struct dpt_admission left = {0};
    struct dpt_admission_pruned pruned_to;
    struct dpt_err err = {.status = DPT_OK};
    char *pruned = malloc(strlen(text) + 1), *again = malloc(strlen(text) + 1);
    DPT_ASSERT(pruned != NULL && again != NULL);
    DPT_ASSERT(dpt_admission_prune_tokens(text, now_s, pruned, &pruned_to, &err) == DPT_OK);
    DPT_ASSERT(dpt_admission_read_tokens(&left, pruned, &err) == DPT_OK);
    DPT_ASSERT(count_good(list, now_s) == count_good(&left, now_s));
    DPT_ASSERT(count_ahead(list, now_s) == count_ahead(&left, now_s));
    DPT_ASSERT(pruned_to.n_staying == count_good(list, now_s) + count_ahead(list, now_s));
    DPT_ASSERT(left.n_tokens == pruned_to.n_staying || left.n_tokens < DPT_ADMISSION_TOKENS_MAX);
    DPT_ASSERT(dpt_admission_prune_tokens(pruned, now_s, again, &pruned_to, &err) == DPT_OK);
    DPT_ASSERT(strcmp(pruned, again) == 0);
    dpt_admission_fini(&left);
    free(pruned);
    free(again);
}

static void tokens(const char *text, int64_t now_s)
{
    struct dpt_admission list = {0};
    struct dpt_err err = {.status = DPT_OK};
    if (dpt_admission_read_tokens(&list, text, &err) != DPT_OK) {
        DPT_ASSERT(err.status == DPT_ECONFIG && list.n_tokens == 0);
        return;
    }
    prune(text, &list, now_s);
    for (size_t i = 0; i < list.n_tokens && i < TOKENS_TRIED; i++) {
        struct dpt_admission_token *each = &list.tokens[i];
        const bool good = dpt_admission_token_state(each, now_s) == DPT_TOKEN_GOOD;
        const uint32_t left = good ? each->uses - each->used : 0;
        uint32_t asked;
        const uint32_t admitted = use_token(&list, each, now_s, &asked);
        DPT_ASSERT(admitted == (left < asked ? left : asked));
    }
    dpt_admission_fini(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct feed feed = feed_from(data, bytes);
    const uint32_t kind = feed_below(&feed, 6);
    const int64_t now_s = feed_u8(&feed);
    size_t n;
    const uint8_t *rest = feed_rest(&feed, &n);
    if (n > INPUT_BYTES_MAX)
        return 0;
    char *text = malloc(n + 1);
    DPT_ASSERT(text != NULL);
    if (n > 0)
        memcpy(text, rest, n);
    text[n] = '\0';
    switch (kind) {
    case 0:
        request(rest, n);
        break;
    case 1:
        answer(rest, n);
        break;
    case 2:
        token(text);
        break;
    case 3:
        machines(text);
        break;
    case 4:
        tokens(text, now_s);
        break;
    default:
        next_key(rest, n);
    }
    free(text);
    return 0;
}
