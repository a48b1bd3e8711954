/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture and graphs of the simulated driver. While a stream is captured, its work
 * becomes nodes of a graph. A node depends on the stream's last node, and on the events
 * that were recorded in the same capture and for which the stream waits. A launch
 * executes its nodes one at a time, in an order that the seed chooses among those that
 * keep the dependencies.
 *
 * A graph does not change after its capture, so the executable graphs made from it share
 * it.
 */
#include "tests/fakes/cuda/cuda_world.h"

struct fake_graph *fake_graph_get(struct fake_graph *graph)
{
	graph->ref_count++;
	return graph;
}

void fake_graph_put(struct fake_graph *graph)
{
	if (!graph || --graph->ref_count > 0)
		return;
	for (unsigned i = 0; i < graph->node_count; i++) {
		fake_op_free(graph->nodes[i].op);
		free(graph->nodes[i].before);
	}
	free(graph->nodes);
	free(graph);
}

/* ---- capture ---- */

void fake_capture_spoil(struct fake_graph *capture)
{
	capture->invalid = true;
}

/* A call that may wait for the device invalidates a running capture, if the capture's
 * mode forbids such calls. */
CUresult fake_capture_forbids(void)
{
	tern_list_for_each (n, &fake_world.streams) {
		struct fake_graph *capture =
			tern_list_entry(n, struct fake_stream, node)->capture;

		if (!capture || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
			continue;
		if (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
			pthread_equal(capture->thread, pthread_self())) {
			fake_capture_spoil(capture);
			return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	return CUDA_SUCCESS;
}

static void set_tail(struct fake_stream *stream, const unsigned *tail, unsigned count)
{
	unsigned *copy = calloc(count + 1, sizeof(*copy));

	tern_assert(copy);
	for (unsigned i = 0; i < count; i++)
		copy[i] = tail[i];
	free(stream->tail);
	stream->tail = copy;
	stream->tail_count = count;
}

void fake_capture_add(struct fake_stream *stream, struct fake_op *op)
{
	struct fake_graph *graph = stream->capture;
	unsigned index = graph->node_count++;
	struct fake_node *node;

	graph->nodes =
		reallocarray(graph->nodes, graph->node_count, sizeof(*graph->nodes));
	tern_assert(graph->nodes);
	node = &graph->nodes[index];
	/* The last nodes of the stream become the predecessors of the new node. */
	*node = (struct fake_node){
		.op = op, .before = stream->tail, .before_count = stream->tail_count};
	stream->tail = NULL;
	set_tail(stream, &index, 1);
}

void fake_capture_join(struct fake_stream *stream, const struct fake_mark *mark)
{
	unsigned count = stream->tail_count + mark->tail_count;
	unsigned *both = calloc(count + 1, sizeof(*both));

	tern_assert(both);
	if (!stream->capture)
		stream->capture = fake_graph_get(mark->capture);
	for (unsigned i = 0; i < count; i++)
		both[i] = i < stream->tail_count ? stream->tail[i]
						 : mark->tail[i - stream->tail_count];
	set_tail(stream, both, count);
	free(both);
}

void fake_capture_leave(struct fake_stream *stream)
{
	if (!stream->capture)
		return;
	fake_capture_spoil(stream->capture);
	if (stream->capture->origin == stream)
		stream->capture->origin = NULL;
	fake_graph_put(stream->capture);
	stream->capture = NULL;
	set_tail(stream, NULL, 0);
}

static CUresult stream_begin_capture(CUstream handle, CUstreamCaptureMode mode)
{
	FAKE_ENTER_CTX("stream_begin_capture");
	struct fake_stream *stream = fake_stream_of(handle);
	struct fake_graph *graph;
	(void)device;
	if (stream->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	graph = calloc(1, sizeof(*graph));
	tern_assert(graph);
	graph->ref_count = 1;
	graph->origin = stream;
	graph->mode = mode;
	graph->thread = pthread_self();
	stream->capture = graph;
	set_tail(stream, NULL, 0);
	return CUDA_SUCCESS;
}

/* True if every captured branch is joined to the stream with which the capture began. */
static bool is_joined(const struct fake_graph *graph, const struct fake_stream *origin)
{
	bool *seen = calloc(graph->node_count + 1, sizeof(*seen));
	bool all = true;

	tern_assert(seen);
	for (unsigned i = 0; i < origin->tail_count; i++)
		seen[origin->tail[i]] = true;
	/* One pass backwards suffices: nodes have higher numbers than those that they
	 * depend on. */
	for (unsigned i = graph->node_count; i-- > 0;) {
		all &= seen[i];
		for (unsigned b = 0; b < graph->nodes[i].before_count; b++)
			seen[graph->nodes[i].before[b]] = true;
	}
	free(seen);
	return all;
}

static void end_capture(struct fake_graph *graph)
{
	graph->origin = NULL;
	tern_list_for_each (n, &fake_world.streams) {
		struct fake_stream *stream = tern_list_entry(n, struct fake_stream, node);

		if (stream->capture != graph)
			continue;
		fake_graph_put(graph);
		stream->capture = NULL;
		set_tail(stream, NULL, 0);
	}
}

static struct fake_graph_handle *handle_new(
	struct fake_graph *graph, struct tern_list *list)
{
	struct fake_graph_handle *handle = calloc(1, sizeof(*handle));

	tern_assert(handle);
	handle->graph = fake_graph_get(graph);
	tern_list_push(list, &handle->node);
	return handle;
}

static void handle_free(struct fake_graph_handle *handle)
{
	fake_graph_put(handle->graph);
	tern_list_remove(&handle->node);
	free(handle);
}

static CUresult stream_end_capture(CUstream stream_handle, CUgraph *out)
{
	FAKE_ENTER_CTX("stream_end_capture");
	struct fake_stream *stream = fake_stream_of(stream_handle);
	struct fake_graph *graph = stream->capture;
	CUresult result = CUDA_SUCCESS;
	(void)device;
	*out = NULL;
	if (!graph)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (graph->origin != stream)
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	if (graph->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
		!pthread_equal(graph->thread, pthread_self()))
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	if (graph->invalid)
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else if (!is_joined(graph, stream))
		result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	else
		*out = (CUgraph)(void *)handle_new(graph, &fake_world.graphs);
	end_capture(graph);
	return result;
}

/* ---- graphs ---- */

static struct fake_graph_handle *handle_of(const void *handle, struct tern_list *list)
{
	tern_list_for_each (n, list) {
		struct fake_graph_handle *one =
			tern_list_entry(n, struct fake_graph_handle, node);

		if (one == handle)
			return one;
	}
	tern_never("fake cuda: not a graph");
}

static CUresult graph_instantiate(
	CUgraphExec *out, CUgraph from, unsigned long long flags)
{
	FAKE_ENTER_CTX("graph_instantiate");
	const struct fake_graph_handle *graph = handle_of(from, &fake_world.graphs);
	struct fake_graph_handle *exec;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	exec = handle_new(graph->graph, &fake_world.graph_execs);
	exec->device = device;
	*out = (CUgraphExec)(void *)exec;
	return CUDA_SUCCESS;
}

static CUresult graph_launch(CUgraphExec handle, CUstream stream)
{
	FAKE_ENTER_CTX("graph_launch");
	const struct fake_graph_handle *exec = handle_of(handle, &fake_world.graph_execs);
	struct fake_op *op = fake_op_new(FAKE_OP_GRAPH);
	(void)device;
	op->run = fake_run_new(exec->graph, fake_stream_of(stream));
	fake_stream_put(fake_stream_of(stream), op);
	return CUDA_SUCCESS;
}

static CUresult graph_destroy(CUgraph handle)
{
	FAKE_ENTER_CTX("graph_destroy");
	(void)device;
	handle_free(handle_of(handle, &fake_world.graphs));
	return CUDA_SUCCESS;
}

static CUresult graph_exec_destroy(CUgraphExec handle)
{
	FAKE_ENTER_CTX("graph_exec_destroy");
	(void)device;
	handle_free(handle_of(handle, &fake_world.graph_execs));
	return CUDA_SUCCESS;
}

/* Graphs belong to no context. Executable graphs that were made for a corrupted context
 * are freed with it. */
void fake_graph_execs_drop(struct fake_device *device)
{
	tern_list_for_each_safe (n, &fake_world.graph_execs) {
		struct fake_graph_handle *exec =
			tern_list_entry(n, struct fake_graph_handle, node);

		if (exec->device == device)
			handle_free(exec);
	}
}

static bool is_ready(const struct fake_node *node, const bool *done)
{
	for (unsigned i = 0; i < node->before_count; i++) {
		if (!done[node->before[i]])
			return false;
	}
	return true;
}

/* Chooses one of the nodes whose dependencies are all done. */
static unsigned choose(const struct fake_graph *graph, const bool *done)
{
	unsigned start = (unsigned)tern_rng_below(&fake_world.rng, graph->node_count);

	for (unsigned i = 0; i < graph->node_count; i++) {
		unsigned n = (start + i) % graph->node_count;

		if (!done[n] && is_ready(&graph->nodes[n], done))
			return n;
	}
	tern_never("fake cuda: nodes of a graph depend on each other in a circle");
}

struct fake_run *fake_run_new(struct fake_graph *graph, struct fake_stream *stream)
{
	struct fake_run *run = calloc(1, sizeof(*run));

	tern_assert(run);
	run->graph = fake_graph_get(graph);
	run->left = graph->node_count;
	run->done = calloc(graph->node_count + 1, sizeof(*run->done));
	run->marks = calloc(graph->node_count + 1, sizeof(struct fake_mark *));
	tern_assert(run->done && run->marks);
	for (unsigned i = 0; i < graph->node_count && !fake_world.opts.late_records;
		i++) {
		const struct fake_op *op = graph->nodes[i].op;

		if (op->kind == FAKE_OP_RECORD)
			run->marks[i] = fake_event_mark(op->event, stream);
	}
	return run;
}

void fake_run_free(struct fake_run *run)
{
	if (!run)
		return;
	for (unsigned i = 0; i < run->graph->node_count; i++) {
		if (run->marks[i])
			fake_mark_done(run->marks[i]);
		fake_mark_put(run->marks[i]);
	}
	fake_graph_put(run->graph);
	free(run->done);
	free(run->marks);
	free(run);
}

CUresult fake_run_step(struct fake_run *run)
{
	unsigned n;

	if (run->left == 0)
		return CUDA_SUCCESS;
	n = choose(run->graph, run->done);
	run->done[n] = true;
	run->left--;
	if (run->graph->nodes[n].op->kind != FAKE_OP_RECORD)
		return fake_op_do(run->graph->nodes[n].op);
	if (run->marks[n])
		fake_mark_done(run->marks[n]);
	return CUDA_SUCCESS;
}

bool fake_graph_touches(const struct fake_graph *graph, const struct fake_mem *mem)
{
	for (unsigned i = 0; i < graph->node_count; i++) {
		if (fake_op_touches(graph->nodes[i].op, mem))
			return true;
	}
	return false;
}

void fake_graph_entries(struct tern_cuda_api *api)
{
	api->stream_begin_capture = stream_begin_capture;
	api->stream_end_capture = stream_end_capture;
	api->graph_instantiate = graph_instantiate;
	api->graph_launch = graph_launch;
	api->graph_destroy = graph_destroy;
	api->graph_exec_destroy = graph_exec_destroy;
}
