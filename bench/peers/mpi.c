/* SPDX-License-Identifier: Apache-2.0 */
/* The peer MPI: non-blocking sends and receives. It polls. Options of mpirun choose the
 * transport. */
#include "bench/peers/tagged.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

static MPI_Request *requests;

static void must(const char *what, int status)
{
	char text[MPI_MAX_ERROR_STRING] = "";
	int length;

	if (status != MPI_SUCCESS)
		MPI_Error_string(status, text, &length);
	pair_must(what, status, text);
}

static int mpi_rank(void)
{
	const char *rank = getenv("OMPI_COMM_WORLD_RANK");

	if (!rank)
		pair_die("this program must be started by mpirun");
	return atoi(rank);
}

static void mpi_open(struct pair *p)
{
	must("MPI_Init", MPI_Init(NULL, NULL));
	requests = calloc(2 * p->inflight, sizeof(*requests));
}

static void mpi_close(struct pair *p)
{
	(void)p;
	MPI_Finalize();
}

static void mpi_send(
	struct pair *p, unsigned slot, enum tagged_what what, void *data, size_t bytes)
{
	must("MPI_Isend",
		MPI_Isend(data, (int)bytes, MPI_BYTE, p->sender ? 1 : 0, (int)what,
			MPI_COMM_WORLD, &requests[tagged_index(slot, what)]));
}

static void mpi_receive(
	struct pair *p, unsigned slot, enum tagged_what what, void *data, size_t bytes)
{
	must("MPI_Irecv",
		MPI_Irecv(data, (int)bytes, MPI_BYTE, p->sender ? 1 : 0, (int)what,
			MPI_COMM_WORLD, &requests[tagged_index(slot, what)]));
}

static void mpi_wait(struct pair *p, unsigned slot, enum tagged_what what)
{
	(void)p;
	must("MPI_Wait",
		MPI_Wait(&requests[tagged_index(slot, what)], MPI_STATUS_IGNORE));
}

/* Looks for a message, although none is there: MPI makes progress in this call. */
static void progress(struct pair *p)
{
	int found;

	must("MPI_Iprobe", MPI_Iprobe(p->sender ? 1 : 0, MPI_ANY_TAG, MPI_COMM_WORLD,
				   &found, MPI_STATUS_IGNORE));
}

static const char *mpi_version(void)
{
	static char text[MPI_MAX_LIBRARY_VERSION_STRING];
	int length;

	MPI_Get_library_version(text, &length);
	text[strcspn(text, ",")] = '\0';
	return text;
}

int main(int argc, char **argv)
{
	return tagged_main(argc, argv,
		&(struct pair_ops){.name = "OpenMPI",
			.variants = "",
			.waits = "poll",
			.version = mpi_version,
			.rank = mpi_rank,
			.open = mpi_open,
			.close = mpi_close},
		&(struct tagged_ops){mpi_send, mpi_receive, mpi_wait, progress});
}
