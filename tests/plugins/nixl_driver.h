/* SPDX-License-Identifier: Apache-2.0 */
/* Calls the plug-in for NIXL as NIXL's agent does, without NIXL, for tests in C. */
#ifndef TERN_TESTS_PLUGINS_NIXL_DRIVER_H
#define TERN_TESTS_PLUGINS_NIXL_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct nixl_agent;
struct nixl_handle;
struct nixl_region;

struct nixl_range {
	struct nixl_region *local, *remote;
	const void *at;
	uintptr_t remote_at;
	size_t bytes;
};

/* Opens the library. NULL, or why not. With *plugin NULL the plug-in has refused. */
const char *nixl_open(const char *path, void **plugin);
/* NULL: the plug-in has refused. `parameter`: name of one; NULL: none. */
struct nixl_agent *nixl_agent_new(void *plugin, const char *name, const char *parameter);
void nixl_agent_free(struct nixl_agent *a);
/* Texts live until the agent or the region is freed. */
const char *nixl_info(struct nixl_agent *a);
const char *nixl_text(const struct nixl_region *r);

/* All return NIXL's status. */
int nixl_register(struct nixl_agent *a, void *base, size_t bytes, bool gpu,
	struct nixl_region **out);
int nixl_deregister(struct nixl_agent *a, struct nixl_region *r);
int nixl_load_info(struct nixl_agent *a, const char *name, const char *info);
int nixl_load(struct nixl_agent *a, const char *name, const char *text, uintptr_t base,
	size_t bytes, struct nixl_region **out);
int nixl_unload(struct nixl_agent *a, struct nixl_region *r);
int nixl_connect(struct nixl_agent *a, const char *name);
int nixl_disconnect(struct nixl_agent *a, const char *name);
int nixl_prepare(struct nixl_agent *a, const char *name, bool write,
	const struct nixl_range *ranges, size_t count, struct nixl_handle **out);
int nixl_post(struct nixl_handle *h, const void *note, size_t bytes);
int nixl_check(struct nixl_handle *h);
/* The handle is freed if the status is 0. */
int nixl_release(struct nixl_handle *h);
int nixl_notify(struct nixl_agent *a, const char *name, const void *data, size_t bytes);
/* Calls take() for each notification that has arrived. */
int nixl_take(struct nixl_agent *a,
	void (*take)(void *arg, const char *name, const void *data, size_t bytes),
	void *arg);

#ifdef __cplusplus
}
#endif
#endif
