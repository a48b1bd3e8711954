/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU's code for all devices (kernels.cu), as nvcc made it: the build defines FATBIN. */
	.section .rodata
	.balign 64
	.global tern_fatbin
	.hidden tern_fatbin
	.type tern_fatbin, %object
tern_fatbin:
	.incbin FATBIN
	.size tern_fatbin, . - tern_fatbin
	.section .note.GNU-stack, "", %progbits
