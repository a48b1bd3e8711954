/* SPDX-License-Identifier: Apache-2.0 */
/* See version.h. */
#include "tools/version.h"

#include <stdio.h>

#include <tern/types.h>

#include "rendezvous/wire.h"
#include "tools/commit.h"
#include "tools/fabric.h"
#include "transport/fabric.h"

/* clang also defines the version macros of gcc. */
#if defined(__clang__)
#define COMPILER    "clang"
#define COMPILER_IS __clang_major__, __clang_minor__, __clang_patchlevel__
#else
#define COMPILER    "gcc"
#define COMPILER_IS __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__
#endif

/* Prints the fabrics that this program was built with, in the reverse order of --fabric:
 * first those that work everywhere. */
static void print_fabrics(void)
{
	const char *between = "fabrics   ";

	for (int i = fabric_count() - 1; i > FABRIC_AUTO; i--) {
		if (fabric_row(i)->absent)
			continue;
		printf("%s%s", between, fabric_row(i)->name);
		between = ", ";
	}
	putchar('\n');
}

/* Prints the versions of the protocols between two processes: of the rendezvous session,
 * and of each fabric that has one. */
static void print_wire(void)
{
	printf("wire      session %u", TERN_WIRE_VERSION);
	for (int i = fabric_count() - 1; i > FABRIC_AUTO; i--) {
		const struct tern_fabric_ops *row = fabric_row(i);

		if (row->wire_version)
			printf(", %s %u", row->name, row->wire_version);
	}
	putchar('\n');
}

void version_print(void)
{
	printf("tern %s\n", tern_version());
	printf("commit    %s\n", TERN_COMMIT);
	printf("compiler  " COMPILER " %d.%d.%d\n", COMPILER_IS);
	print_fabrics();
	print_wire();
}
