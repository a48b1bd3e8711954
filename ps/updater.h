/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An updater runs a server's arithmetic: it adds up the gradients of a chunk and applies
 * the optimizer, on the CPU (updater.c) or on a GPU (updater_cuda.c). It owns the
 * optimizer's state, and the sum between the two phases of a step that needs a norm
 * (server/norm.c). Parameters and gradients belong to the server. They are in host
 * memory; or, for a chunk with `on_device`, in memory of the updater's GPU, which then
 * computes where they are. The pointers to them are addresses for that GPU.
 *
 * Sums and updates give the same bits on every device. Sums of squares depend on the
 * device (kernels/cuda/table.h), so servers that add up their norms must have equal
 * fingerprints: names of the device's kind and of its kernels.
 *
 * Threads: a chunk is used by one thread at a time, different chunks by any threads.
 * Calls are synchronous. Errors are a negative errno; the reason of a failure is in
 * chunk->error, and that of a failed chunk_new() in updater->error.
 */
#ifndef TERN_PS_UPDATER_H
#define TERN_PS_UPDATER_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

struct tern_updater_segment { /* elements of a chunk that have one optimizer */
	/* In the segments of a step: NULL: these elements are skipped. Their parameters keep
	 * their bytes, and their state does not change. */
	const struct tern_optimizer *optimizer;
	uint64_t first, count; /* elements of the chunk */
	/* Number of this update of the elements, counted from 1; 0: it is that of the step.
	 * Segments of a step with the same `optimizer` have the same number. */
	uint64_t update;
};

struct tern_updater_opts { /* options of a chunk */
	/* `optimizer` and `segments`, and what they point to, belong to the caller and
	 * must outlive the chunk. Without segments (NULL) the optimizer is that of
	 * the whole chunk; with segments, which cover the chunk in order, it is not
	 * used. */
	const struct tern_optimizer *optimizer;
	const struct tern_updater_segment *segments;
	unsigned segment_count;
	uint64_t count;          /* elements */
	unsigned gradient_count; /* most gradients of one sum */
	bool two_phase;          /* tern_updater_sum() will be used */
	bool on_device; /* parameters and gradients are in memory of the updater's GPU */
	/* Gradients are bf16. Only for an updater that takes it: tern_updater_takes_bf16(). */
	bool bf16;
	/* All gradients are folded: tern_updater_update() and tern_updater_sum() take partial
	 * sums, which are float32 in any case. */
	bool folds;
};

struct tern_updater_chunk {
	struct tern_updater_opts opts;
	char error[400];
};

struct tern_updater_step {
	uint64_t step; /* counted from 1 */
	/* In place of the chunk's optimizer or segments, for this step; they cover the chunk
	 * in order. NULL: those of the chunk. */
	const struct tern_updater_segment *segments;
	unsigned segment_count;
	float *w_out;
	const float *w_in; /* parameters: initial, or the last update's; may be w_out */
	/* NULL: use the sum that tern_updater_sum() kept; scale must then be 1. */
	const float *const *gradients;
	unsigned gradient_count;
	/* The one gradient is a mean of tern_updater_mean(): float32, whatever the chunk's are. */
	bool is_mean;
	float scale, clip; /* as in struct tern_kernels */
	uint16_t *w_bf16;  /* NULL, or room for w_out rounded to bf16 */
};

static inline unsigned tern_updater_segment_count(const struct tern_updater_opts *opts)
{
	return opts->segments ? opts->segment_count : 1;
}

static inline struct tern_updater_segment tern_updater_segment(
	const struct tern_updater_opts *opts, unsigned i)
{
	return opts->segments
		       ? opts->segments[i]
		       : (struct tern_updater_segment){
				 .optimizer = opts->optimizer, .count = opts->count};
}

/* The segments of an update of a chunk. */
static inline unsigned tern_updater_step_segment_count(
	const struct tern_updater_opts *opts, const struct tern_updater_step *step)
{
	return step->segments ? step->segment_count : tern_updater_segment_count(opts);
}

