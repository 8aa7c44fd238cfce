/* The program dpt-ckpt: lists and verifies checkpoints, generates text, exports and imports
 * weights. It changes no checkpoint. */
#include "checkpoint/reader.h"

#include "base/fs.h"
#include "base/log.h"
#include "base/number.h"
#include "base/stdout.h"
#include "checkpoint/complete_checkpoint.h"
#include "worker/ckpt/diff.h"
#include "worker/ckpt/generate.h"
#include "worker/ckpt/open.h"
#include "worker/ckpt/transfer.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_DAMAGED = 1, EXIT_DIFFERENT = 1, EXIT_USAGE = 2 };

static const char usage[] =
    "usage: dpt-ckpt list [--verify] DIR  every checkpoint in DIR, and whether its files are all "
    "there;\n"
    "                                     --verify reads every byte: verified or damaged\n"
    "       dpt-ckpt show DIR[/step-N]    state and tensors of one (default: the newest "
    "complete one)\n"
    "       dpt-ckpt verify DIR[/step-N]  reads every byte and checks it\n"
    "       dpt-ckpt hash DIR[/step-N]    the weights hash, as in the run's summary\n"
    "       dpt-ckpt diff DIR[/step-N] DIR[/step-N]\n"
    "                                     which tensors differ, and by how much; each may be a "
    "Hugging Face folder,\n"
    "                                     of a model or of adapters\n"
    "       dpt-ckpt export DIR[/step-N] FOLDER [--dtype fp32|bf16|fp16] [--shard-size SIZE]\n"
    "                                     writes a Hugging Face folder: one file of weights, or "
    "shards of\n"
    "                                     at most SIZE (500MB, 5GB), and the tokenizer's files;\n"
    "                                     of adapters (train.lora) PEFT's two files, or with "
    "--merge [--base FOLDER]\n"
    "                                     the whole model, whose base is in FOLDER (the run's "
    "model.init_from)\n"
    "       dpt-ckpt import FROM FOLDER [--dtype …] [--shard-size …]\n"
    "                                     the same from a Hugging Face folder or a model file of "
    "llm.c's\n"
    "                                     GPT-2, in our names: for model.init_from\n"
    "       dpt-ckpt generate DIR[/step-N] --prompt TEXT [options]\n"
    "                                     continues a text (dpt-ckpt generate --help); DIR may be "
    "a\n"
    "                                     Hugging Face folder\n"
    "       dpt-ckpt --help | --version\n"
    "DIR is checkpoint.dir of a run's config.\n"
    "Exit codes: 0 nothing damaged was found, 1 damaged or absent, 2 usage, a FOLDER that is\n"
    "there or, of import, weights that cannot be taken. Of diff: 0 equal, 1 different, 2 one of\n"
    "the two is absent or cannot be read.\n";

static int print_error(const struct dpt_err *err)
{
    (void)fprintf(stderr, "dpt-ckpt: %s\n", err->text);
    return EXIT_DAMAGED;
}

static int64_t manifest_bytes(const struct dpt_manifest *manifest)
{
    int64_t bytes = 0;
    for (int i = 0; i < manifest->n_files; i++)
        bytes += manifest->files[i].bytes;
    return bytes;
}

static enum dpt_status verify_named(const char *path, int64_t step, enum dpt_complete_name name,
                                    struct dpt_err *err)
{
    struct dpt_checkpoint *checkpoint = NULL;
    DPT_TRY(dpt_checkpoint_open_named(path, step, name, &checkpoint, err));
    enum dpt_status status = dpt_checkpoint_verify(checkpoint, err);
    dpt_checkpoint_close(&checkpoint);
    return status;
}

/* Prints one line for a checkpoint or rescue. False: it is damaged. "verified" means that every
 * byte was read. */
static bool list_named(const struct dpt_folder *dir, const char *path, int64_t step,
                       enum dpt_complete_name which, bool verify)
{
    struct dpt_complete complete;
    struct dpt_err err = {.text = ""};
    char name[DPT_CHECKPOINT_NAME_BYTES];
    dpt_name_step(step, which == DPT_COMPLETE_RESCUE, name);
    enum dpt_status status = dpt_complete_open(dir, step, which, &complete, &err);
    const bool opened = status == DPT_OK;
    if (opened && verify)
        status = verify_named(path, step, which, &err);
    if (status == DPT_OK)
        (void)printf("%s  %s  %d file%s, %.1f MiB, %d writer%s\n", name,
                     verify ? "verified" : "complete, not verified", complete.manifest.n_files,
                     complete.manifest.n_files == 1 ? "" : "s",
                     dpt_mib(manifest_bytes(&complete.manifest)), complete.manifest.n_writers,
                     complete.manifest.n_writers == 1 ? "" : "s");
    else
        (void)printf("%s  damaged: %s\n", name, err.text);
    if (opened)
        dpt_complete_close(&complete);
    return status == DPT_OK;
}

