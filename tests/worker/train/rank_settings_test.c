/* The promise of every run, under each row of settings_table.c: one hash in every world and under
 * every strategy, that of the plain loop, through deaths, joins and a resume.
 *
 * test_worker_train_rank_settings [STORY[: ROW]] [K/N]: the tests with names that begin so, and of
 * them each N-th from the K-th on. */
#include "tests/worker/train/device_rig.h"
#include "tests/worker/train/plain.h"
#include "tests/worker/train/settings.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCENES_MAX = 256, STRATEGY_BYTES = 32, HEALING_STEPS = 18, RESUME_STEPS = 10 };
enum { JOIN_STEPS = 16, LOSS_STEPS = 40, LOSS_STEPS_OF_IMAGES = 14 };

/* Sanitizers that make everything very slow get a part of the rows. */
static size_t rows_every(void)
{
    return SANITIZED_EVERY > 2 ? dpt_test_every() : 1;
}

static bool has_labels(const struct settings *row)
{
    return row->model == MODEL_GPT2_LABELS || row->model == MODEL_LLAMA_LABELS ||
           row->model == MODEL_LLAMA_LABELS_LORA;
}

static struct dpt_config make_row_config(const struct settings *row, int steps)
{
    struct dpt_config config =
        rig_make_config(2 * (row->slots ? row->slots : SLOTS), steps, row->keys ? row->keys : "");
    if (row->model == MODEL_LLAMA || row->model == MODEL_LLAMA_LABELS)
        rig_choose_llama(&config, true);
    if (row->model == MODEL_LLAMA_UNTIED || row->model == MODEL_LLAMA_LORA ||
        row->model == MODEL_LLAMA_LABELS_LORA)
        rig_choose_llama(&config, false);
    if (row->model == MODEL_RESNET)
        rig_choose_resnet(&config);
    if (row->model >= MODEL_GPT2_LORA) {
        char base[64];
        (void)snprintf(base, sizeof base, "%s-base-%d", row->name, steps);
        rig_choose_lora(&config, base);
    }
    if (row->model == MODEL_LLAMA_LORA)
        config.train.lora.targets = DPT_LORA_Q_PROJ | DPT_LORA_V_PROJ | DPT_LORA_DOWN_PROJ;
    if (has_labels(row))
        rig_choose_labels(&config);
    if (row->from_folder) {
        char folder[64];
        (void)snprintf(folder, sizeof folder, "%s-folder", row->name);
        rig_choose_folder(&config, folder);
    }
    if (row->place == PLACE_OFFLOADED)
        offload(&config);
    if (row->place == PLACE_DEVICE || row->place == PLACE_DEVICE_BY_HOST)
        keep_state_on_device(&config);
    if (row->place == PLACE_DEVICE_BY_HOST)
        config.cluster.backend = DPT_BACKEND_HOST;
    return config;
}

/* The next word of a list; false at its end. */
static bool next_strategy(const char **list, char ret[STRATEGY_BYTES])
{
    const char *word = *list + strspn(*list, " ");
    const size_t bytes = strcspn(word, " ");
    (void)snprintf(ret, STRATEGY_BYTES, "%.*s", (int)bytes, word);
    *list = word + bytes;
    return bytes > 0;
}

static void expect_hash(const char *what, const char *hash, const char *expected)
{
    if (strcmp(hash, expected) != 0)
        fail_msg("%s: %s instead of %s", what, hash, expected);
}

/* What a run of a row's ends with. */
struct outcome {
    char hash[64];
    int samples; /* of the evaluation; 0: none */
    struct plain_validation validation;
};

static struct outcome plain_outcome(const struct settings *row, const struct dpt_config *config)
{
    struct outcome ret = {.samples = 0};
    if (row->from_folder) {
        char drawn[DPT_HASH_HEX_BYTES];
        plain_train(config, drawn); /* from weights that the seed draws */
        rig_undisturbed(config, row->name, 1, false, ret.hash);
        assert_string_not_equal(ret.hash, drawn);
        return ret;
    }
    if (row->evaluates)
        ret.samples = row->place == PLACE_HOST ? EVALUATED : EVALUATED_ON_DEVICE;
    plain_train_and_evaluate(config, ret.samples, ret.hash, &ret.validation);
    return ret;
}

/* On the host the loss differs by the bits that the shape of a batch makes. */
static void expect_validation(const struct settings *row, const char *name,
                              const struct outcome *expected)
{
    const struct plain_validation *plain = &expected->validation;
    json_t *summary = rig_summary_of(rig_dir(name));
    const double loss = rig_number(summary, "val_loss");
    if (!(fabs(loss - plain->loss) <= (row->place == PLACE_HOST ? 1e-6 * plain->loss : 0)))
        fail_msg("%s: val_loss %.9g, the plain loop has %.9g", name, loss, plain->loss);
    if (has_labels(row) || row->model == MODEL_RESNET) {
        assert_true(plain->right > 0 && plain->right <= expected->samples);
        assert_true(rig_number(summary, "val_samples") == expected->samples);
        assert_true(rig_number(summary, "val_accuracy") ==
                    (double)plain->right / expected->samples);
    }
    json_decref(summary);
}

