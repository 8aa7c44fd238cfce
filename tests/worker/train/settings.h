/* The table of rank_settings_test.c. A row has settings of a run and the stories (test cases) that
 * the test plays with these settings. */
#ifndef DPT_TESTS_WORKER_TRAIN_SETTINGS_H
#define DPT_TESTS_WORKER_TRAIN_SETTINGS_H

#include "base/config.h"

#include <stddef.h>

enum settings_model {
    MODEL_GPT2,
    MODEL_LLAMA,
    MODEL_LLAMA_UNTIED,
    MODEL_GPT2_LABELS,
    MODEL_LLAMA_LABELS,
    MODEL_RESNET,
    MODEL_GPT2_LORA,
    MODEL_LLAMA_LORA,
    MODEL_LLAMA_LABELS_LORA
};

/* Where the model computes and where the state is stored. The device is that of discrete.h. HOST:
 * both on the host. OFFLOADED: computes on the device, state on the host. DEVICE: both on the
 * device. DEVICE_BY_HOST: the same, but the host's communicator reduces the gradients. */
enum settings_place { PLACE_HOST, PLACE_OFFLOADED, PLACE_DEVICE, PLACE_DEVICE_BY_HOST };

enum {
    STORY_ONE_HASH = 1, /* every world has the weights of the plain loop (plain.h) */
    STORY_HEALING = 2,  /* two ranks die one after another; a rank joins and is healed in between */
    STORY_RESUME = 4,   /* all ranks die, new ones resume from the checkpoint */
    STORY_LOSS = 8,     /* under each of `kept_by`: one of four ranks dies, another joins */
    STORY_JOIN = 16     /* under each of `strategies`: one rank becomes three at a step's end */
};

/* Lists of strategies are words of rig_choose, separated by spaces. */
struct settings {
    const char *name;
    enum settings_model model;
    enum settings_place place;
    const char *keys; /* of the config: KEY=VALUE, separated by spaces */
    unsigned stories;

    /* STORY_ONE_HASH */
    const char *strategies;
    int worlds[2];      /* the smallest and the largest */
    int slots, steps;   /* 0: SLOTS, STEPS */
    int two_hosts_from; /* the smallest world on two hosts; 0: 2 */
    bool both_hosts;    /* these worlds run on one host, too */
    bool one_world;     /* each strategy runs in one of the worlds, the next strategy in the next */
    /* starts from published weights; ddp with one rank takes the place of the plain loop */
    bool from_folder;
    bool evaluates; /* compares loss and accuracy of an evaluation with the plain loop, too */

    const char *under;   /* the strategy of STORY_HEALING and STORY_RESUME; NULL: ddp */
    const char *kept_by; /* strategies that lose no state with one rank */
    const char *refused; /* a resume with this KEY=VALUE is refused, and the key named */
    const char *as;      /* the row with the same hash; NULL: no other row has this hash */
};

enum { SLOTS = 11, STEPS = 4, EVALUATED = 13, EVALUATED_ON_DEVICE = 5 };

extern const struct settings settings[];
extern const size_t settings_n;

#endif
