/* What the stories of ranks (rank*_test.c) share: a small model on a small text, folders for each
 * run, and the undisturbed run that every story must equal. */
#ifndef DPT_TESTS_WORKER_TRAIN_RIG_H
#define DPT_TESTS_WORKER_TRAIN_RIG_H

#include "tests/worker/train/director.h"

#include <jansson.h>

/* A sanitizer makes everything several times slower: it gets fewer seeds and variants. */
#ifdef __SANITIZE_THREAD__
enum { RIG_EVERY = 3 };
#elif defined(__SANITIZE_ADDRESS__)
enum { RIG_EVERY = 2 };
#else
enum { RIG_EVERY = 1 };
#endif

/* cmocka's group fixtures: a temporary folder with the text. */
int rig_setup(void **state);
int rig_teardown(void **state);

/* `keys` are of the config: KEY=VALUE, separated by spaces. Micro-batch 2. */
struct dpt_config rig_make_config(int global_batch, int steps, const char *keys);

/* Strategies by one word each, a sharding of fsdp by its own, with shadows behind a plus. Those of
 * rig_covered shard the state and yet keep all of it on two nodes; they need a second one. */
enum { RIG_STRATEGIES = 7, RIG_COVERED = 4 };
extern const char *const rig_strategies[RIG_STRATEGIES], *const rig_covered[RIG_COVERED];
void rig_choose(struct dpt_config *config, const char *strategy);

/* Makes the model a llama of the same depth and width: four query heads of 32 channels, one head of
 * keys and values. Untied: a separate output head, biases, scaled rotary embeddings. */
void rig_choose_llama(struct dpt_config *config, bool tied);

/* Makes the model one of three labels, and the data texts that have them: of one word in each
 * three, which word it is, of 1 to 40 bytes (some are cut). Before rig_evaluate. */
void rig_choose_labels(struct dpt_config *config);

/* Makes the model a residual network of three blocks for the images of three labels, with a file of
 * CIFAR-10's form: of each label another color is bright. They are cropped and flipped. Before
 * rig_evaluate. */
void rig_choose_resnet(struct dpt_config *config);

/* Makes the run begin with the weights that a run of two steps of this config leaves in the folder
 * `name`: a checkpoint has the form of Hugging Face's folders. */
void rig_choose_folder(struct dpt_config *config, const char *name);

/* Makes the model adapters of rank 2 of all its linear layers, beside the weights of such a folder.
 */
void rig_choose_lora(struct dpt_config *config, const char *name);

/* Makes the run evaluate every so many steps on `sequences` sequences of another text, or as many
 * images (some 60 at most). */
void rig_evaluate(struct dpt_config *config, int every, int sequences);

/* A director in the folder `name` (made when absent); `dir` becomes its path. */
struct director *rig_begin(const struct dpt_config *config, const char *name, char dir[128]);

/* Path of the folder `name`; static. */
const char *rig_dir(const char *name);

/* summary.json of a run; owned by the caller. */
json_t *rig_summary_of(const char *dir);

/* A number of a summary or of a line of a log. */
double rig_number(const json_t *object, const char *name);

/* Runs undisturbed in a world of `world` ranks; the ranks of an odd handle live on another host
 * when asked. Gives the weights hash. */
void rig_undisturbed(const struct dpt_config *config, const char *name, int world, bool two_hosts,
                     char ret[64]);

/* From here on the ranks' log goes to the file dir/said, of which the path is returned, until the
 * log is given back; and the number of its lines with these words. */
int rig_log_to(const char *dir, char ret_path[160]);
void rig_log_back(int fd);
int rig_said(const char *path, const char *words);

/* Disturbed runs, which must end as undisturbed ones. Two of three ranks die, one after another,
 * and a rank joins in between (18 steps at least); all die after the checkpoint of step 4, and
 * three new ranks continue from it (more than 4 steps, a checkpoint every 4). */
void rig_deaths_and_healing(const struct dpt_config *config);
void rig_all_die(const struct dpt_config *config);

#endif
