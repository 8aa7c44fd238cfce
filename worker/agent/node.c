/* A node from its config: folders, device, data, facts. */
#include "worker/agent/node.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/strategy_traits.h"
#include "kernels/device.h"
#include "worker/agent/claims.h"
#include "worker/agent/health.h"
#include "worker/agent/origin.h"
#include "worker/data/data.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Keys of the server's config that describe the node that sent it. Paths are taken over: they are
 * mostly the same on all machines of a cluster, and --set changes them. */
static const char *const not_taken_over[] = {
    "cluster.device=auto",    "cluster.gpus_per_node=auto", "cluster.threads=auto",
    "cluster.interface=null", "cluster.host_group=null",    "cluster.rdzv=null",
    "cluster.rack=null",
};
enum { NOT_TAKEN_OVER = sizeof not_taken_over / sizeof not_taken_over[0] };

enum dpt_status dpt_node_config_digest(const struct dpt_config *config,
                                       char ret_hex[DPT_HASH_HEX_BYTES], struct dpt_err *err)
{
    /* The differences from the defaults leave out each node's own keys. */
    static const size_t text_bytes = DPT_CONFIG_TEXT_BYTES_MAX;
    struct dpt_config *defaults = malloc(sizeof *defaults);
    char *text = malloc(text_bytes);
    enum dpt_status status = DPT_OK;
    if (defaults == NULL || text == NULL) {
        status = dpt_fail_nomem(err, "digest of the config");
    } else {
        dpt_config_defaults(defaults);
        (void)dpt_config_diff(config, defaults, DPT_CONFIG_RUN, NULL, text, text_bytes);
        dpt_hash128_hex(dpt_hash128(text, strlen(text)), ret_hex);
    }
    free(defaults);
    free(text);
    return status;
}

static const char demo_data[] = "data.train=" DPT_DEMO_TEXT_NAME;

static enum dpt_status load_node_config(const struct dpt_worker_options *options,
                                        const struct dpt_node_text *from, struct dpt_config *ret,
                                        struct dpt_err *err)
{
    const char *overrides[NOT_TAKEN_OVER + DPT_CONFIG_OVERRIDES_MAX];
    /* The command line's overrides come last, so they take precedence. */
    size_t n = 0;
    if (from->source == DPT_NODE_FROM_SERVER)
        for (; n < NOT_TAKEN_OVER; n++)
            overrides[n] = not_taken_over[n];
    if (from->source == DPT_NODE_FROM_DEMO)
        overrides[n++] = demo_data;
    dpt_worker_options_overrides(options, overrides + n);
    n += options->n_overrides;
    struct dpt_config_sizes sizes = {.n = 0};
    const struct dpt_config_input input = {.text = from->text,
                                           .bytes = from->bytes,
                                           .name = from->name,
                                           .overrides = overrides,
                                           .n_overrides = n,
                                           .sizes = &sizes};
    /* The server's config has all sizes. */
    if (from->source != DPT_NODE_FROM_SERVER) {
        DPT_TRY(dpt_config_parse(&input, ret, err));
        DPT_TRY(dpt_origin_sizes(ret, &sizes, err));
    }
    sizes.over_text = from->source == DPT_NODE_FROM_DEMO;
    return dpt_config_load(&input, ret, err);
}

static enum dpt_status open_writable_folder(const char *dir, char ret_id[DPT_DIR_ID_BYTES],
                                            struct dpt_err *err)
{
    DPT_TRY(dpt_fs_mkdirs(dir, err));
    if (access(dir, R_OK | W_OK | X_OK) != 0)
        return dpt_fail_errno(err, errno, "use folder '%s'", dir);
    return dpt_dir_id(dir, ret_id, err);
}

/* Checks that `dir` can be read; creates and changes nothing. The folder may be on another node
 * only; if no node has it, the ranks fail. */
static enum dpt_status check_readable(const char *dir, struct dpt_err *err)
{
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? DPT_OK : dpt_fail_errno(err, errno, "open folder '%s'", dir);
    close(fd);
    return DPT_OK;
}

/* Prepares a folder; the error text names its key. Without `writes` *ret_id is left unchanged. */
static enum dpt_status prepare_folder(const char *key, const char *dir, bool writes,
                                      char ret_id[DPT_DIR_ID_BYTES], struct dpt_err *err)
{
    struct dpt_err why;
    enum dpt_status status =
        writes ? open_writable_folder(dir, ret_id, &why) : check_readable(dir, &why);
    return status == DPT_OK ? DPT_OK
                            : dpt_fail(err, DPT_ECONFIG, "%s: %s; give another with --set %s=PATH",
                                       key, why.text, key);
}

