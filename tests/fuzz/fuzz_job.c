/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the decoder of the job description that a worker sends to a server. A job that is
 * decoded, encoded and decoded again must not differ. */
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "ps/job.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char *text = fuzz_copy(data, bytes), *again;
	struct tern_ps_job job, back;
	struct tern_ps_text why = {{0}};

	if (tern_ps_job_decode(text, bytes, &job, &why) == 0) {
		again = tern_ps_job_encode(&job);
		tern_assert(again);
		tern_assert(tern_ps_job_decode(again, strlen(again), &back, &why) == 0);
		tern_assert(!tern_ps_job_differs(&job, &back, "it", &why));
		tern_ps_job_fini(&back);
		free(again);
		tern_ps_job_fini(&job);
	} else {
		tern_assert(memchr(why.text, 0, sizeof(why.text)));
	}
	free(text);
	return 0;
}
