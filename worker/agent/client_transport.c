/* The rendezvous client as the loop's transport. */
#include "rendezvous/client/client.h"
#include "worker/agent/transport.h"

_Static_assert((int)DPT_CLIENT_FDS <= (int)DPT_TRANSPORT_FDS_MAX, "descriptors of a transport");
_Static_assert((int)DPT_CLIENT_WHY_BYTES == (int)DPT_TRANSPORT_WHY_BYTES, "it is handed on");

static enum dpt_status client_send(void *self, const void *message, size_t bytes,
                                   struct dpt_err *err)
{
    return dpt_client_send(self, message, bytes, err);
}

static enum dpt_status client_next(void *self, struct dpt_transport_event *ret, struct dpt_err *err)
{
    static const enum dpt_transport_event_kind kinds[] = {
        [DPT_CLIENT_UP] = DPT_TRANSPORT_UP,
        [DPT_CLIENT_DOWN] = DPT_TRANSPORT_DOWN,
        [DPT_CLIENT_MESSAGE] = DPT_TRANSPORT_MESSAGE,
    };
    struct dpt_client_event event;
    DPT_TRY(dpt_client_next(self, &event, err));
    *ret = (struct dpt_transport_event){kinds[event.kind], event.message, event.bytes};
    return DPT_OK;
}

static int client_fds(void *self, int ret_fds[DPT_TRANSPORT_FDS_MAX])
{
    dpt_client_fds(self, ret_fds);
    return DPT_CLIENT_FDS;
}

static void client_tick(void *self, int64_t now_ms)
{
    dpt_client_tick(self, now_ms);
}

static void client_why(void *self, char ret[DPT_TRANSPORT_WHY_BYTES])
{
    dpt_client_why(self, ret);
}

struct dpt_transport dpt_client_transport(struct dpt_client *client)
{
    static const struct dpt_transport_ops ops = {client_send, client_next, client_fds, client_tick,
                                                 client_why};
    return (struct dpt_transport){&ops, client};
}
