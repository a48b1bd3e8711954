/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of the CUDA driver API that Tern calls, one entry each: field of struct
 * tern_cuda_api, name, and version of the signature, which is also the version requested
 * from the driver. The types in the table and the loader's requests are both made from
 * this one list, so they cannot differ: the function that cuGetProcAddress returns for a
 * version has the type PFN_NAME_vVERSION of cudaTypedefs.h.
 *
 * Before including this file, define TERN_CUDA_CALL(field, name, version), and
 * TERN_CUDA_CALL_OPTIONAL for functions that some platforms lack, whose field may be
 * NULL. There is no include guard: the file is included once for each use (the table, the
 * loader, the simulated driver).
 */

/* Texts of errors, in static storage. */
TERN_CUDA_CALL(get_error_name, cuGetErrorName, 6000)
TERN_CUDA_CALL(get_error_string, cuGetErrorString, 6000)

/* Driver and devices. */
TERN_CUDA_CALL(init, cuInit, 2000)
TERN_CUDA_CALL(driver_get_version, cuDriverGetVersion, 2020)
TERN_CUDA_CALL(device_get_count, cuDeviceGetCount, 2000)
TERN_CUDA_CALL(device_get, cuDeviceGet, 2000)
TERN_CUDA_CALL(device_get_name, cuDeviceGetName, 2000)
/* With MIG: UUID of the GPU slice. */
TERN_CUDA_CALL(device_get_uuid, cuDeviceGetUuid, 11040)
TERN_CUDA_CALL(device_get_pci_bus_id, cuDeviceGetPCIBusId, 4010)
TERN_CUDA_CALL(device_total_mem, cuDeviceTotalMem, 3020)
TERN_CUDA_CALL(device_get_attribute, cuDeviceGetAttribute, 2000)

/* Contexts. Tern uses only the primary context of a device, which all libraries in the
 * process share. */
TERN_CUDA_CALL(primary_ctx_retain, cuDevicePrimaryCtxRetain, 7000)
TERN_CUDA_CALL(primary_ctx_release, cuDevicePrimaryCtxRelease, 11000)
TERN_CUDA_CALL(primary_ctx_get_state, cuDevicePrimaryCtxGetState, 7000)
TERN_CUDA_CALL(ctx_get_current, cuCtxGetCurrent, 4000)
TERN_CUDA_CALL(ctx_push_current, cuCtxPushCurrent, 4000)
TERN_CUDA_CALL(ctx_pop_current, cuCtxPopCurrent, 4000)
TERN_CUDA_CALL(ctx_get_stream_priority_range, cuCtxGetStreamPriorityRange, 5050)

/* Memory. */
TERN_CUDA_CALL(mem_get_info, cuMemGetInfo, 3020)
TERN_CUDA_CALL(mem_alloc, cuMemAlloc, 3020)
TERN_CUDA_CALL(mem_free, cuMemFree, 3020)
TERN_CUDA_CALL(mem_get_address_range, cuMemGetAddressRange, 3020)
TERN_CUDA_CALL(mem_host_alloc, cuMemHostAlloc, 2020)
TERN_CUDA_CALL(mem_free_host, cuMemFreeHost, 2000)
TERN_CUDA_CALL(mem_host_register, cuMemHostRegister, 6050)
TERN_CUDA_CALL(mem_host_unregister, cuMemHostUnregister, 4000)
TERN_CUDA_CALL(memcpy_htod_async, cuMemcpyHtoDAsync, 3020)
TERN_CUDA_CALL(memcpy_dtoh_async, cuMemcpyDtoHAsync, 3020)
TERN_CUDA_CALL(memcpy_dtod_async, cuMemcpyDtoDAsync, 3020)
TERN_CUDA_CALL(memcpy_async, cuMemcpyAsync, 4000)
TERN_CUDA_CALL(memset_d8_async, cuMemsetD8Async, 3020)
TERN_CUDA_CALL(memset_d32_async, cuMemsetD32Async, 3020)
TERN_CUDA_CALL(pointer_get_attribute, cuPointerGetAttribute, 4000)
TERN_CUDA_CALL(pointer_set_attribute, cuPointerSetAttribute, 6000)

/* Streams. */
TERN_CUDA_CALL(stream_create_with_priority, cuStreamCreateWithPriority, 5050)
TERN_CUDA_CALL(stream_destroy, cuStreamDestroy, 4000)
TERN_CUDA_CALL(stream_synchronize, cuStreamSynchronize, 2000)
TERN_CUDA_CALL(stream_query, cuStreamQuery, 2000)
TERN_CUDA_CALL(stream_wait_event, cuStreamWaitEvent, 3020)
TERN_CUDA_CALL(launch_host_func, cuLaunchHostFunc, 10000)

/* Events. */
TERN_CUDA_CALL(event_create, cuEventCreate, 2000)
TERN_CUDA_CALL(event_destroy, cuEventDestroy, 4000)
TERN_CUDA_CALL(event_record, cuEventRecord, 2000)
TERN_CUDA_CALL(event_record_with_flags, cuEventRecordWithFlags, 11010)
TERN_CUDA_CALL(event_query, cuEventQuery, 2000)
TERN_CUDA_CALL(event_synchronize, cuEventSynchronize, 2000)
TERN_CUDA_CALL(event_elapsed_time, cuEventElapsedTime, 2000)

/* Modules and kernel launches. */
TERN_CUDA_CALL(module_load_data_ex, cuModuleLoadDataEx, 2010)
TERN_CUDA_CALL(module_get_function, cuModuleGetFunction, 2000)
TERN_CUDA_CALL(module_unload, cuModuleUnload, 2000)
TERN_CUDA_CALL(launch_kernel, cuLaunchKernel, 4000)

/* Graphs. */
TERN_CUDA_CALL(stream_begin_capture, cuStreamBeginCapture, 10010)
TERN_CUDA_CALL(stream_end_capture, cuStreamEndCapture, 10000)
TERN_CUDA_CALL(graph_instantiate, cuGraphInstantiateWithFlags, 11040)
TERN_CUDA_CALL(graph_launch, cuGraphLaunch, 10000)
TERN_CUDA_CALL(graph_destroy, cuGraphDestroy, 10000)
TERN_CUDA_CALL(graph_exec_destroy, cuGraphExecDestroy, 10000)

/* Sharing memory with network cards and other processes. */
TERN_CUDA_CALL_OPTIONAL(
	mem_get_handle_for_address_range, cuMemGetHandleForAddressRange, 11070)
TERN_CUDA_CALL_OPTIONAL(flush_gpu_direct_rdma_writes, cuFlushGPUDirectRDMAWrites, 11030)
TERN_CUDA_CALL_OPTIONAL(ipc_get_mem_handle, cuIpcGetMemHandle, 4010)
TERN_CUDA_CALL_OPTIONAL(ipc_open_mem_handle, cuIpcOpenMemHandle, 11000)
TERN_CUDA_CALL_OPTIONAL(ipc_close_mem_handle, cuIpcCloseMemHandle, 4010)
TERN_CUDA_CALL_OPTIONAL(ipc_get_event_handle, cuIpcGetEventHandle, 4010)
TERN_CUDA_CALL_OPTIONAL(ipc_open_event_handle, cuIpcOpenEventHandle, 4010)

#undef TERN_CUDA_CALL
#undef TERN_CUDA_CALL_OPTIONAL
