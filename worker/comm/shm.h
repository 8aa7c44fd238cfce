/* Inside of a link to a peer of the same host (shm.c): the link, and its socket (shm_socket.c). For
 * these two files only. */
#ifndef DPT_WORKER_COMM_SHM_H
#define DPT_WORKER_COMM_SHM_H

#include "worker/comm/box.h"
#include "worker/comm/comm_state.h"

enum { WINDOW = 32 };
_Static_assert((int)WINDOW <= (int)BOX_PAYLOADS, "a payload stays until its credit is back");

enum message_type {
    /* By the socket. */
    MESSAGE_REGION = 1, /* region, bytes, record: 1 if open; the memfd rides along */
    MESSAGE_READY,      /* all regions passed; the box's memfd rides along */
    MESSAGE_BYE,        /* record: suspect + 1; region: 1 if the peer failed */
    MESSAGE_BELL,       /* look into the box */
    /* By the box. */
    MESSAGE_OFFER,      /* record, region, offset, bytes */
    MESSAGE_OFFER_OPEN, /* likewise, to be written */
    MESSAGE_SMALL,      /* bytes; with a payload */
    MESSAGE_DONE,       /* record, of the one that is told */
    MESSAGE_CREDIT,
    MESSAGE_WITHDRAW /* region: nothing of it is under way, and nothing will be */
};

struct offer {
    uint16_t type; /* OFFER, OFFER_OPEN or SMALL */
    uint32_t record, region;
    uint64_t offset, bytes;
    uint8_t payload[DPT_COMM_BUF_BYTES_MAX];
};

struct shm_link {
    struct dpt_link link; /* first */
    struct {
        uint8_t *data; /* NULL: not passed */
        size_t bytes;
        bool open; /* mapped to be written */
    } regions[COMM_REGIONS];
    bool withdraw[COMM_REGIONS]; /* WITHDRAW to be said */
    bool withdraws;              /* one of these is set */
    int next_region;             /* of ours, to be passed; COMM_REGIONS: READY; beyond: all done */
    bool peer_ready;
    struct box box;
    bool box_full;              /* it took no more */
    bool blocked;               /* the socket took no more */
    bool broken;                /* a send failed: its EOF will say why */
    bool gave_up;               /* the peer failed, because of */
    int gave_up_suspect;        /* this rank; -1: unknown */
    unsigned credits;           /* offers the peer still has room for */
    unsigned owed;              /* credits to give back */
    struct rec_queue give_back; /* DONE to be said */
    unsigned ring_first, ring_n;
    struct offer ring[WINDOW];
};

/* Sends one packet, with a descriptor (fd >= 0). False: not now, or never (`blocked`, `broken`). */
bool dpt_shm_send_packet(struct shm_link *shm, struct box_message message, int fd);

/* Passes the own regions, then READY; true when all is passed. */
bool dpt_shm_pass_regions(struct shm_link *shm);

/* Reads the socket to its end: takes what the peer passes, its bell and its goodbye. */
DPT_MUST_USE enum dpt_status dpt_shm_read_socket(struct shm_link *shm, bool *ret_eof,
                                                 struct dpt_err *err);

#endif
