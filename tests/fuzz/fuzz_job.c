/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the decoder of the job description that a worker sends to a server. */
#include <stdlib.h>

#include "base/util.h"
#include "ps/job.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char *text = fuzz_copy(data, bytes), *again;
	struct tern_ps_job job;
	struct tern_ps_text why = {{0}};

	if (tern_ps_job_decode(text, bytes, &job, &why) == 0) {
		again = tern_ps_job_encode(&job);
		tern_assert(again);
		free(again);
		tern_ps_job_fini(&job);
	} else {
		tern_assert(memchr(why.text, 0, sizeof(why.text)));
	}
	free(text);
	return 0;
}
