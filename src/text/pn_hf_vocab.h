/*
 * pn_hf_vocab.h - the vocabulary of a Hugging Face folder.
 *
 * Such a folder describes its tokenizer in up to twelve files.  Whoever opened the folder hands over
 * their bytes; what comes back owns everything a pn_vocab_source needs.  Which file counts:
 *
 *     tokenizer.json > tokenizer.model > vocab.json with merges.txt
 *     bos, eos, unk, pad: tokenizer_config.json > special_tokens_map.json > config.json
 *     ends: generation_config.json and config.json, and the tables of pn_vocab_roles.c
 *     template: chat_template.jinja (with tool_use.jinja) > tokenizer_config.json > chat_template.json
 *
 * The pipeline of a tokenizer.json is followed step by step (pn_rules.h).  A step nobody here knows is
 * refused by name, and so is a regular expression that might mean something else here: a vocabulary that
 * cuts text almost like the one the model was trained with is worse than none.
 *
 * Files are hostile: every message names file and key, nothing is allocated on a number's word (ids
 * are below the rows of the embedding), nothing recurses, look-ups are by hash.
 */
#ifndef PN_HF_VOCAB_H
#define PN_HF_VOCAB_H

#include "text/pn_vocab.h"

/* The files as they are; {NULL, 0}: not there.  Borrowed during the call. */
typedef struct pn_hf_files {
    pn_bytes tokenizer_json, tokenizer_config, special_tokens_map, added_tokens;
    pn_bytes vocab_json, merges_txt, tokenizer_model;
    pn_bytes chat_template_jinja, tool_use_jinja, chat_template_json;
    pn_bytes generation_config, config;
} pn_hf_files;

typedef struct pn_hf_vocab pn_hf_vocab;

/* Read the files.  n_rows: rows of the embedding, above every id.  PN_E_FORMAT: a file contradicts itself
 * or another; PN_E_UNSUPPORTED: it asks for a step unknown here; PN_E_NOMEM. */
PN_INTERNAL pn_status pn_hf_vocab_new(pn_hf_vocab **out, pn_mem *mem, const pn_hf_files *files, uint32_t n_rows,
                                      pn_vocab_warn warn, void *user, pn_err *err);
PN_INTERNAL void pn_hf_vocab_free(pn_hf_vocab *h);

/* Fill *src for pn_vocab_new().  Everything in it is borrowed from h, which must outlive the vocabulary. */
PN_INTERNAL void pn_hf_vocab_source(const pn_hf_vocab *h, pn_vocab_source *src);

/* What only pn_vocab_new() needed (merges, scores, types) is given back; the source is not to be filled
 * again. */
PN_INTERNAL void pn_hf_vocab_trim(pn_hf_vocab *h);

/* The model's chat template: the one for tools when there is one and `tools`; {NULL, 0}: none. */
PN_INTERNAL pn_bytes pn_hf_vocab_template(const pn_hf_vocab *h, bool tools);

PN_INTERNAL uint64_t pn_hf_vocab_bytes(const pn_hf_vocab *h);      /* memory held, GGUF's terms apart */

/* The same vocabulary in GGUF's terms, as far as it has them: a source without flags and rules, whose
 * fields are the tokenizer.ggml.* keys (model, pre, tokens, scores, token_type, merges, the ids and flags).
 * Borrowed from h, and made on the first call.  *notes gets a line for each thing that is lost.
 * PN_E_UNSUPPORTED: no GGUF tokenizer cuts text this way; the text says what is missing. */
PN_INTERNAL pn_status pn_hf_vocab_gguf(pn_hf_vocab *h, pn_vocab_source *src, pn_str *notes, pn_err *err);

#endif /* PN_HF_VOCAB_H */
