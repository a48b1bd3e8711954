/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated cuBLAS has nothing of its own: see libcuda.c, which it needs for this. */
extern int cublasCreate_v2(void **handle);
extern int (*const tern_fake_libcublas)(void **handle);
int (*const tern_fake_libcublas)(void **handle) = cublasCreate_v2;
