/* A server on a thread and clients, over real sockets on loopback. */
#ifndef DPT_TESTS_RENDEZVOUS_SERVER_TRANSPORT_H
#define DPT_TESTS_RENDEZVOUS_SERVER_TRANSPORT_H

#include "rendezvous/client/client.h"
#include "rendezvous/proto/message.h"
#include "rendezvous/server/server.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { WAIT_MS = 20000, SILENCE_MS = 4000 };

struct test_server {
    pthread_t thread;
    struct dpt_server *server;
    int stop_fd, port;
    bool failed;
};

/* On loopback, if the options name no address. */
void transport_start_as(struct test_server *s, struct dpt_server_options options);
/* On any port without keys, with this journal. */
void transport_start_with(struct test_server *s, const struct dpt_journal *journal);
/* A server without keys. Port 0: any. */
void transport_start_server(struct test_server *s, int port);
void transport_stop_server(struct test_server *s);
/* A client without keys. */
struct dpt_client *transport_start_client(int port);
struct dpt_client *transport_start_client_with(int port, const struct dpt_keyring *keys);
/* Waits for a descriptor of the client, at most `ms`. */
void transport_wait(struct dpt_client *client, int64_t ms);
/* Waits until the client reports an error and returns its status. */
enum dpt_status transport_expect_failure(struct dpt_client *client, struct dpt_err *err);
/* Waits for the next event of this kind and ignores others. */
struct dpt_client_event transport_expect(struct dpt_client *client,
                                         enum dpt_client_event_kind kind);
/* Encodes a first message of node `node`. Without a spec the message asks for the run's config.
 * Returns its size. */
size_t transport_make_message(const char *node, uint64_t counter, Dpt__RunSpec *spec, uint8_t *buf,
                              size_t buf_bytes);
/* Repeats the send until the connection accepts it: for a moment after UP it does not. */
void transport_send(struct dpt_client *client, const void *data, size_t bytes);
/* Sends a message of the node and returns the epoch of the server's answer. */
uint64_t transport_exchange(struct dpt_client *client, const char *node);
/* Creates the run with a config of yaml_bytes, so that every answer with the config is long. */
void transport_bring_config(struct dpt_client *client, size_t yaml_bytes);

#endif