/* Prints a line for the checkpoint of a step and one for its rescue, if they exist. */
static bool list_step(const struct dpt_folder *dir, const char *path, int64_t step, bool verify)
{
    bool good = true;
    for (enum dpt_complete_name which = DPT_COMPLETE_STEP; which <= DPT_COMPLETE_RESCUE; which++) {
        char name[DPT_CHECKPOINT_NAME_BYTES], folder[PATH_MAX];
        dpt_name_step(step, which == DPT_COMPLETE_RESCUE, name);
        if (dpt_fs_join(path, name, folder, sizeof folder, NULL) == DPT_OK && dpt_fs_exists(folder))
            good = list_named(dir, path, step, which, verify) && good;
    }
    return good;
}

static int list_checkpoints(const char *path, bool verify)
{
    struct dpt_folder dir;
    struct dpt_err err;
    int64_t *steps;
    size_t n;
    bool good = true;
    if (dpt_folder_open(path, &dir, &err) != DPT_OK)
        return print_error(&err);
    if (dpt_checkpoint_list_steps(&dir, &steps, &n, &err) != DPT_OK) {
        dpt_folder_close(&dir);
        return print_error(&err);
    }
    for (size_t i = 0; i < n; i++)
        good = list_step(&dir, path, steps[i], verify) && good;
    free(steps);
    dpt_folder_close(&dir);
    return good ? EXIT_SUCCESS : EXIT_DAMAGED;
}

static void print_tensors(const struct dpt_checkpoint *checkpoint)
{
    int64_t total = 0;
    for (int f = 0; f < checkpoint->n_files; f++) {
        const struct dpt_checkpoint_file *file = &checkpoint->files[f];
        if (file->kind != DPT_KIND_PARAM)
            continue;
        for (int i = 0; i < file->header.n; i++) {
            const struct dpt_safetensors_entry *entry = &file->header.entries[i];
            (void)printf("  %-44s [", entry->name);
            for (int d = 0; d < entry->ndim; d++)
                (void)printf("%s%lld", d ? ", " : "", (long long)entry->dim[d]);
            (void)printf("]  %s\n", file->file->name);
            total += (entry->end - entry->begin) / (int64_t)sizeof(float);
        }
    }
    (void)printf("parameters    %lld\n", (long long)total);
}

static int show_checkpoint(const struct dpt_checkpoint *checkpoint)
{
    const struct dpt_checkpoint_state *state = dpt_checkpoint_get_state(checkpoint);
    (void)printf("checkpoint    %s\n", checkpoint->folder.path);
    (void)printf("step          %lld\n", (long long)state->step);
    (void)printf("samples       %lld\n", (long long)state->samples);
    (void)printf("seed          %llu\n", (unsigned long long)state->seed);
    (void)printf("weights_hash  %s\n", state->weights_hash);
    if (state->data_digest)
        (void)printf("data          %s\n", state->data_digest);
    if (state->fingerprint)
        (void)printf("computed by   %s\n", state->fingerprint);
    if (state->rescue.node)
        (void)printf("rescue        of node %s of run %s, in generation %llu, without a server\n",
                     state->rescue.node, state->rescue.run,
                     (unsigned long long)state->rescue.generation);
    (void)printf("writers       %d\n", checkpoint->manifest.n_writers);
    (void)printf("size          %.1f MiB in %d files\n",
                 dpt_mib(manifest_bytes(&checkpoint->manifest)), checkpoint->manifest.n_files);
    (void)printf("tensors\n");
    print_tensors(checkpoint);
    (void)printf("history       %s\n", state->history_json);
    (void)printf("config\n%s", state->config_yaml);
    return EXIT_SUCCESS;
}

static int verify_checkpoint(const struct dpt_checkpoint *checkpoint)
{
    struct dpt_err err;
    if (dpt_checkpoint_verify(checkpoint, &err) != DPT_OK)
        return print_error(&err);
    (void)printf("%s  verified, %d files, %.1f MiB, every byte checked\n", checkpoint->folder.path,
                 checkpoint->manifest.n_files, dpt_mib(manifest_bytes(&checkpoint->manifest)));
    return EXIT_SUCCESS;
}

