/* Shared by the files that read the lists and decide by them. */
#ifndef DPT_RENDEZVOUS_KEYS_INTERNAL_H
#define DPT_RENDEZVOUS_KEYS_INTERNAL_H

#include "rendezvous/keys/admission.h"

/* The entry of a key; NULL: there is none. */
const struct dpt_admitted_machine *dpt_admission_find_machine(const struct dpt_admission *admission,
                                                              const struct dpt_key *key);
struct dpt_admission_token *dpt_admission_find_token(struct dpt_admission_token *tokens, size_t n,
                                                     const struct dpt_key *key);

#endif
