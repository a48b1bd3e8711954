/* SPDX-License-Identifier: Apache-2.0 */
/* What a model is, for those that compute it elsewhere than model.c does: the engines of
 * other devices. */
#ifndef TERN_CLIENT_MODELS_INTERNAL_H
#define TERN_CLIENT_MODELS_INTERNAL_H

#include "client/models/model.h"

#define TERN_LAYERS_MAX 16u

/* A dense layer. In the flat vector its bias follows its weights. */
struct tern_layer {
	size_t in, out;
	uint64_t w, b; /* where they lie in the flat vector */
	bool relu;
};

struct tern_model {
	bool text;
	size_t context, embed, symbols; /* text only */
	size_t features, classes;
	struct tern_layer layers[TERN_LAYERS_MAX];
	unsigned layer_count;
	struct tern_param params[2 * TERN_LAYERS_MAX + 1]; /* text: the embedding first */
	size_t param_count;
	uint64_t size;
};

/* What `sample` makes of logits[classes]. */
int32_t tern_model_draw(
	const struct tern_model *model, const float *logits, float temperature, float u);

#endif
