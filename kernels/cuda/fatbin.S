/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU's code for all devices (kernels.cu), as nvcc made it: the build defines FATBIN, the
 * path of the code, and NAME, the symbol of its first byte. */
	.section .rodata
	.balign 64
	.global NAME
	.hidden NAME
	.type NAME, %object
NAME:
	.incbin FATBIN
	.size NAME, . - NAME
	.section .note.GNU-stack, "", %progbits
