/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every model is a stack of dense layers with ReLU between them and a softmax
 * cross-entropy on top; a character model has an embedding below. So one structure serves
 * all, and a spec is parsed into it:
 *
 *     softmax        dense(features, classes)
 *     mlp:256,128    dense(features, 256) ReLU dense(256, 128) ReLU dense(128, classes)
 *     logreg         softmax over two classes: the logistic function of their difference
 *     charlm:C,E,H   embed(symbols, E) of C symbols, dense(C E, H) ReLU dense(H, symbols)
 */
#include "client/models/model.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "client/models/layers.h"

#define WIDTH_MAX (1u << 20)

struct tern_workspace {
	size_t rows;
	float *input; /* text: embeddings of the context, and their gradient */
	float *dinput;
	float *y[TERN_LAYERS_MAX];  /* outputs of the layers */
	float *dy[TERN_LAYERS_MAX]; /* gradients of the outputs */
};

/* ---- specs ---- */

static int fail(struct tern_data_error *error, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
static int fail(struct tern_data_error *error, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(error->text, sizeof(error->text), fmt, ap);
	va_end(ap);
	return -EINVAL;
}

/* Parses "NAME:a,b,c" into widths. Returns how many there are. */
static int parse_widths(const char *spec, const char *name, size_t *widths, unsigned max,
	struct tern_data_error *error)
{
	const char *p = spec + strlen(name);
	unsigned n = 0;

	if (*p != ':')
		return 0;
	do {
		char *end;
		unsigned long v = strtoul(p + 1, &end, 10);

		if (!isdigit((unsigned char)p[1]) || v < 1 || v > WIDTH_MAX)
			return fail(error, "expected a width from 1 to %u at \"%.40s\"",
				WIDTH_MAX, p + 1);
		if (n == max)
			return fail(error, "expected at most %u widths", max);
		widths[n++] = v;
		p = end;
	} while (*p == ',');
	if (*p)
		return fail(error, "expected a comma at \"%.40s\"", p);
	return (int)n;
}

static bool named(const char *spec, const char *name)
{
	size_t n = strlen(name);

	return strncmp(spec, name, n) == 0 && (spec[n] == 0 || spec[n] == ':');
}

static int unknown(struct tern_data_error *error)
{
	return fail(error, "expected softmax, logreg, mlp:WIDTH[,WIDTH...] or "
			   "charlm:CONTEXT,EMBED,HIDDEN");
}

int tern_model_context(const char *spec, struct tern_data_error *error)
{
	size_t widths[TERN_LAYERS_MAX];
	int n;

	if (named(spec, "charlm")) {
		n = parse_widths(spec, "charlm", widths, 3, error);
		if (n >= 0 && n != 3)
			return fail(error, "expected charlm:CONTEXT,EMBED,HIDDEN");
		return n < 0 ? n : (int)widths[0];
	}
	if (named(spec, "mlp")) {
		n = parse_widths(spec, "mlp", widths, TERN_LAYERS_MAX - 1, error);
		if (n == 0)
			return fail(error, "expected mlp:WIDTH[,WIDTH...]");
		return n < 0 ? n : 0;
	}
	return strcmp(spec, "softmax") == 0 || strcmp(spec, "logreg") == 0
		       ? 0
		       : unknown(error);
}

/* ---- building ---- */

static uint64_t add_param(struct tern_model *m, const char *layer, const char *what,
	uint64_t rows, uint64_t columns, float scale)
{
	char *name = m->names[m->param_count];
	struct tern_param *p = &m->params[m->param_count++];

	snprintf(name, sizeof(m->names[0]), "%s.%s", layer, what);
	p->name = name;
	p->shape = tern_shape_1d(TERN_F32, rows);
	if (columns) {
		p->shape.rank = 2;
		p->shape.dims[1] = columns;
	}
	p->first = m->size;
	p->count = rows * (columns ? columns : 1);
	if (scale > 0) {
		p->init = TERN_INIT_UNIFORM;
		p->a = -scale;
		p->b = scale;
	}
	m->size += p->count;
	return p->first;
}

/* Initial weights are uniform, with the variance 2 / in before a ReLU (He et al.
 * 2015), and else 2 / (in + out) (Glorot, Bengio 2010); biases are zero. */
static void add_dense(struct tern_model *m, size_t in, size_t out, bool relu)
{
	struct tern_layer *l = &m->layers[m->layer_count++];
	float fan = relu ? (float)in : (float)(in + out);
	char name[16];

	snprintf(name, sizeof(name), "fc%u", m->layer_count);
	*l = (struct tern_layer){.in = in, .out = out, .relu = relu};
	l->w = add_param(m, name, "weight", in, out, sqrtf(6.0f / fan));
	l->b = add_param(m, name, "bias", out, 0, 0);
}

static void add_stack(struct tern_model *m, size_t in, const size_t *hidden, int count)
{
	for (int i = 0; i < count; i++) {
		add_dense(m, in, hidden[i], true);
		in = hidden[i];
	}
	add_dense(m, in, m->classes, false);
}

static int build_text(struct tern_model *m, const char *spec,
	const struct tern_dataset *data, struct tern_data_error *error)
{
	size_t widths[3];

	if (data->kind != TERN_DATA_TEXT)
		return fail(error, "it needs text, but the data are labelled records");
	if (tern_model_context(spec, error) < 0)
		return -EINVAL;
	parse_widths(spec, "charlm", widths, 3, error);
	if (widths[0] != data->width)
		return fail(error,
			"the data were read with a context of %u characters, not %zu",
			data->width, widths[0]);
	m->text = true;
	m->context = widths[0];
	m->embed = widths[1];
	m->symbols = data->class_count;
	add_param(m, "embed", "weight", m->symbols, m->embed, 0.1f);
	add_stack(m, m->context * m->embed, &widths[2], 1);
	return 0;
}

static int build(struct tern_model *m, const char *spec, const struct tern_dataset *data,
	struct tern_data_error *error)
{
	size_t widths[TERN_LAYERS_MAX];
	int context = tern_model_context(spec, error), n = 0;

	if (context < 0)
		return context;
	m->features = data->width;
	m->classes = data->class_count;
	if (context > 0)
		return build_text(m, spec, data, error);
	if (data->kind != TERN_DATA_DENSE)
		return fail(error, "it needs labelled records, but the data are text");
	if (strcmp(spec, "logreg") == 0 && data->class_count != 2)
		return fail(error, "it needs two classes, but the data have %u",
			data->class_count);
	if (named(spec, "mlp"))
		n = parse_widths(spec, "mlp", widths, TERN_LAYERS_MAX - 1, error);
	add_stack(m, m->features, widths, n);
	return 0;
}

int tern_model_new(const char *spec, const struct tern_dataset *data,
	struct tern_model **out, struct tern_data_error *error)
{
	struct tern_model *m = calloc(1, sizeof(*m));
	int r;

	if (!m)
		return -ENOMEM;
	r = build(m, spec, data, error);
	if (r < 0)
		free(m);
	else
		*out = m;
	return r;
}

void tern_model_free(struct tern_model *model)
{
	free(model);
}

const struct tern_param *tern_model_params(const struct tern_model *model, size_t *count)
{
	*count = model->param_count;
	return model->params;
}

uint64_t tern_model_size(const struct tern_model *model)
{
	return model->size;
}

void tern_model_record(const struct tern_model *model, size_t *floats, size_t *symbols)
{
	*floats = model->text ? 0 : model->features;
	*symbols = model->text ? model->context : 0;
}

/* ---- room ---- */

static float *room(size_t rows, size_t width)
{
	return aligned_alloc(64, tern_align_up(rows * width * sizeof(float) + 1, 64));
}

struct tern_workspace *tern_workspace_new(const struct tern_model *m, size_t rows)
{
	struct tern_workspace *ws = calloc(1, sizeof(*ws));
	bool good = ws;

	if (!ws)
		return NULL;
	ws->rows = rows;
	if (m->text) {
		ws->input = room(rows, m->context * m->embed);
		ws->dinput = room(rows, m->context * m->embed);
		good = ws->input && ws->dinput;
	}
	for (unsigned i = 0; i < m->layer_count; i++) {
		ws->y[i] = room(rows, m->layers[i].out);
		ws->dy[i] = room(rows, m->layers[i].out);
		good = good && ws->y[i] && ws->dy[i];
	}
	if (good)
		return ws;
	tern_workspace_free(ws);
	return NULL;
}

void tern_workspace_free(struct tern_workspace *ws)
{
	if (!ws)
		return;
	for (unsigned i = 0; i < TERN_LAYERS_MAX; i++) {
		free(ws->y[i]);
		free(ws->dy[i]);
	}
	free(ws->input);
	free(ws->dinput);
	free(ws);
}

/* ---- forward and backward ---- */

static const float *input_of(const struct tern_model *m, const struct tern_kernels *k,
	const float *params, const struct tern_batch *batch, struct tern_workspace *ws)
{
	tern_assert(batch->rows <= ws->rows);
	if (!m->text)
		return batch->x;
	k->embed_forward(ws->input, params + m->params[0].first, batch->ids,
		batch->rows * m->context, m->embed);
	return ws->input;
}

/* Computes the logits. */
static float *forward(const struct tern_model *m, const struct tern_kernels *k,
	const float *params, const float *x, size_t rows, struct tern_workspace *ws)
{
	for (unsigned i = 0; i < m->layer_count; i++) {
		const struct tern_layer *l = &m->layers[i];

		k->dense_forward(ws->y[i], x, params + l->w, params + l->b, rows, l->in,
			l->out, l->relu);
		x = ws->y[i];
	}
	return ws->y[m->layer_count - 1];
}

struct tern_result tern_model_gradient(const struct tern_model *m,
	const struct tern_kernels *k, const float *params, float *grads,
	const struct tern_batch *batch, struct tern_workspace *ws,
	void (*ready)(void *arg, uint64_t first, uint64_t count), void *arg)
{
	const float *input = input_of(m, k, params, batch, ws);
	const float *logits = forward(m, k, params, input, batch->rows, ws);
	unsigned top = m->layer_count - 1;
	struct tern_result r;

	r.loss = k->softmax_xent(
		ws->dy[top], logits, batch->labels, batch->rows, m->classes, &r.correct);
	for (unsigned i = top + 1; i-- > 0;) {
		const struct tern_layer *l = &m->layers[i];
		float *dx = i > 0 ? ws->dy[i - 1] : ws->dinput;

		k->dense_backward(dx, grads + l->w, grads + l->b, ws->dy[i], ws->y[i],
			i > 0 ? ws->y[i - 1] : input, params + l->w, batch->rows, l->in,
			l->out, l->relu);
		if (ready)
			ready(arg, l->w, l->b + l->out - l->w);
	}
	if (m->text) {
		k->embed_backward(grads + m->params[0].first, ws->dinput, batch->ids,
			batch->rows * m->context, m->embed, m->symbols);
		if (ready)
			ready(arg, m->params[0].first, m->params[0].count);
	}
	return r;
}

struct tern_result tern_model_evaluate(const struct tern_model *m,
	const struct tern_kernels *k, const float *params, const struct tern_batch *batch,
	struct tern_workspace *ws, float *scores)
{
	const float *input = input_of(m, k, params, batch, ws);
	const float *logits = forward(m, k, params, input, batch->rows, ws);
	struct tern_result r;

	r.loss = k->softmax_xent(
		NULL, logits, batch->labels, batch->rows, m->classes, &r.correct);
	for (size_t i = 0; scores && m->classes == 2 && i < batch->rows; i++)
		scores[i] = logits[2 * i + 1] - logits[2 * i];
	return r;
}

int32_t tern_model_sample(const struct tern_model *m, const struct tern_kernels *k,
	const float *params, const int32_t *ids, float temperature, float u,
	struct tern_workspace *ws)
{
	const struct tern_batch batch = {.rows = 1, .ids = (int32_t *)(uintptr_t)ids};
	const float *input = input_of(m, k, params, &batch, ws);

	return tern_model_draw(m, forward(m, k, params, input, 1, ws), temperature, u);
}

int32_t tern_model_draw(
	const struct tern_model *m, const float *logits, float temperature, float u)
{
	float top = logits[0];
	double sum = 0, left;

	for (size_t i = 1; i < m->classes; i++)
		top = fmaxf(top, logits[i]);
	for (size_t i = 0; i < m->classes; i++)
		sum += exp((double)((logits[i] - top) / temperature));
	left = (double)u * sum;
	for (size_t i = 0; i + 1 < m->classes; i++) {
		left -= exp((double)((logits[i] - top) / temperature));
		if (left < 0)
			return (int32_t)i;
	}
	return (int32_t)m->classes - 1;
}

/* ---- the area under the curve ---- */

struct scored {
	float score;
	int32_t label;
};

static int by_score(const void *a, const void *b)
{
	float x = ((const struct scored *)a)->score,
	      y = ((const struct scored *)b)->score;

	return (x > y) - (x < y);
}

/* Computed by ranks (Mann, Whitney 1947): the probability that a random positive
 * scores above a random negative. Equal scores share their mean rank. */
double tern_auc(const float *scores, const int32_t *labels, size_t count)
{
	struct scored *all = malloc(count * sizeof(*all) + 1);
	double positives = 0, rank_sum = 0;

	if (!all)
		return NAN;
	for (size_t i = 0; i < count; i++) {
		all[i] = (struct scored){scores[i], labels[i]};
		positives += labels[i] == 1;
	}
	qsort(all, count, sizeof(*all), by_score);
	for (size_t i = 0, j; i < count; i = j) {
		double rank;

		for (j = i + 1; j < count && all[j].score == all[i].score;)
			j++;
		rank = 0.5 * (double)(i + 1 + j);
		for (size_t l = i; l < j; l++)
			rank_sum += all[l].label == 1 ? rank : 0;
	}
	free(all);
	if (positives == 0 || positives == (double)count)
		return NAN;
	return (rank_sum - positives * (positives + 1) / 2) /
	       (positives * ((double)count - positives));
}
