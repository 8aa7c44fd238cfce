/* The protocol by which libzmq asks about the key of a new connection: ZAP, ZeroMQ RFC 27. */
#ifndef DPT_RENDEZVOUS_SERVER_ZAP_H
#define DPT_RENDEZVOUS_SERVER_ZAP_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

#define DPT_ZAP_ENDPOINT "inproc://zeromq.zap.01" /* a REP socket that is bound there is asked */

enum {
    DPT_ZAP_ACCEPTED = 200, /* status of an answer */
    DPT_ZAP_PART_BYTES = 256,
    /* Parts of a question: version, id, domain, address, identity, mechanism, key. */
    DPT_ZAP_ID = 1,
    DPT_ZAP_ADDRESS = 3,
    DPT_ZAP_MECHANISM = 5,
    DPT_ZAP_KEY = 6,
    DPT_ZAP_PARTS = 7
};

struct dpt_zap_part {
    uint8_t data[DPT_ZAP_PART_BYTES];
    size_t bytes;
};

struct dpt_zap_question {
    struct dpt_zap_part parts[DPT_ZAP_PARTS];
    int n; /* parts that came, perhaps more; 0: there is no question */
};

/* Reads one question; does not wait. A part that is too long is cut, so that the question is
 * refused. */
DPT_MUST_USE enum dpt_status dpt_zap_read(void *socket, struct dpt_zap_question *ret,
                                          struct dpt_err *err);

/* Answers the question that was read last. status: of three digits. user_id: of an accepted
 * connection. */
DPT_MUST_USE enum dpt_status dpt_zap_answer(void *socket, const struct dpt_zap_question *question,
                                            int status, const char *user_id, struct dpt_err *err);

#endif
