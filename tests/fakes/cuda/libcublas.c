/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated cuBLAS is empty: its functions are in libcuda.c, which it needs. */
extern int cublasCreate_v2(void **handle);
extern int (*const tern_fake_libcublas)(void **handle);
int (*const tern_fake_libcublas)(void **handle) = cublasCreate_v2;
