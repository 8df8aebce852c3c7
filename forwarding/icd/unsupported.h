// The calls that are not forwarded. Each answers what the specification has for a device without the feature, after a
// look at the object it is given; docs/OPENCL.md lists them, and a test compares the list with this file.
// Included by stubs.c.

// UNSUPPORTED: a call that returns an error code. Arguments behind the first do not matter and are not named (the
// calling conventions of x86-64 and AArch64 allow that).
#define UNSUPPORTED(name, kind, code)                                                                                  \
  cl_int CL_API_CALL tdl_##name(void *object) {                                                                        \
    REFUSE;                                                                                                            \
    return tdlUnsupported(kind, U(object), code);                                                                      \
  }

// UNSUPPORTED_CREATE: a call that returns NULL and an error code behind the given arguments, the first an object.
#define UNSUPPORTED_CREATE(name, kind, code, ...)                                                                      \
  void *CL_API_CALL tdl_##name(void *object, __VA_ARGS__, cl_int *errcode_ret) {                                       \
    if (errcode_ret != NULL) {                                                                                         \
      *errcode_ret = tdl_refused() ? CL_OUT_OF_RESOURCES : tdlUnsupported(kind, U(object), code);                      \
    }                                                                                                                  \
    return NULL;                                                                                                       \
  }

#define TDL_ANY (-1) // no object to look at

// Pipes.
UNSUPPORTED_CREATE(clCreatePipe, TDL_CONTEXT, CL_INVALID_OPERATION, cl_mem_flags f, cl_uint s, cl_uint n, void *p)
UNSUPPORTED(clGetPipeInfo, TDL_ANY, CL_INVALID_MEM_OBJECT)

// No program has initializers to undo.
UNSUPPORTED(clSetProgramReleaseCallback, TDL_PROGRAM, CL_INVALID_OPERATION)

// The extension before OpenCL 1.2's sub-devices, queues on the device, native kernels.
UNSUPPORTED(clCreateSubDevicesEXT, TDL_DEVICE, CL_INVALID_VALUE)
UNSUPPORTED(clRetainDeviceEXT, TDL_DEVICE, CL_SUCCESS)
UNSUPPORTED(clReleaseDeviceEXT, TDL_DEVICE, CL_SUCCESS)
UNSUPPORTED(clSetDefaultDeviceCommandQueue, TDL_CONTEXT, CL_INVALID_OPERATION)
UNSUPPORTED(clEnqueueNativeKernel, TDL_QUEUE, CL_INVALID_OPERATION)
UNSUPPORTED(clSetCommandQueueProperty, TDL_QUEUE, CL_INVALID_OPERATION)

// Sharing with graphics: no context here is made from one.
UNSUPPORTED_CREATE(clCreateFromGLBuffer, TDL_CONTEXT, CL_INVALID_CONTEXT, cl_mem_flags f, cl_uint b)
UNSUPPORTED_CREATE(clCreateFromGLTexture, TDL_CONTEXT, CL_INVALID_CONTEXT,
                   cl_mem_flags f, cl_uint t, cl_int m, cl_uint x)
UNSUPPORTED_CREATE(clCreateFromGLTexture2D, TDL_CONTEXT, CL_INVALID_CONTEXT,
                   cl_mem_flags f, cl_uint t, cl_int m, cl_uint x)
UNSUPPORTED_CREATE(clCreateFromGLTexture3D, TDL_CONTEXT, CL_INVALID_CONTEXT,
                   cl_mem_flags f, cl_uint t, cl_int m, cl_uint x)
