/* A server with keys on a thread, and clients of machines, each with its own key folder. */
#ifndef DPT_TESTS_RENDEZVOUS_SERVER_KEYED_H
#define DPT_TESTS_RENDEZVOUS_SERVER_KEYED_H

#include "rendezvous/server/tokens.h"
#include "tests/rendezvous/server/transport.h"

struct keyed {
    char dir[96], head[128], machine_b[128]; /* of the test; key folders in it */
    struct test_server server;
    struct dpt_key_folder folder; /* of the server: `head` */
};
extern struct keyed keyed;

int keyed_setup(void **state);
int keyed_teardown(void **state);

/* The keys of a process with this key folder. */
struct dpt_keyring keyed_ring(const char *key_dir, const char *token);
/* A token that is made at now_s and is good for an hour. */
struct dpt_issued_token keyed_issue(int64_t uses, int64_t now_s);

/* Ticks until the client is denied with these words, or, with NULL, has a connection again. */
void keyed_tick_until(struct dpt_client *client, const char *why);
/* A client with these keys is served; is refused, with these words; gets no connection, with this
 * reason. */
void keyed_expect_served(const struct dpt_keyring *ring);
void keyed_expect_refused(const struct dpt_keyring *ring, const char *why);
void keyed_expect_why(const struct dpt_keyring *ring, int port, const char *why);

/* Lines of a file of a key folder (of the server's folder) that begin with `word`. */
size_t keyed_count_lines_in(const struct dpt_key_folder *of, const char *name, const char *word);
size_t keyed_count_lines(const char *name, const char *word);

/* The server reads lists that have changed at the latest when an unknown key asks. */
void keyed_make_server_look(void);

#endif
