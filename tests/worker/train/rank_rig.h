/* Shared by the tests of whole runs (rank*_test.c): a small model on a small text, folders for each
 * run, and the undisturbed run, whose weights hash every other run must have. */
#ifndef DPT_TESTS_WORKER_TRAIN_RANK_RIG_H
#define DPT_TESTS_WORKER_TRAIN_RANK_RIG_H

#include "tests/every.h"
#include "tests/worker/train/director.h"

#include <jansson.h>

/* cmocka's group fixtures: a temporary folder with the text. */
int rig_setup(void **state);
int rig_teardown(void **state);

/* `keys` are config keys as KEY=VALUE, separated by spaces. The micro-batch is 2. */
struct dpt_config rig_make_config(int global_batch, int steps, const char *keys);

/* Each strategy has one word: its name, or for fsdp the name of the sharding; "+shadow" adds
 * shadows. Those of rig_covered shard the state and keep every part on two nodes, so that they need
 * a second node. */
enum { RIG_STRATEGIES = 7, RIG_COVERED = 4 };
extern const char *const rig_strategies[RIG_STRATEGIES], *const rig_covered[RIG_COVERED];
void rig_choose(struct dpt_config *config, const char *strategy);

/* Makes the model a llama of the same depth and width: four query heads of 32 channels, one head of
 * keys and values. Untied: a separate output head, biases, scaled rotary embeddings. */
void rig_choose_llama(struct dpt_config *config, bool tied);

/* Makes the model a classifier of three labels and the data labelled texts. Each text has one of
 * three words, and its label is the number of that word. Some texts are longer than seq_len and are
 * cut. Call it before rig_evaluate. */
void rig_choose_labels(struct dpt_config *config);

/* Makes the model a residual network of three blocks and the data images of three labels, in a file
 * of CIFAR-10's format: each label has another bright color. Images are cropped and flipped. Call
 * it before rig_evaluate. */
void rig_choose_resnet(struct dpt_config *config);

/* Sets model.init_from: makes a run of two steps of this config in the folder `name`, whose
 * checkpoint is a Hugging Face folder, and lets the run start from its weights. */
void rig_choose_folder(struct dpt_config *config, const char *name);

/* The same folder as the base of adapters: the run trains adapters of rank 2 of all linear layers.
 */
void rig_choose_lora(struct dpt_config *config, const char *name);

/* Makes the run evaluate after every `every` steps, on `sequences` sequences of another text or on
 * as many images (about 60 at most). */
void rig_evaluate(struct dpt_config *config, int every, int sequences);

/* Creates a director in the folder `name`, which is made if absent; `dir` becomes its path. */
struct director *rig_begin(const struct dpt_config *config, const char *name, char dir[128]);

/* Path of the folder `name`; static. */
const char *rig_dir(const char *name);

/* summary.json of a run; owned by the caller. */
json_t *rig_summary_of(const char *dir);

/* Compares the memory that rank 0 of a run had on its device at the end with the formula, tag by
 * tag. The workspace of kernels and the sums of the norm (`other`) have none; that of `comm` is a
 * lower bound. */
void rig_check_device_memory(const char *name);

/* A number of a summary or of a line of a log. */
double rig_number(const json_t *object, const char *name);

/* Runs undisturbed in a world of `world` ranks. With two_hosts the ranks with an odd handle are on
 * another host. `ret` is the weights hash. */
void rig_undisturbed(const struct dpt_config *config, const char *name, int world, bool two_hosts,
                     char ret[64]);

/* rig_log_to sends the ranks' log to the file dir/said until rig_log_back; it returns the file's fd
 * and path. rig_said counts the lines of the file that contain `words`. */
int rig_log_to(const char *dir, char ret_path[160]);
void rig_log_back(int fd);
int rig_said(const char *path, const char *words);

/* Disturbed runs, which must end with the weights of the undisturbed one. rig_deaths_and_healing:
 * two of three ranks die, one after another, and a rank joins in between (18 steps at least).
 * rig_all_die: all ranks die after the checkpoint of step 4, and three new ranks continue from it
 * (more than 4 steps, a checkpoint every 4). */
void rig_deaths_and_healing(const struct dpt_config *config);
void rig_all_die(const struct dpt_config *config);

#endif
