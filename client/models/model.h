/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models: a spec string and the shape of the data determine a list of parameters and some
 * pure functions over flat arrays. The parameters of a model are adjacent in one vector
 * of floats, in the order of the forward pass, so that a chunk is a plain range.
 */
#ifndef TERN_CLIENT_MODEL_H
#define TERN_CLIENT_MODEL_H

#include <tern/types.h>

#include "client/data/dataset.h"
#include "kernels/kernels.h"
#include "ps/param.h"

struct tern_model;

/*
 * Makes a model. spec: "softmax", "mlp:256,128" (hidden widths), "logreg" (two classes),
 * "charlm:C,E,H" (context, embedding width, hidden width). -EINVAL, with error->text:
 * what is wrong in the spec, or why the data does not suit it; -ENOMEM.
 */
int tern_model_new(const char *spec, const struct tern_dataset *data,
	struct tern_model **out, struct tern_data_error *error);
void tern_model_free(struct tern_model *model);

/* Number of context symbols of the spec (an argument of tern_dataset_read): 0 unless
 * charlm. -EINVAL with error->text: the spec is invalid. */
int tern_model_context(const char *spec, struct tern_data_error *error);

const struct tern_param *tern_model_params(const struct tern_model *model, size_t *count);
/* Number of elements of all parameters. */
uint64_t tern_model_size(const struct tern_model *model);
/* Size of one record: a number of floats or a number of symbols; the other is 0. */
void tern_model_record(const struct tern_model *model, size_t *floats, size_t *symbols);

/* Makes room for the activations of a batch of `rows`. NULL: no memory. */
struct tern_workspace;
struct tern_workspace *tern_workspace_new(const struct tern_model *model, size_t rows);
void tern_workspace_free(struct tern_workspace *workspace);

struct tern_result {
	double loss;    /* summed over the rows */
	size_t correct; /* rows whose class was predicted correctly */
};

/*
 * Computes the mean gradient over the batch into grads[size]. Whenever more of it is
 * final, ready(arg, first, count) says that grads[first..first+count) will not change any
 * more. Its calls cover each element exactly once, those of the last layer first, since
 * back-propagation begins there. ready may be NULL.
 */
struct tern_result tern_model_gradient(const struct tern_model *model,
	const struct tern_kernels *kernels, const float *params, float *grads,
	const struct tern_batch *batch, struct tern_workspace *workspace,
	void (*ready)(void *arg, uint64_t first, uint64_t count), void *arg);

/*
 * Computes the forward pass only. scores may be NULL; else scores[rows] gets the log-odds
 * of the second class (two-class models), for the AUC.
 */
struct tern_result tern_model_evaluate(const struct tern_model *model,
	const struct tern_kernels *kernels, const float *params,
	const struct tern_batch *batch, struct tern_workspace *workspace, float *scores);

/* Area under the ROC curve; ties count half. Labels are 0 or 1. NAN: a class is
 * missing, or there is no memory. */
double tern_auc(const float *scores, const int32_t *labels, size_t count);

/*
 * charlm only: draws the next symbol after the context ids[width], with this
 * `temperature`, from the random number u in [0, 1). */
int32_t tern_model_sample(const struct tern_model *model,
	const struct tern_kernels *kernels, const float *params, const int32_t *ids,
	float temperature, float u, struct tern_workspace *workspace);

#endif
