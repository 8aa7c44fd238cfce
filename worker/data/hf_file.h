/* Reading a tokenizer.json of Hugging Face's tokenizers: byte-level byte pair encoding, as GPT-2,
 * Llama 3 and SmolLM2 have it.
 *
 *   model          BPE: vocab, merges ("a b" or ["a", "b"]), unk_token, ignore_merges
 *   pre_tokenizer  ByteLevel (add_prefix_space, use_regex), alone or last in a Sequence after
 *                  Split (a Regex that worker/data/pattern.h takes; Isolated, not inverted) and
 *                  Digits (individual_digits)
 *   normalizer     null, or a Sequence of none
 *   added_tokens   special or not, normalized or not
 *   decoder        ByteLevel
 *   post_processor ByteLevel, TemplateProcessing or a Sequence of both: without effect, because
 *                  they add special tokens, and text is encoded without
 *   truncation, padding: without effect, because they are for batches of requests
 *
 * Everything else that would change a token (a normalizer, dropout, byte_fallback, fuse_unk, a
 * prefix or suffix of subwords, lstrip, rstrip and single_word of an added token, other types of
 * anything) is refused by name. Ids are 0 … n - 1, each once. */
#ifndef DPT_WORKER_DATA_HF_FILE_H
#define DPT_WORKER_DATA_HF_FILE_H

#include "worker/data/vocab.h"

/* Fills a zeroed vocabulary; what it allocated is dpt_vocab_close's to free also when it fails.
 * DPT_ECONFIG: one line with the key or option, the file and the place in it. */
DPT_MUST_USE enum dpt_status
dpt_hf_load(struct dpt_vocab *vocab, const struct dpt_vocab_options *options, struct dpt_err *err);

#endif
