// Shared virtual memory (OpenCL 3.0, section 5.6). Included by stubs.c.

void *CL_API_CALL tdl_clSVMAlloc(cl_context context, cl_svm_mem_flags flags, size_t size, cl_uint alignment) {
  TRACE;
  NOTE(context, size);
  return tdl_refused() ? NULL : (void *)tdlSVMAlloc(U(context), flags, size, alignment);
}

void CL_API_CALL tdl_clSVMFree(cl_context context, void *pointer) {
  TRACE;
  NOTE(context, 0);
  if (!tdl_refused()) {
    tdlSVMFree(U(context), U(pointer));
  }
}

cl_int CL_API_CALL tdl_clEnqueueSVMFree(cl_command_queue queue, cl_uint num, void **pointers,
                                        void(CL_CALLBACK *notify)(cl_command_queue, cl_uint, void **, void *),
                                        void *data, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, 0);
  return tdlEnqueueSVMFree(U(queue), num, U(pointers), U(notify), U(data), &waits);
}

cl_int CL_API_CALL tdl_clEnqueueSVMMemcpy(cl_command_queue queue, cl_bool blocking, void *dst, const void *src,
                                          size_t size, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, size);
  return tdlEnqueueSVMMemcpy(U(queue), blocking, U(dst), U(src), size, &waits);
}

cl_int CL_API_CALL tdl_clEnqueueSVMMemFill(cl_command_queue queue, void *pointer, const void *pattern,
                                           size_t pattern_size, size_t size, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, size);
  return tdlEnqueueSVMMemFill(U(queue), U(pointer), U(pattern), pattern_size, size, &waits);
}

cl_int CL_API_CALL tdl_clEnqueueSVMMap(cl_command_queue queue, cl_bool blocking, cl_map_flags flags, void *pointer,
                                       size_t size, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, size);
  return tdlEnqueueSVMMap(U(queue), blocking, flags, U(pointer), size, &waits);
}

cl_int CL_API_CALL tdl_clEnqueueSVMUnmap(cl_command_queue queue, void *pointer, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, 0);
  return tdlEnqueueSVMUnmap(U(queue), U(pointer), &waits);
}

cl_int CL_API_CALL tdl_clEnqueueSVMMigrateMem(cl_command_queue queue, cl_uint num, const void **pointers,
                                              const size_t *sizes, cl_mem_migration_flags flags, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, 0);
  return tdlEnqueueSVMMigrate(U(queue), num, U(pointers), U(sizes), flags, &waits);
}

cl_int CL_API_CALL tdl_clSetKernelArgSVMPointer(cl_kernel kernel, cl_uint index, const void *pointer) {
  REFUSE;
  NOTE(kernel, sizeof pointer);
  return tdlSetKernelArgSVM(U(kernel), index, U(pointer));
}

cl_int CL_API_CALL tdl_clSetKernelExecInfo(cl_kernel kernel, cl_kernel_exec_info param, size_t size,
                                           const void *value) {
  REFUSE;
  NOTE(kernel, size);
  return tdlSetKernelExecInfo(U(kernel), param, size, U(value));
}
