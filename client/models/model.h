/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models: a spec string and the shape of the data give a list of parameters and two pure
 * functions over flat arrays. The parameters of a model lie one after the other in one
 * vector of floats, in the order of the forward pass, so that a chunk is a plain range.
 */
#ifndef TERN_CLIENT_MODEL_H
#define TERN_CLIENT_MODEL_H

#include <tern/types.h>

#include "client/data/dataset.h"
#include "kernels/kernels.h"
#include "ps/param.h"

struct tern_model;

/*
 * spec: "softmax", "mlp:256,128" (hidden widths), "logreg" (two classes), "charlm:C,E,H"
 * (context, embedding width, hidden width). -EINVAL with error->text naming what is wrong
 * in the spec, or that the data does not suit it.
 */
int tern_model_new(const char *spec, const struct tern_dataset *data,
	struct tern_model **out, struct tern_data_error *error);
void tern_model_free(struct tern_model *model);

/* Symbols of context that the spec asks for (what tern_dataset_read needs): 0 unless
 * charlm. -EINVAL with error->text: not a spec. */
int tern_model_context(const char *spec, struct tern_data_error *error);

const struct tern_param *tern_model_params(const struct tern_model *model, size_t *count);
uint64_t tern_model_size(const struct tern_model *model); /* elements in all */
/* What one record is: so many floats, or so many symbols; the other is 0. */
void tern_model_record(const struct tern_model *model, size_t *floats, size_t *symbols);

/* Room for activations of a batch of `rows`. NULL: no memory. */
struct tern_workspace;
struct tern_workspace *tern_workspace_new(const struct tern_model *model, size_t rows);
void tern_workspace_free(struct tern_workspace *workspace);

struct tern_result {
	double loss;    /* summed over the rows */
	size_t correct; /* rows whose class was right */
};

/*
 * Mean gradient over the batch into grads[size], every element of it. Each time more of
 * it is final, ready(arg, first) says that grads[first..size) will not change any more
 * (first falls to 0; back-propagation goes from the last layer to the first). ready may
 * be NULL.
 */
struct tern_result tern_model_gradient(const struct tern_model *model,
	const struct tern_kernels *kernels, const float *params, float *grads,
	const struct tern_batch *batch, struct tern_workspace *workspace,
	void (*ready)(void *arg, uint64_t first), void *arg);

/*
 * Forward only. scores may be NULL; else [rows] of the second class's log-odds (two-class
 * models), for the AUC.
 */
struct tern_result tern_model_evaluate(const struct tern_model *model,
	const struct tern_kernels *kernels, const float *params,
	const struct tern_batch *batch, struct tern_workspace *workspace, float *scores);

/* Area under the ROC curve; ties count half. labels 0 or 1. NAN if a class is missing. */
double tern_auc(const float *scores, const int32_t *labels, size_t count);

/*
 * charlm: the next symbol after context ids[width], drawn with `temperature` from u in
 * [0, 1). */
int32_t tern_model_sample(const struct tern_model *model,
	const struct tern_kernels *kernels, const float *params, const int32_t *ids,
	float temperature, float u, struct tern_workspace *workspace);

#endif