static int print_hash(const struct dpt_checkpoint *checkpoint)
{
    struct dpt_err err;
    struct dpt_hash128 h;
    char hex[DPT_HASH_HEX_BYTES];
    if (dpt_checkpoint_hash(checkpoint, &h, &err) != DPT_OK)
        return print_error(&err);
    dpt_hash128_hex(h, hex);
    (void)printf("%s\n", hex);
    return EXIT_SUCCESS;
}

static int with_checkpoint(const char *path,
                           int (*command)(const struct dpt_checkpoint *checkpoint))
{
    struct dpt_checkpoint *checkpoint = NULL;
    struct dpt_err err;
    if (dpt_ckpt_open(path, &checkpoint, &err) != DPT_OK || !checkpoint)
        return print_error(&err);
    int code = command(checkpoint);
    dpt_checkpoint_close(&checkpoint);
    return code;
}

static int print_diff(const char *a, const char *b)
{
    struct dpt_err err;
    struct dpt_ckpt_difference found;
    if (dpt_ckpt_diff(a, b, &found, &err) != DPT_OK) {
        (void)print_error(&err);
        return EXIT_USAGE; /* exit code 1 means that they differ */
    }
    (void)printf("%lld tensor%s equal, %lld differ%s, %lld in one alone or of another shape\n",
                 (long long)found.equal, found.equal == 1 ? " is" : "s are", (long long)found.other,
                 found.other == 1 ? "s" : "", (long long)found.apart);
    return found.other + found.apart == 0 ? EXIT_SUCCESS : EXIT_DIFFERENT;
}

/* Runs a command that reads its own command line. */
static int with_command_line(int argc, char **argv,
                             enum dpt_status (*command)(int argc, char *const *argv,
                                                        struct dpt_err *err))
{
    struct dpt_err err;
    const enum dpt_status status = command(argc, argv, &err);
    if (status == DPT_OK)
        return EXIT_SUCCESS;
    if (status == DPT_EINVAL)
        (void)fprintf(stderr, "dpt-ckpt: %s; see dpt-ckpt --help\n", err.text);
    else
        (void)print_error(&err);
    return status == DPT_EINVAL || status == DPT_ECONFIG || status == DPT_EEXIST ? EXIT_USAGE
                                                                                 : EXIT_DAMAGED;
}

static int run_ckpt_command(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*command)(const struct dpt_checkpoint *checkpoint);
    } commands[] = {{"show", show_checkpoint}, {"verify", verify_checkpoint}, {"hash", print_hash}};
    static const struct {
        const char *name;
        enum dpt_status (*command)(int argc, char *const *argv, struct dpt_err *err);
    } others[] = {
        {"generate", dpt_ckpt_generate}, {"export", dpt_ckpt_export}, {"import", dpt_ckpt_import}};
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        (void)fputs(usage, stdout);
        (void)fputc('\n', stdout);
        dpt_ckpt_generate_help(stdout);
        return EXIT_SUCCESS;
    }
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        (void)printf("dpt-ckpt " DPT_VERSION " (checkpoint format %d)\n", DPT_CHECKPOINT_VERSION);
        return EXIT_SUCCESS;
    }
    for (size_t i = 0; argc >= 2 && i < sizeof others / sizeof *others; i++)
        if (strcmp(argv[1], others[i].name) == 0)
            return with_command_line(argc - 2, argv + 2, others[i].command);
    if (argc == 3 && strcmp(argv[1], "list") == 0 && argv[2][0] != '-')
        return list_checkpoints(argv[2], false);
    if (argc == 4 && strcmp(argv[1], "list") == 0 && strcmp(argv[2], "--verify") == 0)
        return list_checkpoints(argv[3], true);
    if (argc == 4 && strcmp(argv[1], "diff") == 0)
        return print_diff(argv[2], argv[3]);
    for (size_t i = 0; argc == 3 && i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return with_checkpoint(argv[2], commands[i].command);
    struct dpt_err err;
    (void)dpt_fail(&err, DPT_EINVAL,
                   "expected list, show, verify or hash with one DIR, diff, export or import with "
                   "two, or generate; got '%.80s' with %d arguments; see dpt-ckpt --help",
                   argc > 1 ? argv[1] : "", argc > 2 ? argc - 2 : 0);
    (void)print_error(&err);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    struct dpt_err err;
    dpt_log_set_who("dpt-ckpt", "");
    int code = run_ckpt_command(argc, argv);
    if (dpt_stdout_flush(&err) != DPT_OK) {
        (void)fprintf(stderr, "dpt-ckpt: %s\n", err.text);
        return EXIT_DAMAGED;
    }
    return code;
}
