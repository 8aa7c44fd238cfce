/* Clipping by the global norm (optim.h). */
#include "worker/optim/optim.h"

float dpt_clip_scale(double norm, double max_norm)
{
    if (max_norm == 0.0 || norm <= max_norm)
        return 1.0f;
    return (float)(max_norm / (norm + 1e-6));
}
