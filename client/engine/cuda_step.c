/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computes a gradient. The first one uses plain launches (cuBLAS loads its code then).
 * Later ones are captured into a graph, once for each combination of the addresses of
 * parameters and gradients and the number of rows, of which there are few, and replayed
 * with one call; where no graph is possible (graph_for()), they stay plain launches. The
 * same work is queued either way, so the bits are equal.
 *
 * A part of the gradient is reported as final when its event says that it is in the
 * caller's memory. In a graph this is an "external" event, which each launch records
 * anew. Until a launch has recorded it, the event still says that the previous launch has
 * copied the part. So the thread also checks a word that is copied after the part, and
 * spins until the word has arrived.
 */
#include "client/engine/cuda_internal.h"

#include <errno.h>

#include "base/util.h"

/* ---- graphs ---- */

void cuda_graphs_free(struct cuda_engine *e)
{
	while (e->graph_count > 0)
		e->gpu.api->graph_exec_destroy(e->graphs[--e->graph_count].exec);
}

static void end_capture(struct cuda_engine *e, CUgraph *graph)
{
	CUresult result = e->gpu.api->stream_end_capture(e->compute, graph);

	/* End the capture in any case: an open one would also capture the plain
	 * launches that follow. */
	if (result && e->gpu.api->stream_end_capture(e->compute, graph) == CUDA_SUCCESS)
		result = CUDA_SUCCESS;
	CUDA_DO(e, result, "capturing a graph");
}

static void capture(struct cuda_engine *e, const struct cuda_pass *pass)
{
	const struct tern_cuda_api *api = e->gpu.api;
	struct cuda_pass captured = *pass;
	struct cuda_graph *g = &e->graphs[e->graph_count];
	CUgraph graph = NULL;

	captured.capturing = true;
	CUDA_DO(e,
		api->stream_begin_capture(
			e->compute, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
		"capturing a graph");
	if (e->status < 0)
		return;
	cuda_put_gradient(e, &captured);
	end_capture(e, &graph);
	CUDA_DO(e, api->graph_instantiate(&g->exec, graph, 0), "making a graph");
	if (graph)
		api->graph_destroy(graph);
	if (e->status < 0)
		return;
	g->fresh = pass->fresh;
	g->grads = pass->grads;
	g->rows = pass->rows;
	e->graph_count++;
}

static const struct cuda_graph *find(
	const struct cuda_engine *e, const struct cuda_pass *pass)
{
	for (unsigned i = 0; i < e->graph_count; i++) {
		const struct cuda_graph *g = &e->graphs[i];

		if (g->fresh == pass->fresh && g->grads == pass->grads &&
			g->rows == pass->rows)
			return g;
	}
	return NULL;
}

/* Number of captures that must fail in a row before graphs are switched off. A first one
 * may fail because the driver loads a kernel at its first use, which it cannot do within
 * a capture: the plain launches that follow load it. */
#define CAPTURES_MOST 2u

/* The graph for this pass; NULL: use plain launches. */
static const struct cuda_graph *graph_for(
	struct cuda_engine *e, const struct cuda_pass *pass)
{
	const struct cuda_graph *g = find(e, pass);

	if (g || !e->warm || e->graphs_off || e->pageable ||
		e->graph_count == CUDA_GRAPHS_MAX)
		return g;
	capture(e, pass);
	if (e->status == 0) {
		e->failed_captures = 0;
		return find(e, pass);
	}
	if (e->status == -ENOTRECOVERABLE)
		return NULL;
	e->status = 0;
	if (++e->failed_captures == CAPTURES_MOST) {
		e->graphs_off = true;
		cuda_note(e, "without CUDA graphs: %s", e->gpu.error);
	}
	return NULL;
}

static void launch(struct cuda_engine *e, const struct cuda_pass *pass)
{
	const struct cuda_graph *g = graph_for(e, pass);

	if (g)
		CUDA_DO(e, e->gpu.api->graph_launch(g->exec, e->compute),
			"launching a graph");
	else
		cuda_put_gradient(e, pass);
}

/* ---- progress ---- */

static void wait_for_all(struct cuda_engine *e)
{
	CUDA_DO(e, e->gpu.api->stream_synchronize(e->compute), "computing");
}

/* Acquire: the part's copy was written before the word that follows it. */
static bool is_seen(struct cuda_engine *e, unsigned part)
{
	return atomic_load_explicit(&e->words->seen[part], memory_order_acquire) == 1;
}

static void wait_for_part(struct cuda_engine *e, unsigned part)
{
	CUDA_DO(e, tern_cuda_wait(e->gpu.api, e->parts[part].down), "computing");
	if (e->status == 0 && !is_seen(e, part))
		e->engine.late_events++;
	while (e->status == 0 && !is_seen(e, part)) {
		CUresult result = e->gpu.api->stream_query(e->compute);

		if (result != CUDA_ERROR_NOT_READY) {
			CUDA_DO(e, result, "computing");
			return;
		}
		tern_cpu_relax();
	}
}

static void follow_progress(struct cuda_engine *e,
	void (*ready)(void *arg, uint64_t first, uint64_t count), void *arg)
{
	for (unsigned i = e->part_count; i-- > 0 && e->status == 0;) {
		wait_for_part(e, i);
		if (e->status == 0 && ready)
			ready(arg, e->parts[i].first, e->parts[i].count);
	}
	wait_for_all(e);
}

int cuda_gradient(struct tern_engine *engine, const struct tern_engine_params *params,
	float *grads, void (*ready)(void *arg, uint64_t first, uint64_t count), void *arg,
	struct tern_result *result)
{
	struct cuda_engine *e = tern_container_of(engine, struct cuda_engine, engine);
	const struct cuda_pass pass = {.rows = engine->batch.rows,
		.fresh = cuda_fresh(e, params),
		.grads = grads};

	tern_assert(pass.rows <= engine->rows);
	if (cuda_enter(e) < 0)
		return e->status;
	for (unsigned i = 0; i < e->part_count; i++)
		atomic_store_explicit(&e->words->seen[i], 0, memory_order_relaxed);
	launch(e, &pass);
	follow_progress(e, ready, arg);
	e->warm = true;
	result->loss = e->words->result.loss;
	result->correct = e->words->result.correct;
	return cuda_leave(e, params);
}
