/* SPDX-License-Identifier: Apache-2.0 */
/* Includes all public headers of Tern. */
#ifndef TERN_H
#define TERN_H

#include <tern/types.h>
#include <tern/log.h>
#include <tern/memory.h>
#include <tern/context.h>
#include <tern/channel.h>
#include <tern/window.h>
#include <tern/group.h>

#endif