static void run_settings_world(const struct settings *row, struct dpt_config *config,
                               const char *strategy, int world, const struct outcome *expected)
{
    const bool two_hosts = world >= (row->two_hosts_from ? row->two_hosts_from : 2);
    const int first = row->both_hosts || !two_hosts ? 0 : 1;
    for (int hosts = first; hosts <= (two_hosts ? 1 : 0); hosts += dpt_test_every()) {
        char name[96], hash[64];
        rig_choose(config, strategy);
        (void)snprintf(name, sizeof name, "%s-%s-%d-%d", row->name, strategy, world, hosts);
        rig_undisturbed(config, name, world, hosts != 0, hash);
        expect_hash(name, hash, expected->hash);
        if (expected->samples > 0)
            expect_validation(row, name, expected);
    }
}

static void play_one_hash(const struct settings *row)
{
    struct dpt_config config = make_row_config(row, row->steps ? row->steps : STEPS);
    if (row->evaluates)
        rig_evaluate(&config, 2, row->place == PLACE_HOST ? EVALUATED : EVALUATED_ON_DEVICE);
    const struct outcome expected = plain_outcome(row, &config);
    const int worlds = row->worlds[1] - row->worlds[0] + 1;
    const char *list = row->strategies;
    char strategy[STRATEGY_BYTES];
    for (int i = (int)(row - settings); next_strategy(&list, strategy); i++) {
        const int every = dpt_test_every(), first = i % every;
        if (row->one_world && first == 0)
            run_settings_world(row, &config, strategy, row->worlds[0] + i % worlds, &expected);
        for (int w = first % worlds; !row->one_world && w < worlds; w += every)
            run_settings_world(row, &config, strategy, row->worlds[0] + w, &expected);
    }
}

static void play_healing(const struct settings *row)
{
    struct dpt_config config = make_row_config(row, HEALING_STEPS);
    rig_choose(&config, row->under ? row->under : "ddp");
    rig_deaths_and_healing(&config);
}

static void play_resume(const struct settings *row)
{
    struct dpt_config config = make_row_config(row, RESUME_STEPS);
    rig_choose(&config, row->under ? row->under : "ddp");
    rig_all_die(&config);
}

/* The other node has the dead rank's part; the joining rank receives a part of the state. */
static void lose_one(const struct settings *row, const char *strategy, const char *expected,
                     struct dpt_config *config)
{
    char name[96], dir[128];
    (void)snprintf(name, sizeof name, "%s-%s-loss", row->name, strategy);
    rig_choose(config, strategy);
    struct director *d = rig_begin(config, name, dir);
    for (int handle = 0; handle < 5; handle++)
        director_bench(d, director_start(d, handle % 2), handle == 4);
    assert_true(director_form(d, false));
    director_await_step(d, 3);
    director_kill(d, 1);
    assert_true(director_form(d, false));
    director_await_step(d, 7);
    director_bench(d, 4, false);
    assert_true(director_form(d, true));
    expect_hash(name, director_finish(d), expected);
    assert_int_equal(director_steps_lost(d), 0);
    director_destroy(&d);
}

/* Shards are assigned again, from memory: for two ranks that join, and once more without a
 * reason. */
static void let_two_join(const struct settings *row, const char *strategy, const char *expected,
                         struct dpt_config *config)
{
    char name[96], dir[128];
    (void)snprintf(name, sizeof name, "%s-%s-join", row->name, strategy);
    rig_choose(config, strategy);
    struct director *d = rig_begin(config, name, dir);
    for (int handle = 0; handle < 3; handle++)
        director_bench(d, director_start(d, handle % 2), handle > 0);
    assert_true(director_form(d, false));
    director_await_step(d, 3);
    director_bench(d, 1, false);
    director_bench(d, 2, false);
    assert_true(director_form(d, true));
    director_await_step(d, 7);
    assert_true(director_form(d, true));
    expect_hash(name, director_finish(d), expected);
    assert_int_equal(director_steps_lost(d), 0);
    director_destroy(&d);
}

static void play_under_each(const struct settings *row, const char *list, int steps,
                            const char *story,
                            void (*play)(const struct settings *row, const char *strategy,
                                         const char *expected, struct dpt_config *config))
{
    struct dpt_config config = make_row_config(row, steps);
    char expected[64], name[96], strategy[STRATEGY_BYTES];
    (void)snprintf(name, sizeof name, "%s-%s-undisturbed", row->name, story);
    rig_undisturbed(&config, name, 1, false, expected);
    for (int i = 0; next_strategy(&list, strategy); i++)
        if (i % dpt_test_every() == 0)
            play(row, strategy, expected, &config);
}

static void play_loss(const struct settings *row)
{
    const int steps = row->model == MODEL_RESNET ? LOSS_STEPS_OF_IMAGES : LOSS_STEPS;
    play_under_each(row, row->kept_by, steps, "loss", lose_one);
}

static void play_join(const struct settings *row)
{
    play_under_each(row, row->strategies, JOIN_STEPS, "join", let_two_join);
}

