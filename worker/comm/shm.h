/* Inside of a link to a peer of the same host, for shm.c and shm_socket.c only. */
#ifndef DPT_WORKER_COMM_SHM_H
#define DPT_WORKER_COMM_SHM_H

#include "worker/comm/box.h"
#include "worker/comm/comm_state.h"

enum { WINDOW = 32 };
_Static_assert((int)WINDOW <= (int)BOX_PAYLOADS, "a payload stays until its credit is returned");

enum message_type {
    /* Through the socket. */
    MESSAGE_REGION = 1, /* region, bytes, record: 1 if open; with the memfd */
    MESSAGE_READY,      /* all regions passed; with the box's memfd */
    MESSAGE_BYE,        /* record: suspect + 1; region: 1 if the peer failed */
    MESSAGE_BELL,       /* read the box */
    /* Through the box. */
    MESSAGE_OFFER,      /* record, region, offset, bytes */
    MESSAGE_OFFER_OPEN, /* likewise, to be written */
    MESSAGE_SMALL,      /* bytes; with a payload */
    MESSAGE_DONE,       /* record, of the receiver of this message */
    MESSAGE_CREDIT,
    MESSAGE_WITHDRAW /* region: it has no transfer now or later */
};

struct offer {
    struct box_message message; /* OFFER, OFFER_OPEN or SMALL */
    uint8_t payload[DPT_COMM_BUF_BYTES_MAX];
};

struct shm_link {
    struct dpt_link link; /* first */
    struct {
        uint8_t *data; /* NULL: not passed */
        size_t bytes;
        bool open; /* mapped to be written */
    } regions[COMM_REGIONS];
    bool withdraw[COMM_REGIONS]; /* WITHDRAW to be sent */
    bool withdraws;              /* one of these is set */
    int next_region;             /* of ours, to be passed; COMM_REGIONS: READY; beyond: all done */
    bool peer_ready;
    struct box box;
    bool box_full;              /* it took no more */
    bool blocked;               /* the socket took no more */
    bool broken;                /* a send failed: reading shows the reason */
    bool gave_up;               /* the peer failed, because of */
    int gave_up_suspect;        /* this rank; -1: unknown */
    unsigned credits;           /* free entries in the peer's ring */
    unsigned owed;              /* credits to return */
    struct rec_queue give_back; /* DONE to be sent */
    unsigned ring_first, ring_n;
    struct offer ring[WINDOW];
};

/* Sends one packet, with a descriptor (fd >= 0). False: not now, or never (`blocked`, `broken`). */
bool dpt_shm_send_packet(struct shm_link *shm, struct box_message message, int fd);

/* Passes the own regions, then READY; true when all is passed. */
bool dpt_shm_pass_regions(struct shm_link *shm);

/* Reads all packets of the socket: passed memory, bells, the goodbye. */
DPT_MUST_USE enum dpt_status dpt_shm_read_socket(struct shm_link *shm, bool *ret_eof,
                                                 struct dpt_err *err);

#endif
