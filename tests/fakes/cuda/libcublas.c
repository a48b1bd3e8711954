/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated libcublas without contents: the cuBLAS functions are in libcuda.c, and this
 * library links with it. */
extern int cublasCreate_v2(void **handle);
extern int (*const tern_fake_libcublas)(void **handle);
int (*const tern_fake_libcublas)(void **handle) = cublasCreate_v2;
