// Much of everything: commands, events, buffers, bytes in flight, output of kernels.
#include "dt.h"

static const char *src =
    "kernel void inc(global uint *a) { a[get_global_id(0)]++; }\n"
    "kernel void spin(global volatile uint *a) { *a = 1; for (int i = 0; i < 20000000; i++) *a = *a * 5u + 1u; }\n"
    "kernel void speak(int n, global const float *f) { printf(\"kernel line %d: %f %s %x\\n\", n, f[0], \"text\", n * 255); }\n";

int main(void) {
    setup(0);
    cl_program p = build(src, "");
    cl_kernel inc = clCreateKernel(p, "inc", &err), speak = clCreateKernel(p, "speak", &err);
    must(err, "kernels");
    size_t one = 1;
    cl_uint v = 0;
    cl_mem m = buffer(0, 4096, NULL);
    clEnqueueFillBuffer(queue, m, &v, 4, 0, 4096, 0, NULL, NULL);
    clSetKernelArg(inc, 0, sizeof m, &m);
    cl_int worst = 0;
    for (int i = 0; i < 50000; i++) worst |= clEnqueueNDRangeKernel(queue, inc, 1, NULL, &one, &one, 0, NULL, NULL);
    ERR("50000 kernels", worst);
    ERR("50000 kernels end", clFinish(queue));
    clEnqueueReadBuffer(queue, m, CL_TRUE, 0, 4, &v, 0, NULL, NULL);
    SAY("50000 kernels counted", "%u", v);

    // Events kept, waited for in one call, in reverse, and released.
    enum { EVENTS = 4000 };
    static cl_event ev[EVENTS];
    for (int i = 0; i < EVENTS; i++) worst |= clEnqueueNDRangeKernel(queue, inc, 1, NULL, &one, &one, i ? 1 : 0, i ? &ev[i - 1] : NULL, &ev[i]);
    ERR("4000 events", worst);
    ERR("4000 events waited for", clWaitForEvents(EVENTS, ev));
    int left = 0;
    for (int i = EVENTS - 1; i >= 0; i--) {
        cl_int s = 99;
        clGetEventInfo(ev[i], CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof s, &s, NULL);
        left += s != CL_COMPLETE;
        worst |= clReleaseEvent(ev[i]);
    }
    SAY("4000 events not complete", "%d %s", left, dt_name(worst));

    // A long wait list.
    for (int i = 0; i < 1000; i++) worst |= clEnqueueMarkerWithWaitList(queue, 0, NULL, &ev[i]);
    ERR("a wait list of 1000", clEnqueueNDRangeKernel(queue, inc, 1, NULL, &one, NULL, 1000, ev, NULL));
    for (int i = 0; i < 1000; i++) worst |= clReleaseEvent(ev[i]);
    ERR("a wait list of 1000 end", clFinish(queue));

    // Buffers come and go.
    unsigned sum = 0;
    for (int i = 0; i < 5000; i++) {
        unsigned x = (unsigned)i * 7, y = 0;
        cl_mem b = buffer(0, 64 + (size_t)(i % 50) * 1000, NULL);
        clEnqueueWriteBuffer(queue, b, CL_FALSE, 0, 4, &x, 0, NULL, NULL);
        clSetKernelArg(inc, 0, sizeof b, &b);
        clEnqueueNDRangeKernel(queue, inc, 1, NULL, &one, &one, 0, NULL, NULL);
        clEnqueueReadBuffer(queue, b, CL_TRUE, 0, 4, &y, 0, NULL, NULL);
        sum += y;
        worst |= clReleaseMemObject(b);
    }
    SAY("5000 buffers", "%u %s", sum, dt_name(worst));

    // Large transfers, one and many at a time.
    size_t big = 96 << 20;
    unsigned char *in = malloc(big), *out = malloc(big);
    fill(in, big, 3);
    cl_mem b = buffer(0, big, NULL);
    ERR("96 MiB write", clEnqueueWriteBuffer(queue, b, CL_TRUE, 0, big, in, 0, NULL, NULL));
    ERR("96 MiB read", clEnqueueReadBuffer(queue, b, CL_TRUE, 0, big, out, 0, NULL, NULL));
    SAY("96 MiB", "%s", memcmp(in, out, big) ? "differ" : "are equal");
    memset(out, 0, big);
    for (size_t off = 0; off < big; off += 3 << 20) {
        worst |= clEnqueueWriteBuffer(queue, b, CL_FALSE, off, 3 << 20, in + big - off - (3 << 20), 0, NULL, NULL);
        worst |= clEnqueueReadBuffer(queue, b, CL_FALSE, off, 3 << 20, out + off, 0, NULL, NULL);
    }
    ERR("32 transfers each way in flight", worst | clFinish(queue));
    HASH("what they brought", out, big);
    clReleaseMemObject(b);

    // A queue let go with work under way, then memory released by the megabyte: nobody asks that queue any more.
    cl_command_queue gone = clCreateCommandQueue(context, device, 0, &err);
    must(err, "second queue");
    cl_event gate = clCreateUserEvent(context, &err);
    v = 5;
    clEnqueueWriteBuffer(queue, m, CL_TRUE, 0, 4, &v, 0, NULL, NULL);
    clSetKernelArg(inc, 0, sizeof m, &m);
    cl_event last;
    ERR("held kernel", clEnqueueNDRangeKernel(gone, inc, 1, NULL, &one, NULL, 1, &gate, &last));
    ERR("its queue let go", clReleaseCommandQueue(gone));
    for (int i = 0; i < 20; i++) {
        b = buffer(0, 1 << 20, NULL);
        worst |= clEnqueueFillBuffer(queue, b, &v, 4, 0, 1 << 20, 0, NULL, NULL) | clReleaseMemObject(b);
    }
    ERR("20 buffers of 1 MiB", worst | clFinish(queue));
    ERR("the gate opens", clSetUserEventStatus(gate, CL_COMPLETE));
    ERR("held kernel ends", clWaitForEvents(1, &last));
    ERR("held kernel's event released", clReleaseEvent(last) | clReleaseEvent(gate));
    clEnqueueReadBuffer(queue, m, CL_TRUE, 0, 4, &v, 0, NULL, NULL);
    SAY("held kernel counted", "%u", v);

    // Many queues let go at once with kernels that take a while, and no event.
    cl_mem own[8];
    cl_kernel spin = clCreateKernel(p, "spin", &err);
    must(err, "spin");
    for (int i = 0; i < 8; i++) {
        own[i] = buffer(0, 4, NULL);
        gone = clCreateCommandQueue(context, device, 0, &err);
        clSetKernelArg(spin, 0, sizeof own[i], &own[i]);
        worst |= err | clEnqueueNDRangeKernel(gone, spin, 1, NULL, &one, &one, 0, NULL, NULL);
        worst |= clReleaseCommandQueue(gone);
        b = buffer(0, 5 << 20, NULL);
        worst |= clReleaseMemObject(b) | clReleaseMemObject(own[i]);
    }
    ERR("8 queues and their memory let go", worst | clFinish(queue));

    // Text from kernels comes before the command's end.
    float f = 1.5f;
    cl_mem fb = buffer(CL_MEM_COPY_HOST_PTR, sizeof f, &f);
    for (int i = 0; i < 5; i++) {
        clSetKernelArg(speak, 0, sizeof i, &i);
        clSetKernelArg(speak, 1, sizeof fb, &fb);
        clEnqueueNDRangeKernel(queue, speak, 1, NULL, &one, NULL, 0, NULL, NULL);
        ERR(L("printf %d", i), clFinish(queue));
    }
    return 0;
}