/* A checkpoint's run does not resume as another trajectory. */
static void play_refusal(const struct settings *row)
{
    char name[96], hash[64], dir[128], keys[512], key[64];
    const char *text = NULL;
    struct settings other = *row;
    struct dpt_config config = make_row_config(row, STEPS);
    (void)snprintf(name, sizeof name, "%s-refuses", row->name);
    rig_undisturbed(&config, name, 1, false, hash);
    (void)snprintf(keys, sizeof keys, "%s %s", row->keys ? row->keys : "", row->refused);
    (void)snprintf(key, sizeof key, "%.*s", (int)strcspn(row->refused, "="), row->refused);
    other.keys = keys;
    config = make_row_config(&other, STEPS);
    struct director *d = rig_begin(&config, name, dir);
    assert_true(director_fatal(d, director_start(d, 0), &text));
    if (!strstr(text, key))
        fail_msg("%s: '%s' does not name the key", row->name, text);
    director_destroy(&d);
}

/* ---- rows that are trajectories ---- */

static bool same_settings_name(const struct settings *row, const struct settings *other)
{
    return row->as &&
           (strcmp(row->as, other->name) == 0 || (other->as && strcmp(row->as, other->as) == 0));
}

/* Two rows have one hash only if the table says so: else a comparison with the plain loop would
 * show nothing. Devices and other models repeat rows of GPT-2 on the host. */
static void each_row_has_its_trajectory(void **state)
{
    (void)state;
    char(*hash)[DPT_HASH_HEX_BYTES] = calloc(settings_n, sizeof *hash);
    assert_non_null(hash);
    for (size_t i = 0; i < settings_n; i++) {
        const struct settings *row = &settings[i];
        if (row->place != PLACE_HOST || row->model != MODEL_GPT2 || row->from_folder)
            continue;
        const struct dpt_config config = make_row_config(row, row->steps ? row->steps : STEPS);
        plain_train(&config, hash[i]);
        for (size_t k = 0; k < i; k++) {
            const bool same = strcmp(hash[k], hash[i]) == 0,
                       named = same_settings_name(row, &settings[k]) ||
                               same_settings_name(&settings[k], row);
            if (hash[k][0] && same != named)
                fail_msg("%s and %s end with %s hash", settings[k].name, row->name,
                         same ? "the same" : "another");
        }
    }
    free(hash);
}

/* ---- the program ---- */

static const struct story {
    const char *name;
    unsigned bit; /* 0: of rows with `refused` */
    void (*play)(const struct settings *row);
} stories[] = {{"one_hash", STORY_ONE_HASH, play_one_hash},
               {"healing", STORY_HEALING, play_healing},
               {"resume", STORY_RESUME, play_resume},
               {"loss", STORY_LOSS, play_loss},
               {"join", STORY_JOIN, play_join},
               {"refusal", 0, play_refusal}};

struct scene {
    const struct settings *row;
    const struct story *story;
    char name[64];
};

static void play_scene(void **state)
{
    const struct scene *scene = *state;
    scene->story->play(scene->row);
}

static bool is_told(const struct story *story, const struct settings *row)
{
    return story->bit ? (row->stories & story->bit) != 0 : row->refused != NULL;
}

/* The scenes that the arguments ask for. */
struct choice {
    const char *begins; /* of a scene's name */
    unsigned part, parts;
};

static struct choice read_choice(int argc, char **argv)
{
    struct choice ret = {argc > 1 ? argv[1] : "", 0, 1};
    if (argc > 2 && sscanf(argv[2], "%u/%u", &ret.part, &ret.parts) != 2)
        fail_msg("'%s' is no part K/N", argv[2]);
    return ret;
}

int main(int argc, char **argv)
{
    enum { STORIES = sizeof stories / sizeof stories[0] };
    static struct scene scenes[SCENES_MAX];
    static struct CMUnitTest tests[SCENES_MAX];
    const struct choice choice = read_choice(argc, argv);
    size_t n = 0, chosen = 0;
    if (choice.part == 0 && strncmp(choice.begins, stories[0].name, strlen(choice.begins)) == 0)
        tests[n++] = (struct CMUnitTest)cmocka_unit_test(each_row_has_its_trajectory);
    for (size_t s = 0; s < STORIES; s++)
        for (size_t r = 0; r < settings_n; r++) {
            struct scene *scene = &scenes[n];
            if (!is_told(&stories[s], &settings[r]))
                continue;
            *scene = (struct scene){.row = &settings[r], .story = &stories[s]};
            (void)snprintf(scene->name, sizeof scene->name, "%s: %s", stories[s].name,
                           settings[r].name);
            if (strncmp(scene->name, choice.begins, strlen(choice.begins)) != 0 ||
                r % rows_every() != rows_every() / 2 || chosen++ % choice.parts != choice.part)
                continue;
            const bool device = settings[r].place != PLACE_HOST;
            assert_true(n + 1 < SCENES_MAX);
            tests[n++] =
                (struct CMUnitTest){scene->name, play_scene, device ? device_rig_setup : NULL,
                                    device ? device_rig_teardown : NULL, scene};
        }
    assert_true(n > 0);
    return _cmocka_run_group_tests("settings", tests, n, rig_setup, rig_teardown);
}
