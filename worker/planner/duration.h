/* The time and the price of a run. Pure. */
#ifndef DPT_WORKER_PLANNER_DURATION_H
#define DPT_WORKER_PLANNER_DURATION_H

struct dpt_duration_model {
    double trained, frozen; /* parameters */
    int layers, channels, seq_len;
};

/* FLOPs of a token, forward and backward: 6 N + 4 F + 6 L C T with N trained and F frozen
 * parameters, L layers of C channels and sequences of T tokens (Chowdhery et al. 2022, "PaLM",
 * appendix B, with causal attention counted once). Forward, the gradients of activations and the
 * gradients of weights take 2 FLOPs a parameter each (Kaplan et al. 2020, "Scaling Laws for Neural
 * Language Models", section 2.1); a frozen parameter has no gradient. Activations that backward
 * computes again are not counted, as usual for MFU. */
double dpt_duration_flops(const struct dpt_duration_model *model);

/* Tokens per second of `ranks` devices of `peak` FLOP/s that reach the share `mfu` of it. `ranks`:
 * the mean number that computes at a time. */
double dpt_duration_rate(double peak, double mfu, double ranks, double flops_per_token);

double dpt_duration_days(double tokens, double tokens_per_s);

/* The price of `machines` machines for this many days, at `price` per machine and hour. */
double dpt_duration_price(double days, int machines, double price);

#endif
