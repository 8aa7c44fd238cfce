/* Regular expressions of tokenizer.json, matched by PCRE2.
 *
 * Hugging Face's tokenizers uses another library, oniguruma, with Ruby's syntax over Unicode. A
 * pattern is accepted if it has only parts that mean the same in both libraries: characters,
 * classes without a nested class, \r \n \t \f, \s \S \d \D, \p{..} and \P{..} of general
 * categories, groups ( (?: (?i: (?> , lookahead and lookbehind, alternatives, and repeats: ? * +
 * with ? or + after them, {n}, and {n,} {n,m} with ? after them. All other parts are refused by
 * name: for example ^ and \h, which have another meaning in Ruby. Two differences remain:
 * characters that Unicode added since the release of either library, and case folding to more than
 * one character ((?i:ss) does not match an eszett). */
#ifndef DPT_WORKER_DATA_SPLIT_PATTERN_H
#define DPT_WORKER_DATA_SPLIT_PATTERN_H

#include "worker/data/tokenizer.h"

enum { DPT_PATTERN_BYTES_MAX = 4096 };

struct dpt_pattern; /* read-only, shared by threads */
struct dpt_matcher; /* a thread's */

/* DPT_ECONFIG: the pattern is refused or does not compile; the error names the part and the reason.
 */
DPT_MUST_USE enum dpt_status dpt_pattern_compile(const char *text, struct dpt_pattern **ret,
                                                 struct dpt_err *err);
void dpt_pattern_free(struct dpt_pattern **pattern);

const char *dpt_pattern_text(const struct dpt_pattern *pattern);

/* The places where a text may be cut before it is matched. They are known for the patterns of
 * GPT-2, Llama 3 and Qwen2; for any other pattern DPT_CUTS_NONE. */
enum dpt_cuts dpt_pattern_cuts(const struct dpt_pattern *pattern);

DPT_MUST_USE enum dpt_status dpt_matcher_create(struct dpt_matcher **ret, struct dpt_err *err);
void dpt_matcher_destroy(struct dpt_matcher **matcher);

/* Positions in a text, in bytes. */
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
