/* Regular expressions of tokenizer.json, run by PCRE2.
 *
 * Hugging Face's tokenizers runs them by oniguruma, in Ruby's syntax over Unicode. A pattern is
 * taken when it is made of what means the same in both: characters, classes without a class within,
 * \r \n \t \f, \s \S \d \D, \p{..} and \P{..} of general categories, groups ( (?: (?i: (?> ,
 * lookahead and lookbehind, alternatives, and repeats: ? * + with ? or + after them, {n}, and {n,}
 * {n,m} with ? after them. Anything else is refused by name: ^ and \h, say, mean something else
 * in Ruby. What remains different: characters that Unicode added since the release that either
 * library knows, and case folding to more than one character ((?i:ss) is no eszett). */
#ifndef DPT_WORKER_DATA_PATTERN_H
#define DPT_WORKER_DATA_PATTERN_H

#include "worker/data/tokenizer.h"

enum { DPT_PATTERN_BYTES_MAX = 4096 };

struct dpt_pattern; /* read-only, shared by threads */
struct dpt_matcher; /* a thread's */

/* DPT_ECONFIG: the pattern is not taken, or does not compile; says which part and why. */
DPT_MUST_USE enum dpt_status dpt_pattern_compile(const char *text, struct dpt_pattern **ret,
                                                 struct dpt_err *err);
void dpt_pattern_free(struct dpt_pattern **pattern);

const char *dpt_pattern_text(const struct dpt_pattern *pattern);

/* Where texts may be cut before they are matched: known of the patterns of GPT-2, Llama 3 and
 * Qwen2, DPT_CUTS_NONE of any other. */
enum dpt_cuts dpt_pattern_cuts(const struct dpt_pattern *pattern);

DPT_MUST_USE enum dpt_status dpt_matcher_create(struct dpt_matcher **ret, struct dpt_err *err);
void dpt_matcher_destroy(struct dpt_matcher **matcher);

/* Bytes of a text. */
struct dpt_match {
    size_t from;       /* where the search begins */
    size_t begin, end; /* of the match */
};

/* Finds the first match in `text`, which is valid UTF-8, at or after byte match->from. Without a
 * match, begin and end become `bytes`. DPT_EOVERFLOW: the match takes more steps or memory than
 * PCRE2's limits. */
DPT_MUST_USE enum dpt_status dpt_pattern_next(const struct dpt_pattern *pattern,
                                              struct dpt_matcher *matcher, const uint8_t *text,
                                              size_t bytes, struct dpt_match *match,
                                              struct dpt_err *err);

#endif
