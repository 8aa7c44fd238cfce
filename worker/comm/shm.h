/* The inside of a link to a peer of the same host, for shm.c and shm_socket.c only. */
#ifndef DPT_WORKER_COMM_SHM_H
#define DPT_WORKER_COMM_SHM_H

#include "worker/comm/box.h"
#include "worker/comm/comm_state.h"

enum { WINDOW = 32 };
_Static_assert((int)WINDOW <= (int)BOX_PAYLOADS, "a payload stays until its credit is returned");

enum message_type {
    /* Messages through the socket. */
    MESSAGE_REGION = 1, /* region; bytes; record: 1 if the region is open; with its memfd */
    MESSAGE_READY,      /* all regions are passed; with the box's memfd */
    MESSAGE_BYE,        /* record: suspect + 1; region: 1 if the sender failed */
    MESSAGE_BELL,       /* wakes the receiver, which then reads the box */
    /* Messages through the box. */
    MESSAGE_OFFER,      /* record, region, offset, bytes */
    MESSAGE_OFFER_OPEN, /* like OFFER; the receiver may write there */
    MESSAGE_SMALL,      /* bytes; the payload is in the box */
    MESSAGE_DONE,       /* record: the one in the OFFER, which is now done */
    MESSAGE_CREDIT,
    MESSAGE_WITHDRAW /* region: no transfer uses it now or later */
};

struct offer {
    struct box_message message; /* OFFER, OFFER_OPEN or SMALL */
    uint8_t payload[DPT_COMM_BUF_BYTES_MAX];
};

struct shm_link {
    struct dpt_conn link; /* first */
    struct {
        uint8_t *data; /* NULL: the peer has not passed this region */
        size_t bytes;
        bool open; /* mapped to write */
    } regions[COMM_REGIONS];
    bool withdraw[COMM_REGIONS]; /* a WITHDRAW of this region is to be sent */
    bool withdraws;              /* an entry of `withdraw` is set */
    int next_region; /* own region to pass next; COMM_REGIONS: READY is next; beyond: all sent */
    bool peer_ready;
    struct box box;
    bool box_full;              /* the box had no room for the last message */
    bool blocked;               /* the socket had no room for the last packet */
    bool broken;                /* a send failed; a read will show the reason */
    bool gave_up;               /* the peer has sent a failed goodbye */
    int gave_up_suspect;        /* the rank that made the peer fail; -1: unknown */
    unsigned credits;           /* free entries in the peer's ring */
    unsigned owed;              /* credits to return */
    struct rec_queue give_back; /* records whose DONE is to be sent */
    unsigned ring_first, ring_n;
    struct offer ring[WINDOW];
};

/* Sends one packet, with a descriptor if fd >= 0. False: the packet was not sent, because the
 * socket is full (sets `blocked`) or broken (sets `broken`). */
bool dpt_shm_send_packet(struct shm_link *shm, struct box_message message, int fd);

/* Passes this rank's regions, then READY. True: all of them are sent. */
bool dpt_shm_pass_regions(struct shm_link *shm);

/* Reads all packets of the socket: passed memory, bells, the goodbye. */
DPT_MUST_USE enum dpt_status dpt_shm_read_socket(struct shm_link *shm, bool *ret_eof,
                                                 struct dpt_err *err);

#endif
