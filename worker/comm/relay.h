/* Links of a world that is no mesh (route.h): relays, for the files of worker/comm only.
 *
 * A rank has a trunk, one TCP connection, to each rank of dpt_route_links. To every other rank it
 * has a flow, a link without a socket, whose frames go over the trunks, from rank to rank. The
 * ranks between pass them on in the poll of their owner. So an owner without work must call
 * dpt_comm_relay. Ranks of one host transfer through shared memory as in a mesh. Their flows carry
 * only the small all-gather.
 *
 * A frame has a header and at most RELAY_PAYLOAD_BYTES:
 *
 *     GRANT   end to end: the receiver has posted `value` more receives
 *     DATA    end to end: a part of a transfer of `value` bytes; parts of a flow stay in order
 *     CREDIT  one hop: `value` frames of class `hops` are passed on, so there is room for as many
 *     BYE     one hop: the sender leaves; value: 1 if it failed; to: the code of its suspect
 *
 * No frame waits for memory at its destination: DATA goes only where a receive was granted.
 * Between, a frame that has made h hops takes a slot of class h - 1 of the trunk on which it came.
 * A rank passes a frame on only if it has a credit for the next class there. A frame of the last
 * class waits for no slot. So classes never wait for each other in a circle (Merlin and Schweitzer,
 * IEEE Trans. Commun. 1980: a buffer class for each hop), and the memory of relays is bounded.
 *
 * A rank whose communicator fails says so at once on all trunks and names the suspect. A rank that
 * is told fails, too. So a death is known to all ranks after a few hops. */
#ifndef DPT_WORKER_COMM_RELAY_H
#define DPT_WORKER_COMM_RELAY_H

#include "worker/comm/comm_state.h"
#include "worker/comm/route.h"

enum {
    RELAY_HEAD_BYTES = 24,
    RELAY_PAYLOAD_BYTES = 16 << 10,
    RELAY_FRAME_BYTES = RELAY_HEAD_BYTES + RELAY_PAYLOAD_BYTES,
    RELAY_SLOTS = 8,         /* of a class and a trunk */
    RELAY_BUFFER_FRAMES = 4, /* of the largest size, in a buffer of a trunk */
    RELAY_BUFFER_BYTES = RELAY_BUFFER_FRAMES * RELAY_FRAME_BYTES,
    RELAY_CLASSES_MAX = DPT_ROUTE_HOPS_MAX - 1,
    RELAY_LAST_WORDS_MS = 10 /* time for peers to read what is before a failed goodbye */
};

enum relay_type { RELAY_GRANT = 0x4c01, RELAY_DATA, RELAY_CREDIT, RELAY_BYE };

struct relay_head {
    uint16_t type, hops; /* hops: made when it arrives; CREDIT: the class */
    uint32_t from, to;
    uint32_t bytes; /* of the payload */
    uint64_t value;
};

struct trunk;

/* A frame that waits to be passed on. */
struct relay_slot {
    struct relay_slot *next;
    struct trunk *in; /* on which it came */
    struct relay_head head;
    uint8_t *payload; /* [RELAY_PAYLOAD_BYTES] */
};

struct relay_queue {
    struct relay_slot *first, *last;
};

/* All transfers between this rank and one other. */
struct flow {
    struct dpt_conn link; /* first */
    struct trunk *trunk;  /* the first hop */
    uint64_t granted;     /* sends that the peer has granted and that are not complete */
    uint64_t grants_due;  /* receives to be granted to the peer */
    int64_t moved_ms;     /* when the begun receive last moved */
    bool queued;          /* among the trunk's flows */
    struct flow *next;
};

struct trunk {
    struct dpt_conn link; /* first; its queues are empty */
    struct router *router;
    uint8_t *in, *out; /* [RELAY_BUFFER_BYTES] */
    size_t in_got, out_bytes, out_moved;
    bool blocked; /* the socket had no room for the last send */
    bool said_bye;
    int broken_errno;                              /* errno of a send that failed; 0: none */
    int64_t doubt_ms;                              /* when the link became doubtful */
    int credits[RELAY_CLASSES_MAX];                /* free slots at the peer, by class */
    int owed[RELAY_CLASSES_MAX];                   /* credits to give to the peer */
    struct relay_slot *slots[RELAY_CLASSES_MAX];   /* free, for frames of the peer */
    struct relay_queue waiting[RELAY_CLASSES_MAX]; /* frames for the peer, by their class here */
    struct flow *first, *last; /* flows over this trunk that have something to send */
};

struct router {
    struct dpt_comm *comm;
    int world_size, n_trunks, n_classes;
    struct trunk *trunks;    /* [n_trunks] */
    struct trunk **trunk_to; /* [world_size]; NULL: this rank */
    struct flow *flows;      /* [world_size]; the own entry has no use */
    int64_t last_words_ms;   /* when this rank began to tell its failure; 0: it has not */
    struct relay_slot *slots;
    uint8_t *buffers;
};

/* The bytes of a router; 0 if a world of this size is a mesh. */
size_t dpt_router_bytes(int world_size, int mesh_max);

/* Creates the router of comm->rank, with its flows among comm->links, and its trunks without
 * sockets. */
DPT_MUST_USE enum dpt_status dpt_router_create(struct dpt_comm *comm, struct router **ret,
                                               struct dpt_err *err);
/* After the links are destroyed. Accepts a pointer to NULL. */
void dpt_router_destroy(struct router **router);

/* Gives the trunk to this rank its connected, nonblocking socket. NULL with *err: the options of
 * the socket could not be set; the caller still owns it. */
struct dpt_conn *dpt_router_connect(struct router *router, int rank, int fd, struct dpt_err *err);

/* True when nothing waits to be passed on or sent. */
bool dpt_router_is_idle(const struct router *router);

/* relay_trunk.c: makes the trunk and its slots ready for use. */
void dpt_trunk_init(struct trunk *trunk, struct router *router, int rank);
/* Marks that the trunk has something to send. */
static inline void dpt_trunk_touch(struct trunk *trunk)
{
    trunk->link.dirty = trunk->link.comm->dirty = true;
}
bool dpt_trunk_has_work(const struct trunk *trunk);
/* Says a failed goodbye on a connection that has no trunk yet, and closes it. */
void dpt_trunk_refuse(int fd, struct dpt_wire *wire, int suspect);

/* relay_flow.c */
void dpt_flow_init(struct flow *flow, struct router *router, int rank);
/* A GRANT or DATA frame for this rank. */
DPT_MUST_USE enum dpt_status dpt_flow_take(struct flow *flow, const struct relay_head *head,
                                           const uint8_t *payload, struct dpt_err *err);
/* The next frame of the flow. False: there is none. If it is DATA, *ret_payload gets the address of
 * its bytes. */
bool dpt_flow_next(struct flow *flow, struct relay_head *ret, const uint8_t **ret_payload);
/* The frame is in the trunk's buffer. */
void dpt_flow_sent(struct flow *flow, const struct relay_head *head);
bool dpt_flow_has_work(const struct flow *flow);

#endif