static inline struct tern_updater_segment tern_updater_step_segment(
	const struct tern_updater_opts *opts, const struct tern_updater_step *step,
	unsigned i)
{
	struct tern_updater_segment s =
		step->segments ? step->segments[i] : tern_updater_segment(opts, i);

	if (!s.update)
		s.update = step->step;
	return s;
}

/* True if an optimizer of the chunk keeps a vector m, or v; the chunk then has it for all
 * of its elements. */
bool tern_updater_has_m(const struct tern_updater_opts *opts);
bool tern_updater_has_v(const struct tern_updater_opts *opts);

/* The optimizer's state of a chunk as vectors of its size in host memory. NULL: its
 * optimizers do not keep that vector. */
struct tern_updater_state {
	float *m, *v;
};

struct tern_updater;

struct tern_updater_ops {
	int (*chunk_new)(struct tern_updater *u, const struct tern_updater_opts *opts,
		struct tern_updater_chunk **out);
	void (*chunk_free)(struct tern_updater *u, struct tern_updater_chunk *c);
	int (*update)(struct tern_updater *u, struct tern_updater_chunk *c,
		const struct tern_updater_step *step);
	int (*sum)(struct tern_updater *u, struct tern_updater_chunk *c,
		const float *const *gradients, unsigned gradient_count, float scale,
		double *squares);
	int (*mean)(struct tern_updater *u, struct tern_updater_chunk *c, float *to,
		const float *const *gradients, unsigned gradient_count, float scale);
	int (*fold)(struct tern_updater *u, struct tern_updater_chunk *c,
		float *const *places, uint32_t gradient_count, uint32_t folded);
	int (*copy)(struct tern_updater *u, struct tern_updater_chunk *c, float *to,
		const float *from);
	int (*get_state)(struct tern_updater *u, struct tern_updater_chunk *c,
		const struct tern_updater_state *to);
	int (*set_state)(struct tern_updater *u, struct tern_updater_chunk *c,
		const struct tern_updater_state *from);
	void (*narrow)(struct tern_updater *u, struct tern_updater_chunk *c, uint16_t *to,
		const float *from);
	void (*pin)(struct tern_updater *u, void *base, uint64_t bytes);
	void (*unpin)(struct tern_updater *u);
	void (*take_note)(struct tern_updater *u, char *note, size_t bytes);
	uint64_t (*held_bytes)(struct tern_updater *u);
	void (*free)(struct tern_updater *u);
};

struct tern_updater {
	const struct tern_updater_ops *ops;
	char name[160];        /* "NVIDIA H200 (cuda:0)" */
	char fingerprint[128]; /* equal strings mean equal bits of all results */
	char error[400]; /* reason, valid only just after a chunk_new() that failed */
};

/* Makes the updater that computes on the CPU. Errors: -ENOMEM. */
int tern_updater_cpu_new(const struct tern_kernels *kernels, struct tern_updater **out);

/* Calls tern_sum_fold() for vectors of `count` elements in host memory. `bf16`: gradients
 * are bf16. Used by the updaters themselves. */
void tern_updater_fold_on_cpu(const struct tern_kernels *kernels, float *const *places,
	uint32_t gradient_count, uint32_t folded, uint64_t count, bool bf16);

static inline void tern_updater_free(struct tern_updater *u)
{
	if (u)
		u->ops->free(u);
}

/* Makes a chunk. m starts at 0, v at its optimizer's initial accumulator. -ENOMEM, or on
 * a GPU an error of the driver; u->error then has the reason. */
static inline int tern_updater_chunk_new(struct tern_updater *u,
	const struct tern_updater_opts *opts, struct tern_updater_chunk **out)
{
	return u->ops->chunk_new(u, opts, out);
}

static inline void tern_updater_chunk_free(
	struct tern_updater *u, struct tern_updater_chunk *c)
{
	if (c)
		u->ops->chunk_free(u, c);
}

/* Computes w_out = optimizer(w_in, clip * scale * sum(gradients)). The gradients are
 * added up in the order of the tree of ps/sum.h. */