static enum dpt_status write_demo_text(struct dpt_config *config, struct dpt_err *err)
{
    const char *slash = strrchr(config->data.train, '/');
    const char *name = slash != NULL ? slash + 1 : config->data.train;
    if (strcmp(name, DPT_DEMO_TEXT_NAME) != 0)
        return DPT_OK;
    DPT_TRY(dpt_fs_join(config->log.dir, DPT_DEMO_TEXT_NAME, config->data.train,
                        sizeof config->data.train, err));
    return dpt_fs_write_file_atomic(config->data.train, dpt_demo_text, dpt_demo_text_bytes, err);
}

/* Makes the fingerprint of the ranks' device and, with CUDA, counts the devices (else 0). Opens no
 * GPU, because the ranks open them. */
static enum dpt_status describe_device(const struct dpt_config *config, int *ret_gpus,
                                       char ret[DPT_PROTO_DIGEST_BYTES], struct dpt_err *err)
{
    _Static_assert((int)DPT_FINGERPRINT_BYTES <= (int)DPT_PROTO_DIGEST_BYTES, "it travels");
    const bool cuda = config->cluster.device == DPT_DEVICE_CUDA;
    char gpu[DPT_FINGERPRINT_BYTES];
    struct dpt_device *host = NULL;
    *ret_gpus = 0;
    if (cuda)
        DPT_TRY(dpt_device_cuda_look(ret_gpus, gpu, err));
    DPT_TRY(dpt_device_cpu_create(&host, err));
    if (cuda)
        dpt_fingerprint_join(gpu, dpt_device_fingerprint(host), ret);
    else
        (void)snprintf(ret, DPT_FINGERPRINT_BYTES, "%s", dpt_device_fingerprint(host));
    dpt_device_destroy(&host);
    return DPT_OK;
}

/* Notes the names of the user and the host. Messages have one line, so the host's name, which the
 * kernel does not check, must have one line too. */
static void name_user_and_host(struct dpt_node *node)
{
    const struct passwd *user = getpwuid(getuid());
    if (user != NULL)
        (void)snprintf(node->user, sizeof node->user, "%s", user->pw_name);
    else
        (void)snprintf(node->user, sizeof node->user, "uid %lu", (unsigned long)getuid());
    (void)gethostname(node->facts.host_name, sizeof node->facts.host_name - 1);
    dpt_one_line(node->facts.host_name);
}

static void fill_spec(struct dpt_node *node)
{
    const struct dpt_config *config = &node->config;
    Dpt__RunSpec *spec = &node->spec;
    dpt__run_spec__init(spec);
    spec->min_nodes = (uint32_t)config->cluster.nnodes_min;
    spec->max_nodes = (uint32_t)config->cluster.nnodes_max;
    spec->timeout_ms = (uint32_t)(config->cluster.timeout_s * 1000.0);
    spec->first_step_ms = (uint32_t)(config->cluster.first_step_s * 1000.0);
    spec->wait_ms = (uint32_t)(config->cluster.wait_s * 1000.0);
    spec->drain_ms = (uint32_t)(config->cluster.drain_s * 1000.0);
    spec->max_restarts = (uint32_t)config->cluster.max_restarts;
    _Static_assert((int)DPT_CONFIG_WORLD_MAX <= (int)DPT_MESH_MAX, "a plan names them all");
    spec->max_world = (uint32_t)dpt_config_world_max(config);
    spec->sharded = dpt_strategy_traits(config).state != DPT_STATE_REPLICATED;
    spec->one_checkpoint_dir = spec->sharded && !config->train.eval_only;
    spec->config_digest = node->digest;
    spec->config_yaml = node->config_text;
    spec->user = node->user;
}

/* Fills the facts that fill_node has not set. */
static void fill_facts(struct dpt_node *node)
{
    const struct dpt_config *config = &node->config;
    struct dpt_agent_facts *facts = &node->facts;
    /* With train.reduction `fast` or `ring`, devices with different bits may take part in one run,
     * but all must reduce by the same backend. */
    const struct dpt_strategy_traits traits = dpt_strategy_traits(config);
    const char *backend = traits.by_nccl ? "gradients go by NCCL" : "gradients go by hosts";
    (void)snprintf(facts->fingerprint, sizeof facts->fingerprint, "%s",
                   traits.order_open ? backend : node->fingerprint);
    (void)snprintf(facts->data_digest, sizeof facts->data_digest, "%s", node->data.used);
    _Static_assert(sizeof config->cluster.rack == sizeof facts->rack, "it travels");
    memcpy(facts->rack, config->cluster.rack, sizeof facts->rack);
    facts->spec = &node->spec;
    facts->n_ranks = (uint32_t)node->n_ranks;
    facts->incarnation = node->identity.incarnation;
    _Static_assert((int)DPT_SECRET_BYTES == (int)DPT_PROTO_SECRET_BYTES, "it is copied");
    memcpy(facts->secret, node->identity.secret, sizeof facts->secret);
}

