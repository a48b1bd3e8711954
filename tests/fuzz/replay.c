/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives a fuzz target each input of its corpus once, without libFuzzer. Prints TAP.
 *
 * usage: corpus_NAME FILE, which has an input in hexadecimal digits on each line
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"

/* Returns the value of two hexadecimal digits, -1 if they are none. */
static int byte_of(const char *digits)
{
	const char two[] = {digits[0], digits[1], 0};

	if (strspn(two, "0123456789abcdef") != 2)
		return -1;
	return (int)strtol(two, NULL, 16);
}

/* Turns the line's digits into bytes, in place. Returns how many bytes, -1 if there are
 * other characters. */
static long decode(char *line)
{
	size_t digits = strcspn(line, "\n");

	if (digits % 2 != 0)
		return -1;
	for (size_t i = 0; i < digits; i += 2) {
		int value = byte_of(line + i);

		if (value < 0)
			return -1;
		line[i / 2] = (char)value;
	}
	return (long)(digits / 2);
}

int main(int argc, char **argv)
{
	FILE *file = argc == 2 ? fopen(argv[1], "r") : NULL;
	char *line = NULL;
	size_t room = 0, inputs = 0;

	if (!file) {
		fprintf(stderr, "usage: %s CORPUS\n", argv[0]);
		return 2;
	}
	while (getline(&line, &room, file) >= 0) {
		long bytes = decode(line);
		void *input;

		inputs++;
		if (bytes < 0) {
			fprintf(stderr,
				"%s: line %zu: these are no pairs of hexadecimal "
				"digits\n",
				argv[1], inputs);
			return 1;
		}
		input = fuzz_copy(line, (size_t)bytes);
		LLVMFuzzerTestOneInput(input, (size_t)bytes);
		free(input);
	}
	free(line);
	fclose(file);
	printf("1..1\n%sok 1 - %zu inputs\n", inputs ? "" : "not ", inputs);
	return inputs == 0;
}