UNSUPPORTED_CREATE(clCreateFromGLRenderbuffer, TDL_CONTEXT, CL_INVALID_CONTEXT, cl_mem_flags f, cl_uint b)
UNSUPPORTED(clGetGLObjectInfo, TDL_ANY, CL_INVALID_GL_OBJECT)
UNSUPPORTED(clGetGLTextureInfo, TDL_ANY, CL_INVALID_GL_OBJECT)
UNSUPPORTED(clEnqueueAcquireGLObjects, TDL_QUEUE, CL_INVALID_CONTEXT)
UNSUPPORTED(clEnqueueReleaseGLObjects, TDL_QUEUE, CL_INVALID_CONTEXT)
UNSUPPORTED(clGetGLContextInfoKHR, TDL_ANY, CL_INVALID_GL_SHAREGROUP_REFERENCE_KHR)
UNSUPPORTED_CREATE(clCreateEventFromGLsyncKHR, TDL_CONTEXT, CL_INVALID_CONTEXT, void *s)
UNSUPPORTED_CREATE(clCreateFromEGLImageKHR, TDL_CONTEXT, CL_INVALID_OPERATION,
                   void *d, void *i, cl_mem_flags f, void *p)
UNSUPPORTED_CREATE(clCreateEventFromEGLSyncKHR, TDL_CONTEXT, CL_INVALID_OPERATION, void *s, void *d)
UNSUPPORTED(clEnqueueAcquireEGLObjectsKHR, TDL_QUEUE, CL_INVALID_OPERATION)
UNSUPPORTED(clEnqueueReleaseEGLObjectsKHR, TDL_QUEUE, CL_INVALID_OPERATION)
UNSUPPORTED(clGetDeviceIDsFromD3D10KHR, TDL_ANY, CL_INVALID_PLATFORM)
UNSUPPORTED_CREATE(clCreateFromD3D10BufferKHR, TDL_CONTEXT, CL_INVALID_CONTEXT, cl_mem_flags f, void *r)
UNSUPPORTED_CREATE(clCreateFromD3D10Texture2DKHR, TDL_CONTEXT, CL_INVALID_CONTEXT, cl_mem_flags f, void *r, cl_uint s)
UNSUPPORTED_CREATE(clCreateFromD3D10Texture3DKHR, TDL_CONTEXT, CL_INVALID_CONTEXT, cl_mem_flags f, void *r, cl_uint s)
UNSUPPORTED(clEnqueueAcquireD3D10ObjectsKHR, TDL_QUEUE, CL_INVALID_CONTEXT)
UNSUPPORTED(clEnqueueReleaseD3D10ObjectsKHR, TDL_QUEUE, CL_INVALID_CONTEXT)
UNSUPPORTED(clGetDeviceIDsFromD3D11KHR, TDL_ANY, CL_INVALID_PLATFORM)
UNSUPPORTED_CREATE(clCreateFromD3D11BufferKHR, TDL_CONTEXT, CL_INVALID_CONTEXT, cl_mem_flags f, void *r)
UNSUPPORTED_CREATE(clCreateFromD3D11Texture2DKHR, TDL_CONTEXT, CL_INVALID_CONTEXT, cl_mem_flags f, void *r, cl_uint s)
UNSUPPORTED_CREATE(clCreateFromD3D11Texture3DKHR, TDL_CONTEXT, CL_INVALID_CONTEXT, cl_mem_flags f, void *r, cl_uint s)
UNSUPPORTED(clEnqueueAcquireD3D11ObjectsKHR, TDL_QUEUE, CL_INVALID_CONTEXT)
UNSUPPORTED(clEnqueueReleaseD3D11ObjectsKHR, TDL_QUEUE, CL_INVALID_CONTEXT)
UNSUPPORTED(clGetDeviceIDsFromDX9MediaAdapterKHR, TDL_ANY, CL_INVALID_PLATFORM)
UNSUPPORTED_CREATE(clCreateFromDX9MediaSurfaceKHR, TDL_CONTEXT, CL_INVALID_CONTEXT,
                   cl_mem_flags f, cl_uint t, void *i, cl_uint p)
UNSUPPORTED(clEnqueueAcquireDX9MediaSurfacesKHR, TDL_QUEUE, CL_INVALID_CONTEXT)
UNSUPPORTED(clEnqueueReleaseDX9MediaSurfacesKHR, TDL_QUEUE, CL_INVALID_CONTEXT)
