/* Translates a pattern of oniguruma to PCRE2, compiles it and finds its matches. */
#include "worker/data/split_pattern.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { JIT_STACK_BYTES_MIN = 32 << 10, JIT_STACK_BYTES_MAX = 8 << 20, SHOWN_BYTES = 24 };

/* Oniguruma's \s is Unicode's White_Space; PCRE2's \s also has U+180E. */
#define SPACES "\\t-\\r\\x{85}\\p{Z}"
enum { GROWS_MAX = sizeof "[^" SPACES "]" };

struct dpt_pattern {
    char text[DPT_PATTERN_BYTES_MAX + 1];
    pcre2_code *code;
};

struct dpt_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack; /* NULL: this machine interprets patterns */
};

/* ---------------------------------------------------------------- translation */

struct translation {
    const char *at; /* in the pattern */
    char *to;
    bool in_class;
};

static enum dpt_status refuse_part(const struct translation *t, size_t n, const char *why,
                                   struct dpt_err *err)
{
    return dpt_fail(err, DPT_ECONFIG, "'%.*s' in the pattern: %s", (int)n, t->at, why);
}

static void copy_characters(struct translation *t, size_t n)
{
    memcpy(t->to, t->at, n);
    t->to += n;
    t->at += n;
}

/* Writes `text` in place of the next two characters. */
static void put_for_escape(struct translation *t, const char *text)
{
    const size_t n = strlen(text);
    memcpy(t->to, text, n);
    t->to += n;
    t->at += 2;
}

/* \p{L}, \p{Nd} and the like. */
static enum dpt_status translate_property(struct translation *t, struct dpt_err *err)
{
    const char *name = t->at + 3;
    const size_t n = t->at[2] == '{' ? strcspn(name, "}") : 0;
    if ((n != 1 && n != 2) || name[n] != '}' || !isupper((unsigned char)name[0]) ||
        (n == 2 && !islower((unsigned char)name[1])))
        return refuse_part(t, strnlen(t->at, SHOWN_BYTES),
                           "only general categories are known, such as \\p{L} and \\p{Nd}", err);
    copy_characters(t, n + 4);
    return DPT_OK;
}

static enum dpt_status translate_escape(struct translation *t, struct dpt_err *err)
{
    const char c = t->at[1];
    if (c == 'p' || c == 'P')
        return translate_property(t, err);
    if (c == 'S' && t->in_class)
        return refuse_part(t, 2, "it is not supported in a class", err);
    if (c == 's')
        put_for_escape(t, t->in_class ? SPACES : "[" SPACES "]");
    else if (c == 'S')
        put_for_escape(t, "[^" SPACES "]");
    else if (c == 'd' || c == 'D')
        put_for_escape(t, c == 'd' ? "\\p{Nd}" : "\\P{Nd}");
    else if (c && (strchr("rntf", c) || ispunct((unsigned char)c) || c == ' '))
        copy_characters(t, 2);
    else
        return refuse_part(t, c ? 2 : 1, "this escape is not supported", err);
    return DPT_OK;
}

static enum dpt_status translate_in_class(struct translation *t, struct dpt_err *err)
{
    if (t->at[0] == '[')
        return refuse_part(t, 1, "a class within a class is not supported", err);
    if (t->at[0] == '&' && t->at[1] == '&')
        return refuse_part(t, 2, "intersections of classes are not supported", err);
    t->in_class = t->at[0] != ']';
    copy_characters(t, 1);
    return DPT_OK;
}

static enum dpt_status translate_group(struct translation *t, struct dpt_err *err)
{
    static const char *const groups[] = {"(?:", "(?i:", "(?>", "(?=", "(?!", "(?<=", "(?<!"};
    if (t->at[1] == '*')
        return refuse_part(t, 2, "verbs are not supported", err);
    if (t->at[1] != '?') {
        copy_characters(t, 1);
        return DPT_OK;
    }
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (strncmp(t->at, groups[i], strlen(groups[i])) == 0) {
            copy_characters(t, strlen(groups[i]));
            return DPT_OK;
        }
    return refuse_part(t, strnlen(t->at, 4), "this kind of group is not supported", err);
}

/* Translates {n}, {n,} or {n,m}. Refuses {n}? and {}+: in Ruby's syntax the sign repeats the
 * repeat. */
static enum dpt_status translate_count(struct translation *t, struct dpt_err *err)
{
    static const char digits[] = "0123456789";
    const size_t least = strspn(t->at + 1, digits);
    size_t n = 1 + least;
    const bool range = t->at[n] == ',';
    if (range)
        n += 1 + strspn(t->at + n + 1, digits);
    if (least == 0 || t->at[n] != '}')
        return refuse_part(t, strnlen(t->at, n + 1), "expected {n}, {n,} or {n,m}, or \\{", err);
    if (t->at[n + 1] == '+' || (t->at[n + 1] == '?' && !range))
        return refuse_part(t, n + 2, "the sign after {} has another meaning in Ruby's syntax", err);
    copy_characters(t, n + 1);
    return DPT_OK;
}

static enum dpt_status translate_next(struct translation *t, struct dpt_err *err)
{
    const char c = t->at[0];
    if (c == '\\')
        return translate_escape(t, err);
    if (t->in_class)
        return translate_in_class(t, err);
    if (c == '(')
        return translate_group(t, err);
    if (c == '{')
        return translate_count(t, err);
    if (c == '^' || c == '$')
        return refuse_part(t, 1, "the ends of lines have another meaning in Ruby's syntax", err);
    if (c == '[') {
        const size_t n = t->at[1] == '^' ? 2 : 1;
        if (t->at[n] == ']')
            return refuse_part(t, n + 1, "it is not known if this class is empty", err);
        t->in_class = true;
        copy_characters(t, n);
        return DPT_OK;
    }
    copy_characters(t, 1);
    return DPT_OK;
}