static inline int tern_updater_update(struct tern_updater *u,
	struct tern_updater_chunk *c, const struct tern_updater_step *step)
{
	return u->ops->update(u, c, step);
}

/* Computes scale * sum(gradients), keeps it for the update, and stores the sum of its
 * squares in *squares. */
static inline int tern_updater_sum(struct tern_updater *u, struct tern_updater_chunk *c,
	const float *const *gradients, unsigned gradient_count, float scale,
	double *squares)
{
	return u->ops->sum(u, c, gradients, gradient_count, scale, squares);
}

/* True if tern_updater_mean() and updates with a mean exist. */
static inline bool tern_updater_gives_mean(const struct tern_updater *u)
{
	return u->ops->mean;
}

/* Writes scale * sum(gradients) to `to`, host memory of the chunk's size; gradients NULL: the
 * sum that tern_updater_sum() kept. An update with this one gradient, is_mean and a scale of 1
 * gives the same bytes as one with the gradients themselves. */
static inline int tern_updater_mean(struct tern_updater *u, struct tern_updater_chunk *c,
	float *to, const float *const *gradients, unsigned gradient_count, float scale)
{
	return u->ops->mean(u, c, to, gradients, gradient_count, scale);
}

/* Adds up the chunk's next gradients after the first `folded`, into partial sums: see
 * tern_sum_fold(). */
static inline int tern_updater_fold(struct tern_updater *u, struct tern_updater_chunk *c,
	float *const *places, uint32_t gradient_count, uint32_t folded)
{
	return u->ops->fold(u, c, places, gradient_count, folded);
}

/* Copies a vector of the chunk's size between two places, each in host memory or, for a
 * chunk with `on_device`, in memory of the updater's GPU. */
static inline int tern_updater_copy(struct tern_updater *u, struct tern_updater_chunk *c,
	float *to, const float *from)
{
	return u->ops->copy(u, c, to, from);
}

/* Copies the state of the chunk to `to`, which has a vector for each that
 * tern_updater_has_m() and tern_updater_has_v() tell; or sets it to `from`. */
static inline int tern_updater_get_state(struct tern_updater *u,
	struct tern_updater_chunk *c, const struct tern_updater_state *to)
{
	return u->ops->get_state(u, c, to);
}

static inline int tern_updater_set_state(struct tern_updater *u,
	struct tern_updater_chunk *c, const struct tern_updater_state *from)
{
	return u->ops->set_state(u, c, from);
}

/* True if chunks may have gradients of bf16, and their values may be rounded to it. */
static inline bool tern_updater_takes_bf16(const struct tern_updater *u)
{
	return u->ops->narrow;
}

/* Rounds a vector of the chunk's size to bf16. */
static inline void tern_updater_narrow(struct tern_updater *u,
	struct tern_updater_chunk *c, uint16_t *to, const float *from)
{
	u->ops->narrow(u, c, to, from);
}

/* Page-locks host memory that will hold parameters or gradients, until
 * tern_updater_unpin(). The range must be a whole mapping; the same mapping may be passed
 * again. Any thread may call this. */
static inline void tern_updater_pin(struct tern_updater *u, void *base, uint64_t bytes)
{
	if (u->ops->pin)
		u->ops->pin(u, base, bytes);
}

static inline void tern_updater_unpin(struct tern_updater *u)
{
	if (u->ops->unpin)
		u->ops->unpin(u);
}

/* Moves the pending note (a line for the log) into `note`. If there is none, writes ""
 * and takes no lock. Any thread may call this. */
static inline void tern_updater_take_note(
	struct tern_updater *u, char *note, size_t bytes)
{
	*note = '\0';
	if (u->ops->take_note)
		u->ops->take_note(u, note, bytes);
}

/* Device memory in use, in bytes. Any thread may call this. */
static inline uint64_t tern_updater_held_bytes(struct tern_updater *u)
{
	return u->ops->held_bytes ? u->ops->held_bytes(u) : 0;
}

#endif
