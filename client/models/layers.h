/* SPDX-License-Identifier: Apache-2.0 */
/* The structure of a model, for code that computes it elsewhere than model.c: the
 * engines of other devices. */
#ifndef TERN_CLIENT_MODELS_LAYERS_H
#define TERN_CLIENT_MODELS_LAYERS_H

#include "client/models/model.h"

#define TERN_LAYERS_MAX 16u

/* A dense layer. In the flat vector its bias follows its weights. */
struct tern_layer {
	size_t in, out;
	uint64_t w, b; /* offsets in the flat vector */
	bool relu;
};

struct tern_model {
	bool text;
	size_t context, embed, symbols; /* for text only */
	size_t features, classes;
	struct tern_layer layers[TERN_LAYERS_MAX];
	unsigned layer_count;
	/* For text, the embedding comes first. */
	struct tern_param params[2 * TERN_LAYERS_MAX + 1];
	char names[2 * TERN_LAYERS_MAX + 1][32];
	size_t param_count;
	uint64_t size;
};

/* Draws a symbol from logits[classes], for tern_model_sample(). */
int32_t tern_model_draw(
	const struct tern_model *model, const float *logits, float temperature, float u);

#endif
