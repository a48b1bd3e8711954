/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Learning-rate schedules: the learning rate of a step is a pure function of the step,
 * counted from 1, and of the options below. It is computed in float64 with additions,
 * multiplications and divisions only, none of them fused, and rounded to float once, so
 * that it has the same bits on every machine.
 *
 * With W = warmup, steps up to W have lr * step / W, so that step W is the first with the
 * whole learning rate. For later steps, t = step - 1 is the number of steps before it:
 *   constant  lr
 *   step      lr * factor^floor(t / steps)
 *   linear    lr * (y + factor (1 - y)), y = 1 - x,  where x = (t - W) / (steps - W)
 *   cosine    the same with y = (1 + cos(pi x)) / 2
 * x is at most 1, and 1 if steps <= W. So step W + 1 still has the whole learning rate,
 * and the first step after `steps` is the first with factor * lr.
 *
 * Sources: step, linear and cosine are torch's StepLR(steps, factor), LinearLR(1, factor,
 * steps - W) and CosineAnnealingLR(steps - W, factor * lr), where t counts torch's calls
 * of step(), without the warm-up for the last two; cosine: Loshchilov, Hutter 2017
 * (SGDR), without restarts; warm-up: Goyal et al. 2017.
 */
#ifndef TERN_KERNELS_SCHEDULE_H
#define TERN_KERNELS_SCHEDULE_H

#include <stdint.h>

enum tern_schedule_kind {
	TERN_SCHEDULE_CONSTANT,
	TERN_SCHEDULE_STEP,
	TERN_SCHEDULE_LINEAR,
	TERN_SCHEDULE_COSINE,
};
#define TERN_SCHEDULE_COUNT (TERN_SCHEDULE_COSINE + 1u)

#define TERN_SCHEDULE_STEPS_MAX (1ull << 40)

struct tern_schedule { /* all 0: constant, without a warm-up */
	enum tern_schedule_kind kind;
	uint64_t warmup;
	uint64_t steps; /* step: between two changes; linear, cosine: until the end */
	double factor;  /* step: of each change; linear, cosine: of the end */
};

/* `lr`: the whole learning rate. */
float tern_schedule_lr(const struct tern_schedule *s, float lr, uint64_t step);

/* Says what is wrong with the options of a schedule, as in "steps: expected 1 or more".
 * NULL: nothing. */
const char *tern_schedule_wrong(const struct tern_schedule *s);

const char *tern_schedule_name(enum tern_schedule_kind kind);

#endif