/* Called when the config is complete; it does not change afterwards. */
static enum dpt_status print_and_hash_config(struct dpt_node *node, struct dpt_err *err)
{
    node->config_text = malloc(DPT_CONFIG_TEXT_BYTES_MAX);
    if (node->config_text == NULL)
        return dpt_fail_nomem(err, "text of the config");
    DPT_TRY(dpt_config_print(&node->config, node->config_text, err));
    node->config_bytes = strlen(node->config_text);
    return dpt_node_config_digest(&node->config, node->digest, err);
}

/* Checks log.dir before the first write: a run that only evaluates reads the checkpoints of any
 * run, and must not write into another run's log. */
static enum dpt_status check_log_dir(const struct dpt_config *config, struct dpt_err *err)
{
    if (config->train.eval_only && dpt_claims_check(config->log.dir, config->run, err) != DPT_OK)
        return dpt_wrap(err, DPT_ECONFIG, "log.dir");
    return DPT_OK;
}

static enum dpt_status fill_node(struct dpt_node *node, enum dpt_node_source source,
                                 const char *node_id, struct dpt_err *err)
{
    struct dpt_config *config = &node->config;
    const int64_t wall_ms = (int64_t)(dpt_wall_seconds() * 1000.0);
    DPT_TRY(check_log_dir(config, err));
    DPT_TRY(prepare_folder("log.dir", config->log.dir, true, node->facts.log_dir_id, err));
    if (node_id != NULL)
        DPT_TRY(dpt_identity_open(config->log.dir, node_id, wall_ms, &node->identity, err));
    else
        DPT_TRY(dpt_identity_draw(wall_ms, &node->identity, err));
    /* A run that only evaluates does not write to checkpoint.dir. */
    if (config->checkpoint.dir[0] != '\0')
        DPT_TRY(prepare_folder("checkpoint.dir", config->checkpoint.dir, !config->train.eval_only,
                               node->facts.checkpoint_dir_id, err));
    DPT_TRY(write_demo_text(config, err));
    node->threads = config->cluster.threads != DPT_AUTO ? config->cluster.threads : 0;
    name_user_and_host(node);
    DPT_TRY(dpt_host_key(config->cluster.host_group, node->facts.host, err));
    int gpus;
    DPT_TRY(describe_device(config, &gpus, node->fingerprint, err));
    if (config->cluster.health_check)
        DPT_TRY(dpt_health_check(&node->facts.health, node->facts.health_fault, err));
    node->n_ranks = config->cluster.gpus_per_node != DPT_AUTO ? config->cluster.gpus_per_node
                    : gpus > 0                                ? gpus
                                                              : 1;
    /* With this variable ranks share GPUs (worker/main.c). */
    if (!getenv("DPT_TEST_SHARE_GPUS"))
        DPT_TRY(dpt_config_check_gpus(config, node->n_ranks, gpus, err));
    if (gpus > 0 && node->n_ranks > gpus)
        dpt_log(DPT_LOG_WARN,
                "cluster.gpus_per_node is %d and there %s %d: ranks share them, in turn",
                node->n_ranks, gpus == 1 ? "is" : "are", gpus);
    DPT_TRY(dpt_origin_read(config, source != DPT_NODE_FROM_SERVER, err));
    DPT_TRY(dpt_data_digest(config, &node->data, err));
    /* dpt_data_digest has compared the vocabulary with the model. */
    if (source != DPT_NODE_FROM_SERVER)
        DPT_TRY(dpt_origin_compare_tokenizer(config, err));
    if (!config->train.eval_only)
        DPT_TRY(dpt_config_count_epochs(config, node->data.train_samples, err));
    DPT_TRY(print_and_hash_config(node, err));
    fill_spec(node);
    fill_facts(node);
    return DPT_OK;
}

enum dpt_status dpt_node_create(const struct dpt_worker_options *options,
                                const struct dpt_node_text *text, struct dpt_node **ret,
                                struct dpt_err *err)
{
    struct dpt_node *node = calloc(1, sizeof *node);
    if (node == NULL)
        return dpt_fail_nomem(err, "this node's config");
    node->identity.fd = -1;
    enum dpt_status status = load_node_config(options, text, &node->config, err);
    if (status == DPT_OK)
        status = fill_node(node, text->source, options->node_id, err);
    if (status != DPT_OK)
        dpt_node_destroy(&node);
    else
        *ret = node;
    return status;
}

void dpt_node_destroy(struct dpt_node **node_p)
{
    struct dpt_node *node = *node_p;
    *node_p = NULL;
    if (node == NULL)
        return;
    dpt_identity_fini(&node->identity);
    free(node->config_text);
    free(node);
}