static enum dpt_status translate_pattern(const char *text, char *ret, struct dpt_err *err)
{
    struct translation t = {.at = text, .to = ret};
    while (*t.at)
        DPT_TRY(translate_next(&t, err));
    *t.to = '\0';
    return DPT_OK;
}

/* ---------------------------------------------------------------- compiling */

static enum dpt_status compile_translated(const char *translated, pcre2_code **ret,
                                          struct dpt_err *err)
{
    int number;
    PCRE2_SIZE place;
    PCRE2_UCHAR why[128] = {0};
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return dpt_fail_nomem(err, "tokenizer: pattern");
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF); /* for '.' */
    *ret = pcre2_compile((PCRE2_SPTR)translated, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                         &number, &place, context);
    pcre2_compile_context_free(context);
    if (*ret)
        return DPT_OK;
    (void)pcre2_get_error_message(number, why, sizeof why);
    return dpt_fail(err, DPT_ECONFIG, "the pattern does not compile: %s", (const char *)why);
}

enum dpt_status dpt_pattern_compile(const char *text, struct dpt_pattern **ret, struct dpt_err *err)
{
    const size_t bytes = strlen(text);
    if (bytes > DPT_PATTERN_BYTES_MAX)
        return dpt_fail(err, DPT_ECONFIG, "the pattern has %zu bytes, at most %d are supported",
                        bytes, DPT_PATTERN_BYTES_MAX);
    struct dpt_pattern *pattern = calloc(1, sizeof *pattern);
    char *translated = malloc(bytes * GROWS_MAX + 1);
    if (!pattern || !translated) {
        free(pattern);
        free(translated);
        return dpt_fail_nomem(err, "tokenizer: pattern");
    }
    enum dpt_status status = translate_pattern(text, translated, err);
    if (status == DPT_OK)
        status = compile_translated(translated, &pattern->code, err);
    free(translated);
    if (status != DPT_OK) {
        free(pattern);
        return status;
    }
    /* A system that forbids machine code interprets the pattern: slower, with the same matches. */
    (void)pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE);
    memcpy(pattern->text, text, bytes + 1);
    *ret = pattern;
    return DPT_OK;
}

void dpt_pattern_free(struct dpt_pattern **pattern)
{
    if (!*pattern)
        return;
    pcre2_code_free((*pattern)->code);
    free(*pattern);
    *pattern = NULL;
}

const char *dpt_pattern_text(const struct dpt_pattern *pattern)
{
    return pattern->text;
}

enum dpt_cuts dpt_pattern_cuts(const struct dpt_pattern *pattern)
{
    /* In Llama 3's pattern a run of signs includes the line ends after it. */
#define WORDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define SIGNS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
    static const struct {
        const char *text;
        enum dpt_cuts cuts;
    } known[] = {
        {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
         DPT_CUTS_SPACES},
        {WORDS "\\p{N}{1,3}" SIGNS, DPT_CUTS_BLANKS},
        {WORDS "\\p{N}" SIGNS, DPT_CUTS_BLANKS},
    };
#undef WORDS
#undef SIGNS
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(pattern->text, known[i].text) == 0)
            return known[i].cuts;
    return DPT_CUTS_NONE;
}

/* ---------------------------------------------------------------- matching */

enum dpt_status dpt_matcher_create(struct dpt_matcher **ret, struct dpt_err *err)
{
    struct dpt_matcher *matcher = calloc(1, sizeof *matcher);
    if (matcher) {
        matcher->data = pcre2_match_data_create(1, NULL);
        matcher->context = pcre2_match_context_create(NULL);
        matcher->stack = pcre2_jit_stack_create(JIT_STACK_BYTES_MIN, JIT_STACK_BYTES_MAX, NULL);
    }
    if (!matcher || !matcher->data || !matcher->context) {
        dpt_matcher_destroy(&matcher);
        return dpt_fail_nomem(err, "tokenizer: matching a pattern");
    }
    pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    *ret = matcher;
    return DPT_OK;
}

void dpt_matcher_destroy(struct dpt_matcher **matcher)
{
    if (!*matcher)
        return;
    pcre2_jit_stack_free((*matcher)->stack);
    pcre2_match_context_free((*matcher)->context);
    pcre2_match_data_free((*matcher)->data);
    free(*matcher);
    *matcher = NULL;
}

enum dpt_status dpt_pattern_next(const struct dpt_pattern *pattern, struct dpt_matcher *matcher,
                                 const uint8_t *text, size_t bytes, struct dpt_match *match,
                                 struct dpt_err *err)
{
    const int found = pcre2_match(pattern->code, text, bytes, match->from, PCRE2_NO_UTF_CHECK,
                                  matcher->data, matcher->context);
    if (found == PCRE2_ERROR_NOMATCH) {
        match->begin = match->end = bytes;
        return DPT_OK;
    }
    if (found < 0) {
        PCRE2_UCHAR why[128] = {0};
        (void)pcre2_get_error_message(found, why, sizeof why);
        return dpt_fail(err, DPT_EOVERFLOW,
                        "tokenizer: the pattern '%.60s' gives up at byte %zu of a text of %zu: %s",
                        pattern->text, match->from, bytes, (const char *)why);
    }
    /* found == 0: the match data have no room for the groups of the pattern. */
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(matcher->data);
    match->begin = place[0];
    match->end = place[1];
    return DPT_OK;
}
